"""How long a preview takes, and how long the cycle-enumerating rule takes beside it.

Run: python benchmarks/placement.py [--quick]. Prints a table; the last line is one JSON object.

Every node differs from every other in what is free, as in a real fleet, so nothing is gained from equal nodes. A
preview is the whole answer of one call: the pick of every shape, a row for every other host, and the refusals.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from placement_cycles import cycles_of_complete_graph, rule_seconds  # noqa: E402
from support.fleets import GIB, MIB, card, gpu_server, mac, mesh  # noqa: E402
from wharfinger.catalog.card import ModelCard  # noqa: E402
from wharfinger.placement.previews import preview_answer  # noqa: E402
from wharfinger.placement.types import (  # noqa: E402
    FleetSnapshot,
    InstanceFacts,
    NodeFacts,
    PlanRequest,
    ReservationFacts,
)


def model(layer_mib: int, *backends: str) -> ModelCard:
    """A dense model of Qwen3-32B's shape (64 layers, 8 KV heads of 128) with layers of the given size."""
    return card(
        n_layers=64,
        layer_mib=layer_mib,
        embedding_mib=1484,
        output_mib=1484,
        backends=backends,
        context_length=40960,
        model_id="Qwen/Qwen3-32B",
        hidden_size=5120,
        num_attention_heads=64,
        feed_forward_size=25600,
        vocab_size=151936,
    )


def h100_server(number: int, gpus: int) -> NodeFacts:
    """A server with ``gpus`` H100, each with its own amount in use."""
    return gpu_server(
        f"node-{number:04d}",
        [80] * gpus,
        [(300 + (number * 37 + index * 101) % 1900) / 1024 for index in range(gpus)],
        ram_gib=512,
        ram_available_bytes=(400 + number % 97) * GIB,
        backends=("vllm-cuda", "llama_cpp-cpu"),
        device_name="NVIDIA H100 80GB HBM3",
    )


def linked_macs(count: int) -> FleetSnapshot:
    """Macs of 32 to 128 GiB, each with its own amount free and linked with each."""
    nodes: list[NodeFacts] = []
    for number in range(count):
        ram_gib = (32, 48, 64, 96, 128)[number % 5]
        free_bytes = ram_gib * GIB - (3000 + number * 131) * MIB
        nodes.append(mac(f"mac-{number:02d}", ram_gib, ram_available_bytes=free_bytes))
    return with_links(FleetSnapshot(tuple(nodes)))


def with_links(fleet: FleetSnapshot) -> FleetSnapshot:
    """The fleet with every node linked with every other."""
    return replace(fleet, links=mesh(*(node.node_id for node in fleet.nodes)))


def servers(nodes: int, gpus: int = 8, instances: int = 0) -> FleetSnapshot:
    """GPU servers, with running instances of one GPU each spread over them."""
    members = tuple(h100_server(number, gpus) for number in range(nodes))
    reservations: list[ReservationFacts] = []
    running: list[InstanceFacts] = []
    for number in range(instances):
        node_id = members[number % nodes].node_id
        reservations.append(
            ReservationFacts(f"inst-{number:05d}", node_id, number // nodes % gpus, 20 * GIB, observed=False)
        )
        running.append(
            InstanceFacts(
                f"inst-{number:05d}", "other/model", (node_id,), frozenset({24000 + number // nodes})
            )
        )
    return FleetSnapshot(members, reservations=tuple(reservations), instances=tuple(running))


def timed_ms(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and least wall time in milliseconds over ``repeats`` runs after one warm-up."""
    work()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times), min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and no cycles beyond 8 nodes")
    quick = parser.parse_args().quick
    repeats = 5 if quick else 25
    served = model(930, "vllm-cuda", "llama_cpp-cpu")
    spread = model(930, "mlx")
    request = PlanRequest()
    cases = (
        ("preview_1x8_ms", servers(1), served),
        ("preview_10x8_ms", servers(10), served),
        ("preview_100x8_ms", servers(100), served),
        ("preview_300x8_ms", servers(300), served),
        ("preview_1000_ms", servers(1000, gpus=1), served),
        ("preview_1000_busy_ms", servers(1000, gpus=1, instances=2000), served),
        ("preview_12_linked_ms", linked_macs(12), spread),
        ("preview_300x8_linked_ms", with_links(servers(300)), served),
        ("preview_12_linked_refused_ms", linked_macs(12), model(9300, "mlx")),
        ("preview_300x8_refused_ms", servers(300), model(9300, "vllm-cuda", "llama_cpp-cpu")),
    )
    result: dict[str, object] = {}
    for name, fleet, asked in cases:
        rows = preview_answer(fleet, asked, request).rows
        median, least = timed_ms(lambda f=fleet, m=asked: preview_answer(f, m, request), repeats)
        result[name], result[f"{name}_min"] = round(median, 3), round(least, 3)
        fitting = sum(row.plan is not None for row in rows)
        print(f"{name:30} {result[name]:>10} ms   {fitting} plans, {len(rows) - fitting} refusals")
    measured = 8 if quick else 9
    seconds = {nodes: rule_seconds(nodes) for nodes in range(4, measured + 1)}
    for nodes, taken in seconds.items():
        print(
            f"cycle rule, {nodes} linked       {taken * 1000:>10.3f} ms   {cycles_of_complete_graph(nodes):,} cycles"
        )
    factor = cycles_of_complete_graph(12) / cycles_of_complete_graph(measured)
    result["cycle_rule_12_linked_ms"] = round(seconds[measured] * factor * 1000)
    result["cycle_rule_12_extrapolated_from_nodes"] = measured
    result["cycle_rule_measured_ms"] = {str(n): round(taken * 1000, 3) for n, taken in seconds.items()}
    print(f"cycle rule, 12 linked      {result['cycle_rule_12_linked_ms']:>10} ms   by the number of cycles")
    result["conditions"] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "repeats": repeats,
        "statistic": "median",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

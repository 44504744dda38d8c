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

sys.path.insert(0, str(Path(__file__).parent))

from placement_cycles import cycles_of_complete_graph, rule_seconds
from wharfinger.catalog.card import (
    ByteSize,
    LayerGeometry,
    LayerKind,
    ModelCard,
    PlacementPreferences,
    Weights,
)
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.types import (
    DeviceFacts,
    FleetSnapshot,
    InstanceFacts,
    LinkFacts,
    MemoryKind,
    NodeFacts,
    PlanRequest,
    ReservationFacts,
)

GIB = 1024**3
MIB = 1024**2
_FULL = LayerGeometry(kind=LayerKind.FULL, kv_heads=8, key_dim=128, value_dim=128)


def card(layer_mib: int, backends: tuple[str, ...]) -> ModelCard:
    """A dense model of Qwen3-32B's shape (64 layers, 8 KV heads of 128) with layers of the given size."""
    weights = Weights(
        layer_bytes=(layer_mib * MIB,) * 64,
        embedding_bytes=1484 * MIB,
        output_bytes=1484 * MIB,
    )
    return ModelCard(
        model_id="Qwen/Qwen3-32B",
        storage_size=ByteSize(in_bytes=weights.total_bytes),
        n_layers=64,
        hidden_size=5120,
        supports_tensor=True,
        num_key_value_heads=8,
        num_attention_heads=64,
        head_dim=128,
        feed_forward_size=25600,
        vocab_size=151936,
        context_length=40960,
        layers=(_FULL,) * 64,
        weights=weights,
        placement=PlacementPreferences(compatible_backends=backends, backend_preference=backends),
    )


def gpu_node(number: int, gpus: int) -> NodeFacts:
    """A server with ``gpus`` H100, each with its own amount in use."""
    return NodeFacts(
        node_id=f"node-{number:04d}",
        name=f"lab-{number}",
        ram_total_bytes=512 * GIB,
        ram_available_bytes=(400 + number % 97) * GIB,
        devices=tuple(
            DeviceFacts(
                index,
                "NVIDIA H100 80GB HBM3",
                "cuda",
                MemoryKind.DISCRETE,
                total_bytes=80 * GIB,
                used_bytes=(300 + (number * 37 + index * 101) % 1900) * MIB,
            )
            for index in range(gpus)
        ),
        backends=frozenset({"vllm-cuda", "llama_cpp-cpu"}),
    )


def mac_node(number: int) -> NodeFacts:
    """An Apple machine with 32 to 128 GiB, each with its own amount free."""
    ram = (32, 48, 64, 96, 128)[number % 5] * GIB
    return NodeFacts(
        node_id=f"mac-{number:02d}",
        name=f"mac-{number}",
        ram_total_bytes=ram,
        ram_available_bytes=ram - (3000 + number * 131) * MIB,
        devices=(DeviceFacts(0, "Apple M4 Max", "metal", MemoryKind.APPLE, total_bytes=ram),),
        backends=frozenset({"mlx", "mlx-metal"}),
    )


def linked(nodes: int) -> FleetSnapshot:
    """Macs, each linked with each."""
    members = tuple(mac_node(number) for number in range(nodes))
    links = tuple(
        LinkFacts(left.node_id, right.node_id, "ethernet", f"10.0.0.{index + 1}")
        for left in members
        for index, right in enumerate(members)
        if left is not right
    )
    return FleetSnapshot(members, links)


def with_links(fleet: FleetSnapshot) -> FleetSnapshot:
    """The fleet with every node linked with every other."""
    links = tuple(
        LinkFacts(left.node_id, right.node_id, "ethernet", f"10.{index // 250}.0.{index % 250 + 1}")
        for left in fleet.nodes
        for index, right in enumerate(fleet.nodes)
        if left is not right
    )
    return replace(fleet, links=links)


def servers(nodes: int, gpus: int = 8, instances: int = 0) -> FleetSnapshot:
    """GPU servers, with running instances of one GPU each spread over them."""
    members = tuple(gpu_node(number, gpus) for number in range(nodes))
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
    served = card(930, ("vllm-cuda", "llama_cpp-cpu"))
    spread = card(930, ("mlx",))
    request = PlanRequest()
    cases = (
        ("preview_1x8_ms", servers(1), served),
        ("preview_10x8_ms", servers(10), served),
        ("preview_100x8_ms", servers(100), served),
        ("preview_300x8_ms", servers(300), served),
        ("preview_1000_ms", servers(1000, gpus=1), served),
        ("preview_1000_busy_ms", servers(1000, gpus=1, instances=2000), served),
        ("preview_12_linked_ms", linked(12), spread),
        ("preview_300x8_linked_ms", with_links(servers(300)), served),
        ("preview_12_linked_refused_ms", linked(12), card(9300, ("mlx",))),
        ("preview_300x8_refused_ms", servers(300), card(9300, ("vllm-cuda", "llama_cpp-cpu"))),
    )
    result: dict[str, object] = {}
    for name, fleet, model in cases:
        rows = preview_answer(fleet, model, request).rows
        median, least = timed_ms(lambda f=fleet, m=model: preview_answer(f, m, request), repeats)
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

"""Random fleets, cards and requests for property tests of the planner."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from support.fleets import GIB, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceFacts,
    InstanceMeta,
    LinkFacts,
    NodeFacts,
    PlanRequest,
    ReservationFacts,
    Sharding,
)

BACKENDS = ("vllm-cuda", "mlx", "llama_server", "llama_cpp")


@st.composite
def nodes(draw: st.DrawFn, name: str, kinds: tuple[str, ...]) -> NodeFacts:
    """A Mac, a GPU server or a CPU machine, possibly busy, capped, silent or unmeasured."""
    match draw(st.sampled_from(kinds)):
        case "mac":
            ram = draw(st.sampled_from([8, 16, 24, 36, 64]))
            node = mac(name, ram, draw(st.floats(0.3, 1.0)) * ram)
        case "gpu":
            vram = draw(st.lists(st.sampled_from([8, 12, 16, 24]), min_size=1, max_size=4))
            used = [draw(st.floats(0, 0.9)) * size for size in vram]
            tags = draw(
                st.sets(st.sampled_from(["vllm-cuda", "llama_cpp-cuda", "llama_server-cuda"]), min_size=1)
            )
            node = gpu_server(name, vram, used, ram_gib=draw(st.sampled_from([16, 64])), backends=tags)
        case "server":
            vram = draw(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3))
            tags = draw(st.sampled_from([("vllm-cuda",), ("llama_server-cuda",)]))
            node = gpu_server(name, vram, ram_gib=64, backends=tags)
        case _:
            tags = draw(st.sampled_from([{"llama_cpp-cpu"}, {"llama_server-cpu"}]))
            node = cpu_server(name, draw(st.sampled_from([8, 32, 64])), backends=frozenset(tags))
    if draw(st.integers(0, 9)) == 0:
        node = replace(node, memory_cap_bytes=draw(st.integers(4, 30)) * GIB)
    if draw(st.integers(0, 14)) == 0:
        node = replace(node, ram_available_bytes=None)
    if node.devices and draw(st.integers(0, 9)) == 0:
        node = replace(node, devices=(replace(node.devices[0], used_bytes=None), *node.devices[1:]))
    return node


@st.composite
def links(draw: st.DrawFn, names: list[str]) -> tuple[LinkFacts, ...]:
    """Each machine linked with each; or some links one-way, slow, of unknown address or nameless over RDMA."""
    whole = mesh(*names, rdma=draw(st.booleans()))
    if draw(st.booleans()):
        return whole
    kept: list[LinkFacts] = []
    for link in whole:
        match draw(st.sampled_from(["kept", "kept", "gone", "wifi", "vpn", "unaddressed", "nameless"])):
            case "kept":
                kept.append(link)
            case "gone":
                pass
            case "wifi":
                kept.append(replace(link, interface="wifi", bandwidth_bytes_per_s=0.0, latency_s=0.01))
            case "vpn":
                kept.append(replace(link, address="100.64.0.9", bandwidth_bytes_per_s=1e8))
            case "unaddressed":
                kept.append(replace(link, address=None))
            case _:
                kept.append(replace(link, rdma_interface=None))
    return tuple(kept)


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    """One to five machines, some linked, some with instances running."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 5)))]
    kinds = draw(st.sampled_from([("mac", "gpu", "gpu", "cpu"), ("mac",), ("server",)]))
    members = [draw(nodes(name, kinds)) for name in names]
    linked = [name for name in names if draw(st.booleans()) or draw(st.booleans())]
    reservations: list[ReservationFacts] = []
    running: list[InstanceFacts] = []
    for number, node in enumerate(members):
        if draw(st.integers(0, 3)) == 0:
            index = 0 if node.devices else None
            size = draw(st.integers(1, 10)) * GIB
            reservations.append(
                ReservationFacts(f"i{number}", node.node_id, index, size, draw(st.booleans()))
            )
            running.append(InstanceFacts(f"i{number}", "other", (node.node_id,), frozenset({24000 + number})))
    return fleet(*members, links=draw(links(linked)), reservations=reservations, instances=running)


@st.composite
def cards(draw: st.DrawFn) -> ModelCard:
    """4 to 24 layers of unequal size, 1 to 40 GiB."""
    layers = draw(st.lists(st.integers(100, 1700), min_size=4, max_size=24))
    return card(
        n_layers=len(layers),
        layer_mib=tuple(layers),
        embedding_mib=draw(st.integers(0, 900)),
        output_mib=draw(st.integers(0, 900)),
        kv_heads=draw(st.sampled_from([1, 2, 8])),
        backends=BACKENDS,
        preference=draw(st.sampled_from([BACKENDS, BACKENDS[::-1], ()])),
        context_length=draw(st.sampled_from([4096, 32768, 131072])),
    )


REQUESTS = st.builds(
    PlanRequest,
    sharding=st.sampled_from(Sharding),
    meta=st.sampled_from(InstanceMeta),
    min_nodes=st.integers(1, 3),
    excluded_node_ids=st.sets(st.sampled_from(["n0", "n4"]), max_size=1).map(frozenset),
    context_tokens=st.sampled_from([None, None, 2048, 16384]),
)

"""Devices that are too small for the card, or not measured yet: refused, pending, and never served by RAM instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import GIB, ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.planner import plan
from wharfinger.placement.types import DeviceFacts, FleetSnapshot, MemoryKind, NodeFacts, PlanRequest, Refusal

BOTH = ("llama_cpp-cuda", "llama_cpp-cpu")
LARGE = card(backends=("llama_cpp",), layer_mib=10).model_copy(
    update={"placement": card(backends=("llama_cpp",)).placement.model_copy(update={"min_vram_gib": 24.0})}
)
"""A small model whose card asks for 24 GiB of VRAM."""


def refused(snapshot: FleetSnapshot, model: ModelCard = LARGE, asked: PlanRequest | None = None) -> Refusal:
    """The refusal of a plan."""
    result = plan(snapshot, model, asked or ask())
    assert result.refusal is not None, result.best
    return result.refusal


def unread(node: NodeFacts, index: int, *facts: str) -> NodeFacts:
    """The node with figures of one device not measured."""
    devices = list(node.devices)
    devices[index] = replace(devices[index], **dict.fromkeys(facts))
    return replace(node, devices=tuple(devices))


@pytest.mark.parametrize("fact", ["total_bytes", "used_bytes"])
def test_a_device_that_may_be_large_enough_is_awaited(fact: str) -> None:
    """8 GiB, and one of 48 of which a figure is missing: it is named, and the small one is not."""
    node = unread(unread(gpu_server("a", (8, 48)), 1, fact), 0, "used_bytes")
    refusal = refused(fleet(node))
    assert (refusal.code, refusal.category) == ("memory_unknown", "placement_info_pending")
    assert refusal.nodes[0].missing_facts == (f"devices[1].{fact}",)


def test_a_device_that_is_known_to_be_too_small_is_not_awaited() -> None:
    """Its use has not been measured, and does not matter."""
    refusal = refused(fleet(unread(gpu_server("a", (8,)), 0, "used_bytes")))
    assert (refusal.code, refusal.category) == ("min_vram", "no_valid_placement")


def test_only_devices_of_the_backend_count() -> None:
    """An 8 GiB CUDA card beside a 48 GiB ROCm card: the CUDA build may not have the model, the ROCm build may."""
    node = gpu_server("a", (8,))
    rocm = DeviceFacts(1, "AMD Radeon PRO W7900", "rocm", MemoryKind.DISCRETE, 48 * GIB, 0)
    both = replace(node, devices=(*node.devices, rocm))
    refusal = refused(fleet(both))
    assert refusal.code == "min_vram"
    assert refusal.nodes[0].message == (
        "a: no device reaches the card's minVramGib: largest device 8.00 GiB, 24 GiB needed"
    )
    best = plan(fleet(replace(both, backends=frozenset({"llama_cpp-rocm"}))), LARGE, ask()).best
    assert best is not None
    assert [c.device_index for c in best.ranks[0].charges] == [1, None]


def test_ram_is_no_vram() -> None:
    """A card that asks for VRAM does not run on the CPU, however much RAM there is."""
    refusal = refused(fleet(cpu_server("a", 256), gpu_server("b", (8,), backends=BOTH, ram_gib=256)))
    assert {node.node_id: node.code for node in refusal.nodes} == {"a": "min_vram", "b": "min_vram"}
    assert refusal.nodes[0].message.endswith("llama_cpp-cpu runs in RAM, 24 GiB needed")


@pytest.mark.parametrize(("vram", "gtt", "code"), [(8, 96, None), (8, 8, "min_vram")])
def test_unified_memory_counts_whole(vram: int, gtt: int, code: str | None) -> None:
    """A Mac's RAM and an APU's carve-out with GTT are the memory of their device."""
    device = DeviceFacts(0, "AMD Radeon 8060S", "vulkan", MemoryKind.APU, vram * GIB, 0, gtt * GIB)
    apu = NodeFacts("a", "a", ram_total_bytes=128 * GIB, ram_available_bytes=120 * GIB, devices=(device,),
                    backends=frozenset({"llama_cpp-vulkan"}))  # fmt: skip
    result = plan(fleet(apu), LARGE, ask())
    assert (result.refusal.code if result.refusal else None) == code
    metal = frozenset({"llama_cpp-metal"})
    assert plan(fleet(mac("m", 32, backends=metal)), LARGE, ask()).best is not None
    assert refused(fleet(mac("m", 16, backends=metal, devices=()))).code == "min_vram"


SMALL = card(backends=BOTH, layer_mib=100)
UNREAD = unread(gpu_server("a", (24,), backends=BOTH), 0, "used_bytes")


def test_a_gpu_that_is_not_measured_yet_is_awaited_not_replaced_by_the_cpu() -> None:
    """The quick launch would silently be slow for want of one sample; who asks for the CPU gets it."""
    refusal = refused(fleet(UNREAD), SMALL)
    assert (refusal.code, refusal.category) == ("memory_unknown", "placement_info_pending")
    assert refusal.nodes[0].message == (
        "a has not reported devices[0].used_bytes yet (needed for llama_cpp-cuda); "
        "llama_cpp-cpu would hold it, where it is asked for"
    )
    asked = plan(fleet(UNREAD), SMALL, ask(backend="llama_cpp-cpu")).best
    assert asked is not None
    assert (asked.ranks[0].backend, asked.flags) == ("llama_cpp-cpu", ())
    assert refused(fleet(UNREAD), SMALL, ask(backend="llama_cpp")).code == "memory_unknown"


def test_a_gpu_too_small_for_the_weights_is_not_awaited() -> None:
    """36 GiB never fit 24, whatever is in use."""
    best = plan(fleet(UNREAD), card(backends=BOTH, layer_mib=1152), ask()).best
    assert best is not None
    assert best.ranks[0].backend == "llama_cpp-cpu"
    assert "accelerator_not_measured" not in best.flags


@pytest.mark.parametrize(("used_gib", "backend"), [(23, "llama_cpp-cpu"), (0, None)])
def test_a_full_gpu_beside_an_unread_one_counts_with_what_is_free(used_gib: int, backend: str | None) -> None:
    """36 GiB: of 24 and an unread 24, one GiB and 24 are too few, 24 and 24 may do."""
    node = unread(gpu_server("a", (24, 24), backends=BOTH), 1, "used_bytes")
    full = replace(node.devices[0], used_bytes=used_gib * GIB)
    result = plan(
        fleet(replace(node, devices=(full, node.devices[1]))), card(backends=BOTH, layer_mib=1152), ask()
    )
    assert (result.best.ranks[0].backend if result.best else None) == backend


def test_an_accelerator_without_any_device_is_flagged() -> None:
    """An engine built for Vulkan on a GPU that nothing measures: waiting would never end."""
    node = cpu_server("a", backends=frozenset({"llama_cpp-vulkan", "llama_cpp-cpu"}))
    best = plan(fleet(node), card(backends=("llama_cpp",)), ask()).best
    assert best is not None
    assert best.ranks[0].backend == "llama_cpp-cpu"
    assert "accelerator_not_measured" in best.flags


def test_sets_do_not_take_the_cpu_of_an_unmeasured_gpu_either() -> None:
    """Two servers, one with an unread card: with its CPU they would hold it, slowly."""
    tags = ("llama_server-cuda", "llama_server-cpu")
    pair = [
        gpu_server("a", (24,), backends=tags),
        unread(gpu_server("b", (24,), backends=tags), 0, "used_bytes"),
    ]
    model = card(backends=("llama_server",), layer_mib=100)
    refusal = refused(fleet(*pair, links=mesh("a", "b")), model, ask(min_nodes=2))
    assert (refusal.code, refusal.category) == ("memory_unknown", "placement_info_pending")
    assert {node.node_id: node.missing_facts for node in refusal.nodes if node.missing_facts} == {
        "b": ("devices[0].used_bytes",)
    }

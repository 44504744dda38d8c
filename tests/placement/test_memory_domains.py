"""RAM and devices that share it are one memory, charged once; what is short is told where it is short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import GIB, MIB, ask, card, fleet, gpu_server
from wharfinger.placement.hypothetical import FleetError, fleet_from_mapping
from wharfinger.placement.planner import plan
from wharfinger.placement.types import DeviceFacts, MemoryKind, NodeFacts, ReservationFacts

VULKAN = ("llama_cpp-vulkan",)


def card_and_apu(vram_gib: float, ram_gib: float) -> NodeFacts:
    """A discrete card as device 0, an APU with 8 GiB of carve-out as device 1, both under Vulkan."""
    node = gpu_server("a", (vram_gib,), ram_gib=ram_gib, backends=VULKAN)
    apu = DeviceFacts(1, "8060S", "vulkan", MemoryKind.APU, 8 * GIB, 0, 120 * GIB)
    return replace(node, devices=(replace(node.devices[0], compute="vulkan"), apu))


def test_a_machine_has_one_unified_product() -> None:
    """Two M4 Max in one machine of 24 GiB are a mistake of the description."""
    described = {"nodes": [{"name": "a", "ram": "24GiB", "gpus": [{"model": "M4Max", "count": 2}]}]}
    with pytest.raises(FleetError, match=r"nodes\[0\].gpus\[0\].count is 2; accepted: 1, alone"):
        fleet_from_mapping(described)
    twice = {"nodes": [{"name": "a", "ram": "24GiB", "gpus": [{"model": "M4Max"}, {"model": "M4Max"}]}]}
    with pytest.raises(FleetError, match="a machine has one M4Max"):
        fleet_from_mapping(twice)


def test_two_devices_of_one_memory_are_not_added_up() -> None:
    """Whatever a node reports: 26 GiB of layers do not fit 24 GiB of RAM."""
    node = gpu_server("a", (24, 24), ram_gib=24, backends=("llama_cpp-metal",))
    apple = tuple(
        replace(device, compute="metal", memory_kind=MemoryKind.APPLE, used_bytes=None)
        for device in node.devices
    )
    shared = fleet(replace(node, devices=apple))
    refusal = plan(shared, card(layer_mib=800, backends=("llama_cpp-metal",)), ask()).refusal
    assert refusal is not None
    (short,) = refusal.nodes
    assert short.usable_bytes == 18 * GIB
    assert plan(shared, card(layer_mib=300, backends=("llama_cpp-metal",)), ask()).best is not None


@settings(max_examples=60)
@given(st.integers(4, 24), st.integers(24, 64), st.integers(200, 1600), st.integers(0, 600))
def test_a_card_beside_an_apu_charges_ram_once(
    vram_gib: int, ram_gib: int, layer_mib: int, embedding_mib: int
) -> None:
    """What lies on the APU and in RAM together fits the APU's rule."""
    node = card_and_apu(vram_gib, ram_gib)
    model = card(layer_mib=layer_mib, embedding_mib=embedding_mib, backends=VULKAN)
    result = plan(fleet(node), model, ask())
    for chosen in result.plans:
        by_pool = {charge.device_index: charge for charge in chosen.ranks[0].charges}
        if 1 in by_pool:
            assert None not in by_pool, "host parts of a machine whose RAM is on a device are charged there"
            assert by_pool[1].needed_bytes <= by_pool[1].usable_bytes
        else:
            assert by_pool.keys() <= {0, None}
    for refusal in result.refusal.nodes if result.refusal else ():
        assert refusal.short_by_bytes == (refusal.needed_bytes or 0) - (refusal.usable_bytes or 0)


def test_a_shortage_is_told_where_it_is() -> None:
    """2 TiB of RAM beside eight small cards do not appear in the sum."""
    node = gpu_server("a", (24,) * 8, ram_gib=2048, backends=("vllm-cuda",))
    refusal = plan(fleet(node), card(layer_mib=12000, backends=("vllm-cuda",)), ask()).refusal
    assert refusal is not None
    (short,) = refusal.nodes
    assert short.needed_bytes is not None
    assert short.usable_bytes is not None
    assert short.short_by_bytes == short.needed_bytes - short.usable_bytes
    assert short.usable_bytes <= 8 * 24 * GIB
    assert [pool.device_index for pool in short.counted] == list(range(8))
    assert short.counted[0].figures == {
        "total_bytes": 24 * GIB,
        "used_bytes": 0,
        "claimed_bytes": 0,
        "unseen_bytes": 0,
    }


def test_ram_beside_the_card_can_be_what_is_short() -> None:
    """The engine's process and the embedding do not fit 512 MiB."""
    node = gpu_server("a", (24,), ram_gib=0.5, backends=("llama_cpp-cuda",))
    model = card(layer_mib=10, embedding_mib=900, backends=("llama_cpp-cuda",))
    refusal = plan(fleet(node), model, ask()).refusal
    assert refusal is not None
    (short,) = refusal.nodes
    assert [pool.device_index for pool in short.counted] == [None]
    assert short.usable_bytes == 384 * MIB
    assert {part.name for part in short.parts} >= {"weights", "engine_floor"}


def test_an_over_reserved_card_tells_the_whole_shortage() -> None:
    """40 GiB claimed of 24: adding exactly what is reported makes it fit."""
    node = gpu_server("a", (24,), backends=("vllm-cuda",))
    model = card(layer_mib=100, backends=("vllm-cuda",))
    claimed = fleet(node, reservations=[ReservationFacts("i", "a", 0, 40 * GIB)])
    refusal = plan(claimed, model, ask()).refusal
    assert refusal is not None
    (short,) = refusal.nodes
    assert short.usable_bytes == 24 * GIB * 9 // 10 - 40 * GIB
    assert short.short_by_bytes is not None
    assert short.counted[0].figures["claimed_bytes"] == 40 * GIB

    def with_more(size: int) -> bool:
        more = replace(node.devices[0], total_bytes=24 * GIB + size)
        return plan(replace(claimed, nodes=(replace(node, devices=(more,)),)), model, ask()).best is not None

    assert with_more((short.short_by_bytes * 10 + 8) // 9 + 1)
    assert not with_more(short.short_by_bytes * 10 // 9 - 10)

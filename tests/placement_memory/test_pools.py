"""Usable memory per pool, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharfinger.placement.memory import host_pool, node_cap_left, usable
from wharfinger.placement.types import DeviceFacts, MemoryKind, NodeFacts, ReservationFacts

GIB = 1 << 30


def gpu(index: int = 0, total: int = 24, used: int = 0, **more: object) -> DeviceFacts:
    return DeviceFacts(
        index,
        "card",
        "cuda",
        MemoryKind.DISCRETE,
        total * GIB,
        used * GIB,
        **more,  # pyright: ignore[reportArgumentType]
    )


def node(*devices: DeviceFacts, total: int = 64, available: int = 60, **more: object) -> NodeFacts:
    return NodeFacts(
        "n1",
        "n1",
        ram_total_bytes=total * GIB,
        ram_available_bytes=available * GIB,
        devices=devices,
        **more,  # pyright: ignore[reportArgumentType]
    )


def claim(
    size: int, device: int | None = 0, *, observed: bool = False, node_id: str = "n1"
) -> ReservationFacts:
    return ReservationFacts("i", node_id, device, size * GIB, observed)


def sizes(machine: NodeFacts, backend: str, *claims: ReservationFacts) -> list[float | None]:
    return [
        None if pool.usable_bytes is None else round(pool.usable_bytes / GIB, 3)
        for pool in usable(machine, backend, claims)
    ]


def test_discrete_vram_is_the_smaller_of_free_and_nine_tenths() -> None:
    assert sizes(node(gpu()), "vllm-cuda") == [21.6]
    assert sizes(node(gpu(used=10)), "vllm-cuda") == [14.0]
    assert sizes(node(gpu(used=24)), "vllm-cuda") == [0.0]


def test_devices_are_separate_pools_in_order() -> None:
    pools = usable(node(gpu(1, used=8), gpu(0)), "llama_cpp-cuda", ())
    assert [(pool.device_index, pool.usable_bytes) for pool in pools] == [
        (0, 24 * GIB * 9 // 10),
        (1, 16 * GIB),
    ]


def test_reservations_are_charged_once() -> None:
    """Seen ones are in the observed use; unseen ones come on top; claims beyond the observed use still count."""
    machine = node(gpu(total=80, used=30))
    assert sizes(machine, "vllm-cuda") == [50.0]
    assert sizes(machine, "vllm-cuda", claim(30, observed=True)) == [42.0]  # 0.9 x 80 - 30
    assert sizes(machine, "vllm-cuda", claim(20)) == [30.0]  # 80 - 30 - 20
    # Claimed 60, touched 30 so far: the claim is the larger.
    assert sizes(machine, "vllm-cuda", claim(60, observed=True)) == [12.0]
    # Foreign use of 30 and an unseen claim of 45.
    assert sizes(machine, "vllm-cuda", claim(45)) == [5.0]
    assert sizes(machine, "vllm-cuda", claim(45, node_id="elsewhere"), claim(45, 1)) == [50.0]


def test_apple_memory_is_the_smaller_of_available_and_three_quarters() -> None:
    device = DeviceFacts(0, "M4 Max", "metal", MemoryKind.APPLE)
    machine = node(device, total=64, available=60)
    assert sizes(machine, "mlx") == [48.0]
    assert sizes(machine, "llama_cpp-metal") == [48.0]
    assert sizes(replace(machine, ram_available_bytes=20 * GIB), "mlx") == [20.0]
    # One memory: what the CPU engine holds is missing here too.
    assert sizes(machine, "mlx", claim(10, None, observed=True), claim(5, 0)) == [33.0]
    assert sizes(machine, "llama_cpp-cpu", claim(15, 0)) == [33.0]
    assert {pool.domain for pool in usable(machine, "mlx", ())} == {"ram"}


def test_apple_without_a_device_entry_uses_the_same_rule() -> None:
    pools = usable(node(total=32, available=30), "mlx", ())
    assert [(pool.device_index, pool.usable_bytes) for pool in pools] == [(None, 24 * GIB)]


def test_apu_counts_carve_out_and_gtt() -> None:
    """Strix Halo: 16 GiB carved out, 112 GiB of RAM of which 16 stay with the system."""
    device = DeviceFacts(0, "8060S", "rocm", MemoryKind.APU, 16 * GIB, 1 * GIB, 120 * GIB)
    machine = node(device, total=112, available=100)
    assert sizes(machine, "llama_server-rocm") == [pytest.approx(0.9 * 16 + 84, abs=0.001)]
    assert sizes(machine, "llama_server-vulkan") == sizes(machine, "llama_server-rocm")
    low = replace(machine, ram_available_bytes=10 * GIB)
    assert sizes(low, "llama_server-rocm") == [pytest.approx(14.4, abs=0.001)]


def test_gb10_takes_the_smallest_of_three() -> None:
    device = DeviceFacts(0, "NVIDIA GB10", "cuda", MemoryKind.GB10, 120 * GIB, 4 * GIB)
    assert sizes(node(device, total=120, available=110), "vllm-cuda") == [90.0]
    assert sizes(node(device, total=120, available=60), "vllm-cuda") == [44.0]
    busy = replace(device, used_bytes=100 * GIB)
    assert sizes(node(busy, total=120, available=110), "vllm-cuda") == [20.0]


def test_gb10_whose_driver_counts_no_memory_goes_by_the_ram() -> None:
    """``nvmlDeviceGetMemoryInfo`` answers "Not Supported" on a DGX Spark; telemetry then tells the RAM as the total."""
    device = DeviceFacts(0, "NVIDIA GB10", "cuda", MemoryKind.GB10, 120 * GIB, None)
    assert sizes(node(device, total=120, available=110), "vllm-cuda") == [90.0]
    assert sizes(node(device, total=120, available=60), "vllm-cuda") == [44.0]
    unread = replace(device, total_bytes=None)
    (pool,) = usable(node(unread, total=120, available=60), "vllm-cuda", ())
    assert (pool.usable_bytes, pool.missing) == (None, ("devices[0].total_bytes",))


def test_cpu_engines_use_ram_also_on_a_gpu_machine() -> None:
    machine = node(gpu(), total=64, available=60)
    assert sizes(machine, "llama_cpp-cpu") == [48.0]
    assert sizes(machine, "llama_cpp-cpu", claim(20, 0)) == [48.0]  # VRAM is other memory
    assert sizes(machine, "llama_cpp-cpu", claim(20, None)) == [28.0]
    assert host_pool(machine, [claim(20, None)]).usable_bytes == 28 * GIB
    assert host_pool(machine, ()).domain == "ram"
    assert {pool.domain for pool in usable(machine, "vllm-cuda", ())} == {"device:0"}


def test_tag_without_compute_follows_what_the_engine_advertises() -> None:
    machine = node(gpu(), backends=frozenset({"llama_cpp", "llama_cpp-cuda"}))
    assert sizes(machine, "llama_cpp") == [21.6]
    cpu_only = node(gpu(), backends=frozenset({"llama_cpp", "llama_cpp-cpu", "vllm-cuda"}))
    assert sizes(cpu_only, "llama_cpp") == [48.0]


def test_missing_figures_are_named_and_never_zero() -> None:
    unmeasured = DeviceFacts(0, "card", "cuda", MemoryKind.DISCRETE, 24 * GIB, None)
    (pool,) = usable(node(unmeasured), "vllm-cuda", ())
    assert (pool.usable_bytes, pool.missing) == (None, ("devices[0].used_bytes",))
    (pool,) = usable(node(), "vllm-cuda", ())
    assert (pool.usable_bytes, pool.missing) == (None, ("devices",))
    (pool,) = usable(NodeFacts("n", "n"), "llama_cpp-cpu", ())
    assert (pool.usable_bytes, pool.missing) == (None, ("ram_available_bytes", "ram_total_bytes"))
    apu = DeviceFacts(0, "8060S", "rocm", MemoryKind.APU, 16 * GIB, 1 * GIB, None)
    (pool,) = usable(NodeFacts("n", "n", devices=(apu,)), "llama_cpp-rocm", ())
    assert pool.missing == ("devices[0].gtt_total_bytes", "ram_available_bytes", "ram_total_bytes")


def test_operator_cap_is_over_all_pools() -> None:
    machine = node(gpu(0), gpu(1), memory_cap_bytes=30 * GIB)
    assert sizes(machine, "vllm-cuda", claim(20, 0)) == [1.6, 10.0]
    assert node_cap_left(machine, [claim(20, 0)]) == 10 * GIB
    assert node_cap_left(replace(machine, memory_cap_bytes=None), []) is None


def test_figures_that_were_counted_are_told() -> None:
    (pool,) = usable(node(gpu(total=80, used=30)), "vllm-cuda", [claim(20), claim(5, observed=True)])
    assert pool.counted == {
        "total_bytes": 80 * GIB,
        "used_bytes": 30 * GIB,
        "claimed_bytes": 25 * GIB,
        "unseen_bytes": 20 * GIB,
    }


gib = st.integers(0, 200)


@given(total=gib, used=gib, seen=gib, unseen=gib, more=gib)
def test_more_memory_and_fewer_claims_never_mean_less(
    total: int, used: int, seen: int, unseen: int, more: int
) -> None:
    def size(total: int, used: int, *claims: ReservationFacts) -> int:
        (pool,) = usable(node(gpu(total=total, used=used)), "vllm-cuda", claims)
        assert pool.usable_bytes is not None
        return pool.usable_bytes

    claims = (claim(seen, observed=True), claim(unseen))
    base = size(total, used, *claims)
    assert 0 <= base <= total * GIB * 9 // 10
    assert size(total + more, used, *claims) >= base
    assert size(total, used + more, *claims) <= base
    assert size(total, used, *claims, claim(more)) <= base
    assert size(total, used, claim(unseen)) >= base


def test_claims_on_a_discrete_card_leave_unified_memory_alone() -> None:
    """A Vulkan machine with a card and an APU: 20 GiB on the card are not 20 GiB of RAM."""
    apu = DeviceFacts(1, "8060S", "vulkan", MemoryKind.APU, 16 * GIB, 0, 120 * GIB)
    machine = node(replace(gpu(0), compute="vulkan"), apu, total=112, available=100)
    before = usable(machine, "llama_cpp-vulkan", ())
    after = usable(machine, "llama_cpp-vulkan", [claim(20, 0)])
    assert [pool.domain for pool in after] == ["device:0", "ram"]
    assert after[1].usable_bytes == before[1].usable_bytes
    assert host_pool(machine, [claim(20, 0)]).usable_bytes == host_pool(machine, ()).usable_bytes
    assert (after[0].usable_bytes or 0) < (before[0].usable_bytes or 0)
    (lower,) = [pool for pool in usable(machine, "llama_cpp-vulkan", [claim(20, 1)]) if pool.device_index]
    assert lower.usable_bytes == (before[1].usable_bytes or 0) - 20 * GIB


def test_an_over_reserved_pool_says_by_how_much() -> None:
    """Nothing is usable, and 18.4 GiB more would only make it nothing."""
    (pool,) = usable(node(gpu()), "vllm-cuda", [claim(40, 0)])
    assert pool.usable_bytes == 0
    assert pool.deficit_bytes == 40 * GIB - 24 * GIB * 9 // 10
    assert pool.left_bytes == -pool.deficit_bytes

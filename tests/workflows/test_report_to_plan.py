"""From what a node reports to a plan: a GPU whose driver does not tell its memory is never waited for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from support.fleets import GIB, ask, card
from wharfinger.fleet.agent import DeviceReport, EngineReport, NodeReport
from wharfinger.placement.planner import plan
from wharfinger.placement.types import PlanResult
from wharfinger.workflows.facts import fleet_snapshot, node_facts

FLAG = "accelerator_not_measured"
ORIN = DeviceReport(
    index=0, name="Orin (nvgpu)", vendor="nvidia", compute="cuda", memory_kind="discrete", total_bytes=None
)
AMD = DeviceReport(
    index=1, name="AMD GPU 0x164e", vendor="amd", compute="rocm", memory_kind="discrete", total_bytes=None
)
LOST = ORIN.model_copy(update={"index": 1, "name": "NVIDIA L4"})
FULL = ORIN.model_copy(update={"name": "NVIDIA L4", "total_bytes": 24 * GIB, "used_bytes": 23 * GIB})
FREE = FULL.model_copy(update={"used_bytes": 0})
UNREAD = FULL.model_copy(update={"used_bytes": None})


def planned(*devices: DeviceReport, layer_mib: int = 100) -> PlanResult:
    """The plan of 32 layers on a node of 64 GiB of RAM with engines for its devices and the CPU."""
    tags = (*(f"llama_cpp-{device.compute}" for device in devices), "llama_cpp-cpu")
    report = NodeReport(
        node_id="node_a",
        name="a",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        os="Linux",
        architecture="x86_64",
        cpu_model=None,
        cpu_count=8,
        cpu_percent=0.0,
        load_1m=0.0,
        ram_total_bytes=64 * GIB,
        ram_available_bytes=60 * GIB,
        swap_total_bytes=0,
        swap_available_bytes=0,
        disk_total_bytes=None,
        disk_free_bytes=None,
        devices=devices,
        engines=(EngineReport(engine="llama_cpp", backends=tags, version="1"),),
    )
    facts = node_facts(report, silent_s=0.0, held_models=frozenset())
    return plan(fleet_snapshot([facts], (), ()), card(backends=("llama_cpp",), layer_mib=layer_mib), ask())


@pytest.mark.parametrize(
    ("devices", "flagged"),
    [((ORIN,), True), ((AMD,), True), ((FULL, AMD), True), ((FULL, LOST), False)],
    ids=["one", "amd", "hybrid", "lost"],
)
def test_a_gpu_that_is_never_read_leaves_the_cpu(devices: tuple[DeviceReport, ...], flagged: bool) -> None:
    """The report is complete: its driver does not say, and asking again would not help."""
    best = planned(*devices).best
    assert best is not None
    assert best.ranks[0].backend == "llama_cpp-cpu"
    assert (FLAG in best.flags) is flagged


def test_a_gpu_that_is_read_is_used_beside_one_that_is_not() -> None:
    best = planned(FREE, LOST).best
    assert best is not None
    assert (best.ranks[0].backend, FLAG in best.flags) == ("llama_cpp-cuda", False)


def test_use_that_was_not_read_is_still_awaited() -> None:
    """The size is known, so the driver tells memory; the next sample may have the rest."""
    refusal = planned(UNREAD).refusal
    assert refusal is not None
    assert (refusal.code, refusal.category) == ("memory_unknown", "placement_info_pending")
    assert refusal.nodes[0].missing_facts == ("devices[0].used_bytes",)


def test_what_no_memory_of_the_machine_holds_is_short_of_memory() -> None:
    """625 GiB on a machine of 64: nothing that may still be read changes that."""
    refusal = planned(ORIN, layer_mib=20_000).refusal
    assert refusal is not None
    assert (refusal.code, refusal.category) == ("memory_short", "no_valid_placement")

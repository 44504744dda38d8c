"""Model weights that runners have mapped are not free memory, though the kernel says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.local_node import DEMO_SIZE_BYTES, demo_spec, wait_for_state
from wharfinger.fleet.agent import RunnerSpec, RunnerState, StopDeadlines
from wharfinger.fleet.host_memory import measure_ram, memory_limits
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.runner_memory import ModelProcess, mapped_model_bytes

GIB = 2**30
MIB = 2**20
KIB = 2**10
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows mapped file pages")


def status_files(proc: Path, **file_kib: int | None) -> Path:
    for name, kib in file_kib.items():
        (proc / name.removeprefix("p")).mkdir()
        line = "" if kib is None else f"RssFile:\t{kib:8d} kB\n"
        text = f"Name:\tpython\nVmSize:\t 3776 kB\nRssAnon:\t    148 kB\n{line}RssShmem:\t       0 kB\n"
        (proc / name.removeprefix("p") / "status").write_text(text)
    return proc


@linux_only
def test_each_model_counts_once_by_the_process_that_has_most_of_it(tmp_path: Path) -> None:
    proc = status_files(tmp_path, p1=100, p2=300, p3=50)
    processes = [ModelProcess(1, "/a"), ModelProcess(2, "/a"), ModelProcess(3, "/b"), ModelProcess(4, "/c")]
    assert mapped_model_bytes(processes, proc) == (350 * KIB, None)
    assert mapped_model_bytes([], proc) == (0, None)


@linux_only
def test_a_process_that_ended_maps_nothing_and_an_old_kernel_is_a_reason(tmp_path: Path) -> None:
    proc = status_files(tmp_path, p1=None)
    (proc / "2").mkdir()
    (proc / "2" / "status").write_text("Name:\tpython\nState:\tZ (zombie)\n")
    assert mapped_model_bytes([ModelProcess(2, "/a")], proc) == (0, None)
    assert mapped_model_bytes([ModelProcess(1, "/a")], proc) == (
        None,
        "this kernel does not show RssFile in /proc/PID/status",
    )


def test_mapped_pages_are_not_available() -> None:
    total, available = measure_ram(0)
    same_total, less = measure_ram(available // 2)
    assert same_total == total
    assert less == pytest.approx(available / 2, rel=0.3)
    assert measure_ram(2 * total) == (total, 0)


def test_mapped_pages_are_no_cache_that_a_control_group_gives_back(tmp_path: Path) -> None:
    for name, text in (("max", 8 * GIB), ("current", 3 * GIB), ("stat", f"anon 1\ninactive_file {GIB}")):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert memory_limits([tmp_path], GIB // 4) == [(8 * GIB, 2 * GIB + GIB // 4)]
    assert memory_limits([tmp_path], 5 * GIB) == [(8 * GIB, 3 * GIB)]


@linux_only
async def test_the_weights_of_a_real_model_are_reported_and_taken_off(agent: LocalAgent) -> None:
    assert (await agent.report()).mapped_model_bytes == 0
    first, second = demo_spec(), demo_spec()
    for spec in (first, second):
        await agent.start_runner(spec)
        await wait_for_state(agent, spec.runner_id, RunnerState.READY)
        before = psutil.virtual_memory().available
        loaded = await agent.report()
        available = max(before, psutil.virtual_memory().available)
        assert loaded.mapped_model_bytes is not None
        # The weights and the engine's own libraries; for two runners of one model still the same pages.
        assert DEMO_SIZE_BYTES * 0.9 < loaded.mapped_model_bytes < DEMO_SIZE_BYTES + 100 * MIB
        assert loaded.ram_available_bytes is not None
        # As much less than the system calls available; the rest of the machine may move a little meanwhile.
        assert loaded.ram_available_bytes < available - DEMO_SIZE_BYTES * 0.9 + 100 * MIB
    for spec in (first, second):
        await agent.stop_runner(spec.runner_id, StopDeadlines())
    assert (await agent.report()).mapped_model_bytes == 0


@linux_only
async def test_a_runner_that_loads_is_measured_too(
    agent: LocalAgent, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    started = await agent.start_runner(tiny_spec())
    assert started.state is not RunnerState.READY
    mapped = (await agent.report()).mapped_model_bytes
    assert mapped is not None
    assert 0 < mapped < 100 * MIB  # its interpreter, if nothing else

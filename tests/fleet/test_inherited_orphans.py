"""As process 1 of a container a control plane inherits what its runners leave behind; none of it stays a zombie."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from support.local_node import wait_for_state
from wharfinger.fleet.agent import RunnerSpec, RunnerState, StopDeadlines
from wharfinger.fleet.local import LocalAgent

_PR_SET_CHILD_SUBREAPER = 36
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process inherit orphans")


@pytest.fixture
def inheriting() -> Iterator[None]:
    """This process inherits orphans, as process 1 does."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0)


def children_in_group(group_id: int) -> list[int]:
    found: list[int] = []
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            if os.getpgid(child.pid) == group_id:
                found.append(child.pid)
    return found


@pytest.mark.usefixtures("inheriting")
@pytest.mark.parametrize("crashes", [False, True])
async def test_an_ended_runner_leaves_no_zombie(
    crashes: bool, agent: LocalAgent, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    spec = tiny_spec()
    await agent.start_runner(spec)
    report = await wait_for_state(agent, spec.runner_id, RunnerState.READY)
    assert report.pid is not None
    if crashes:
        os.kill(report.pid, signal.SIGKILL)
        await wait_for_state(agent, spec.runner_id, RunnerState.FAILED)
    else:
        await agent.stop_runner(spec.runner_id, StopDeadlines())
    assert children_in_group(report.pid) == []

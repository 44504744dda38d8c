"""No runner outlives its control plane, whatever the runner is doing when the control plane dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.local_node import demo_model_path
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.process_group import ProcessIdentity, group_members

SCRIPT = Path(__file__).with_name("doomed_control_plane.py")
GRACE_S = 15.0
"""When no engine process may be left any more. The contract is 2 s on a machine that has nothing else to do."""


def die_in(
    state: str, number: signal.Signals, data_dir: Path, model: Path, *more: str
) -> tuple[int, list[psutil.Process]]:
    """Run a control plane to its death; returns its exit code and what is left of its runner after the grace."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(data_dir), str(model), state, str(int(number)), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    runner_pid = int(process.stdout.readline())
    identity = ProcessIdentity.of(runner_pid) or ProcessIdentity(pid=runner_pid, created_unix_s=0.0)
    exit_code = process.wait(timeout=60)
    deadline = time.monotonic() + GRACE_S
    while (left := group_members(identity)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for line in process.stdout:
        os.kill(int(line), signal.SIGKILL)  # the stray child, which was there all the time
    return exit_code, left


@pytest.mark.parametrize(
    ("state", "model"),
    [
        ("spawned", "tiny"),
        ("RunnerLoading", "demo"),  # long enough that the engine holds its interpreter lock when death comes
        ("RunnerWarmingUp", "tiny"),
        ("RunnerReady", "tiny"),
    ],
)
def test_kill_9_leaves_no_engine_process(state: str, model: str, tmp_path: Path, tiny_model: Path) -> None:
    path = demo_model_path() if model == "demo" else tiny_model
    exit_code, left = die_in(state, signal.SIGKILL, tmp_path, path)
    assert exit_code == -signal.SIGKILL
    assert left == []


@pytest.mark.parametrize(
    ("number", "codes"),
    [(signal.SIGTERM, (-signal.SIGTERM,)), (signal.SIGINT, (1, -signal.SIGINT, 130))],
    ids=["SIGTERM", "Ctrl-C"],
)
@pytest.mark.parametrize("state", ["spawned", "RunnerReady"])
def test_other_ends_leave_none_either(
    state: str, number: signal.Signals, codes: tuple[int, ...], tmp_path: Path, tiny_model: Path
) -> None:
    exit_code, left = die_in(state, number, tmp_path, tiny_model)
    assert exit_code in codes
    assert left == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="without pidfds only the pipe tells of the death")
def test_a_stray_child_holding_the_pipe_does_not_keep_the_runner_alive(
    tmp_path: Path, tiny_model: Path
) -> None:
    _, left = die_in("RunnerReady", signal.SIGKILL, tmp_path, tiny_model, "fork")
    assert left == []


async def test_the_next_start_takes_the_directory_and_keeps_the_node_id(
    tmp_path: Path, tiny_model: Path
) -> None:
    die_in("RunnerReady", signal.SIGKILL, tmp_path, tiny_model)
    before = (tmp_path / "node_id").read_text().strip()
    agent = LocalAgent(tmp_path)
    assert await agent.start() == ()
    assert agent.node_id == before
    assert not (tmp_path / "runners" / "doomed" / "process.json").exists()
    chunk = await agent.read_log("doomed", 0, 100_000)
    assert "model loaded" in chunk.text
    assert chunk.ended
    await agent.close()


def test_killing_the_engine_alone_ends_its_guard(tmp_path: Path, tiny_model: Path) -> None:
    script = [sys.executable, str(SCRIPT), str(tmp_path), str(tiny_model), "RunnerReady", "0"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        runner_pid = int(process.stdout.readline())
        identity = ProcessIdentity.of(runner_pid)
        assert identity is not None
        deadline = time.monotonic() + 60
        while len(group_members(identity)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(runner_pid, signal.SIGKILL)
        deadline = time.monotonic() + GRACE_S
        while (left := group_members(identity)) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert left == []

"""The sweep ends what is recorded and proven, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wharfinger.fleet.agent import AgentError, RunnerSpec, StopDeadlines
from wharfinger.fleet.leftovers import KEPT_DIRECTORIES, sweep
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.process_group import ProcessIdentity, group_members

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
FORKING = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n    print('up', flush=True)\n    time.sleep(600)\n"
    "time.sleep(600)\n"
)


@contextmanager
def session_of(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that leads a session of its own, as runners do; it says ``up`` when it is."""
    with subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == "up\n"
        yield p
        p.kill()


def record(runners: Path, runner_id: str, identity: ProcessIdentity | None) -> Path:
    assert identity is not None
    path = runners / runner_id / "process.json"
    path.parent.mkdir(parents=True)
    path.write_text(identity.model_dump_json())
    return path


def test_a_recorded_process_and_its_children_are_ended(tmp_path: Path) -> None:
    with session_of(FORKING) as process:
        identity = ProcessIdentity.of(process.pid)
        path = record(tmp_path, "left", identity)
        assert identity is not None
        assert len(group_members(identity)) == 2
        assert sweep(tmp_path) == ("left",)
        assert group_members(identity) == []
        assert process.wait(60) == -signal.SIGKILL
        assert not path.exists()


def test_children_are_ended_when_their_leader_is_gone_already(tmp_path: Path) -> None:
    with session_of(FORKING) as process:
        identity = ProcessIdentity.of(process.pid)
        record(tmp_path, "left", identity)
        process.kill()
        process.wait()
        assert identity is not None
        assert len(group_members(identity)) == 1
        assert sweep(tmp_path) == ("left",)
        assert group_members(identity) == []


def test_a_number_that_another_process_has_now_is_not_touched(tmp_path: Path) -> None:
    with session_of(SLEEPER) as process:
        real = ProcessIdentity.of(process.pid)
        assert real is not None
        path = record(
            tmp_path, "old", ProcessIdentity(pid=real.pid, created_unix_s=real.created_unix_s - 3600)
        )
        assert sweep(tmp_path) == ()
        assert process.poll() is None
        assert not path.exists()


def test_a_process_nobody_recorded_is_not_touched(tmp_path: Path) -> None:
    with session_of(SLEEPER) as process:
        (tmp_path / "other").mkdir()
        assert sweep(tmp_path) == ()
        assert process.poll() is None


def test_a_damaged_record_is_dropped_and_the_others_are_swept(tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "process.json").write_text('{"pid": 1')
    with session_of(SLEEPER) as process:
        record(tmp_path, "left", ProcessIdentity.of(process.pid))
        assert sweep(tmp_path) == ("left",)
    assert not (tmp_path / "damaged" / "process.json").exists()


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_DIRECTORIES + 3):
        (tmp_path / f"runner-{number:02d}").mkdir()
        (tmp_path / f"runner-{number:02d}" / "log").write_text("x")
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == KEPT_DIRECTORIES


async def test_forgetting_keeps_the_newest_logs_and_those_of_known_runners(
    agent: LocalAgent, tiny_spec: Callable[..., RunnerSpec], tmp_path: Path
) -> None:
    runners = tmp_path / "data" / "runners"
    known, forgotten = tiny_spec(runner_id="known"), tiny_spec(runner_id="forgotten")
    for spec in (known, forgotten):
        await agent.start_runner(spec)
        await agent.stop_runner(spec.runner_id, StopDeadlines())
    for number in range(KEPT_DIRECTORIES):
        old = runners / f"old-{number:02d}"
        old.mkdir()
        os.utime(old, (1_000_000 + number, 1_000_000 + number))
    os.utime(runners / "known", (1, 1))
    await agent.forget_runner("forgotten")
    left = {path.name for path in runners.iterdir()}
    assert left == {"known", "forgotten", *(f"old-{number:02d}" for number in range(1, KEPT_DIRECTORIES))}


async def test_forgetting_works_without_the_directory(
    agent: LocalAgent, tiny_spec: Callable[..., RunnerSpec], tmp_path: Path
) -> None:
    await agent.start_runner(tiny_spec(runner_id="r"))
    await agent.stop_runner("r", StopDeadlines())
    (tmp_path / "data" / "runners").rename(tmp_path / "elsewhere")
    await agent.forget_runner("r")
    assert await agent.runners() == ()


async def test_start_ends_what_an_earlier_process_left(tmp_path: Path) -> None:
    with session_of(SLEEPER) as process:
        record(tmp_path / "runners", "left", ProcessIdentity.of(process.pid))
        agent = LocalAgent(tmp_path)
        assert await agent.start() == ("left",)
        assert process.wait(60) == -signal.SIGKILL
        assert await agent.runners() == ()
        await agent.close()


async def test_a_second_agent_is_refused_and_ends_nothing(tmp_path: Path) -> None:
    first, second = LocalAgent(tmp_path), LocalAgent(tmp_path)
    await first.start()
    with session_of(SLEEPER) as process:
        record(tmp_path / "runners", "live", ProcessIdentity.of(process.pid))
        with pytest.raises(AgentError, match="another wharf uses the data directory") as caught:
            await second.start()
        assert caught.value.code == "data_dir_in_use"
        assert process.poll() is None
    await first.close()
    await second.start()
    await second.close()

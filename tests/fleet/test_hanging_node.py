"""A driver or a disk that never answers costs one thread and one refusal, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from wharfinger.fleet import local
from wharfinger.fleet.agent import AgentError
from wharfinger.fleet.blocking import OneAtATime
from wharfinger.fleet.local import LocalAgent

HANGING_PROCESS = """
import asyncio, threading
from wharfinger.fleet.blocking import OneAtATime

async def main():
    try:
        await OneAtATime("hang", 0.1).run(threading.Event().wait)
    except TimeoutError:
        print("timed out")

asyncio.run(main())
"""


class Hang:
    """Stands in for a system call: hangs while it is told to, and counts its calls."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.calls = 0
        self.released = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        assert self.released.wait(30)
        return self._real(*args)


@contextmanager
def half_a_second(agent: LocalAgent) -> Iterator[None]:
    """Within this block the agent's driver and disks must answer within 0.5 s; outside they have their normal time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_ANSWER_S", 0.5)
        for calls in (agent._measurements, agent._file_checks):
            patch.setattr(calls, "_deadline_s", 0.5)
        yield


async def test_a_measurement_that_hangs_is_told_and_not_started_again(
    agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await agent.report()
    hang = Hang(psutil.disk_usage)
    monkeypatch.setattr(psutil, "disk_usage", hang)
    with half_a_second(agent):
        answers = await asyncio.gather(*(agent.report() for _ in range(3)), return_exceptions=True)
        with pytest.raises(
            AgentError, match=r"could not be measured within 0\.5 s: a driver or the disk"
        ) as late:
            await agent.report()
    assert late.value.code == "telemetry_timeout"
    assert [answer.code for answer in answers if isinstance(answer, AgentError)] == ["telemetry_timeout"] * 3
    assert hang.calls == 1
    hang.released.set()
    after = await agent.report()
    assert after.at > before.at
    assert hang.calls == 2  # what hung is old news: this is a measurement of its own


async def test_files_are_looked_for_on_the_node(agent: LocalAgent, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    paths = (str(model), str(tmp_path / "gone.gguf"), str(tmp_path), str(link), "/no\0path")
    assert await agent.has_files(paths) == (True, False, False, True, False)
    model.unlink()
    assert await agent.has_files(paths[:1]) == (False,)
    assert await agent.has_files(()) == ()


async def test_a_disk_that_hangs_is_told_and_not_asked_again_on_top(
    agent: LocalAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hang = Hang(os.path.isfile)
    monkeypatch.setattr(os.path, "isfile", hang)
    for _ in range(2):
        with (
            half_a_second(agent),
            pytest.raises(
                AgentError, match=r"could not look for 1 files within 0\.5 s: a disk hangs"
            ) as late,
        ):
            await agent.has_files((str(tmp_path / "a"),))
        assert late.value.code == "files_timeout"
    assert hang.calls == 1
    assert (await agent.report()).disk_free_bytes  # measuring does not wait for that disk
    hang.released.set()
    assert await agent.has_files((str(tmp_path / "a"),)) == (False,)


async def test_what_a_call_raises_reaches_its_caller_and_frees_the_turn() -> None:
    calls = OneAtATime[int]("test", 1.0)
    with pytest.raises(ValueError, match="invalid literal"):
        await calls.run(lambda: int("x"))
    assert await calls.run(lambda: 7) == 7


def test_a_hanging_call_does_not_keep_the_process_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING_PROCESS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\n", "")

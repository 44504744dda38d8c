"""A machine without descriptors, threads or processes left refuses a runner, and the refusal keeps nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from operations.polling import until
from wharfinger.fleet.agent import AgentError
from wharfinger.fleet.supervisor import Supervisor

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors")


class Refuses:
    """A system call that works ``good`` times and then has nothing left."""

    def __init__(self, real: Callable[..., object], good: int, error: Exception) -> None:
        self._real, self._good, self._error = real, good, error

    def __call__(self, *args: object, **kwargs: object) -> object:
        self._good -= 1
        if self._good < 0:
            raise self._error
        return self._real(*args, **kwargs)


def descriptors() -> set[str]:
    """What this process has open, by number and kind."""
    found: set[str] = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.add(f"{entry.name} {os.readlink(entry.path)}")
        except FileNotFoundError:
            continue  # the listing's own
    return {line for line in found if "/fd" not in line}


@pytest.mark.parametrize("good", [0, 1])
async def test_no_descriptor(
    good: int, misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    await refused(misbehaving, monkeypatch, os, "pipe", good, OSError(24, "Too many open files"))


async def test_no_thread(misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("can't start new thread")
    await refused(misbehaving, monkeypatch, threading.Thread, "start", 0, error)


async def test_no_process(misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(11, "Resource temporarily unavailable")
    await refused(misbehaving, monkeypatch, asyncio, "create_subprocess_exec", 0, error)


async def refused(
    misbehaving: Callable[..., Supervisor],
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    good: int,
    error: Exception,
) -> None:
    supervisor = misbehaving("silent")
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Refuses(getattr(owner, name), good, error))
        with pytest.raises(AgentError) as told:
            await supervisor.start()
    assert (told.value.code, str(told.value)) == (
        "spawn_failed",
        f"the runner's process could not be started: {error}",
    )
    await until(lambda: descriptors() == before)  # the thread of the log closes its own

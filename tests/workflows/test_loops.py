"""Background loops outlive their faults."""

from __future__ import annotations

import asyncio

import pytest

from wharfinger.store.errors import StoreUnavailable
from wharfinger.workflows.loops import MAX_PAUSE_S, forever


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), RuntimeError("a bug"), OSError("a disk")])
async def test_a_loop_goes_on_after_a_fault(fault: Exception) -> None:
    rounds = 0
    recovered = asyncio.Event()

    async def step() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise fault
        recovered.set()

    task = asyncio.create_task(forever("test", step, 0.01))
    async with asyncio.timeout(60):
        await recovered.wait()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rounds >= 2


@pytest.mark.parametrize(
    ("longest", "pauses_s"),
    [
        ({}, [2.0, 4.0, 8.0, 16.0, MAX_PAUSE_S, MAX_PAUSE_S]),
        ({"max_pause_s": 3.0}, [2.0, 3.0, 3.0, 3.0, 3.0, 3.0]),
    ],
)
async def test_pauses_grow_up_to_the_longest(
    monkeypatch: pytest.MonkeyPatch, longest: dict[str, float], pauses_s: list[float]
) -> None:
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        if len(slept_s) == len(pauses_s):
            raise asyncio.CancelledError

    async def fail() -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await forever("test", fail, 1.0, **longest)
    assert slept_s == pauses_s

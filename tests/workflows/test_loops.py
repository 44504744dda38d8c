"""Background loops outlive their faults."""

from __future__ import annotations

import asyncio

import pytest

from wharfinger.store.errors import StoreUnavailable
from wharfinger.workflows.loops import forever


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

"""Following an operation's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from operations.memory_store import MemoryStore
from wharfinger.operations.feed import follow
from wharfinger.operations.model import Lease, NewOperation, OperationEvent, UnknownOperation
from wharfinger.operations.port import ClaimRequest, WorkStore
from wharfinger.operations.transitions import Checkpoint, Start, Succeed


async def started(store: WorkStore) -> Lease:
    await store.submit(NewOperation("k", "thing", "r"))
    [operation] = await store.claim(ClaimRequest("w1", ["k"], [], 1, 30.0))
    assert operation.lease is not None
    await store.apply(operation.lease, Start())
    return operation.lease


async def step(store: WorkStore, lease: Lease, name: str) -> None:
    await store.apply(lease, Checkpoint(name, "succeeded", None, None, name))


async def collected(feed: AsyncIterator[OperationEvent | None]) -> list[tuple[int, str]]:
    return [(event.sequence, event.type) async for event in feed if event is not None]


async def test_a_finished_operation_is_told_from_the_start_and_ends(store: WorkStore) -> None:
    lease = await started(store)
    for number in range(250):
        await step(store, lease, f"s{number}")
    await store.apply(lease, Succeed(None))
    told = await collected(follow(store, lease.operation_id))
    assert [sequence for sequence, _ in told] == list(range(1, 254))
    assert told[-1] == (253, "succeeded")


async def test_a_feed_resumes_after_the_last_event_that_was_seen(store: WorkStore) -> None:
    lease = await started(store)
    await step(store, lease, "a")
    await store.apply(lease, Succeed(None))
    assert await collected(follow(store, lease.operation_id, 2)) == [(3, "step.succeeded"), (4, "succeeded")]
    assert await collected(follow(store, lease.operation_id, 4)) == []


async def test_local_commits_are_told_without_waiting_for_a_poll(store: WorkStore) -> None:
    lease = await started(store)
    feed = follow(store, lease.operation_id, 2, poll_s=3600)
    async with asyncio.timeout(60):
        for number in range(3):
            next_event = asyncio.create_task(anext(feed))
            await asyncio.sleep(0.02)
            await step(store, lease, f"s{number}")
            event = await next_event
            assert event is not None
            assert (event.sequence, event.message) == (3 + number, f"s{number}")
        rest = asyncio.create_task(collected(feed))
        await asyncio.sleep(0.02)
        await store.apply(lease, Succeed(None))
        assert await rest == [(6, "succeeded")]


async def test_a_silent_feed_shows_that_it_is_alive(store: WorkStore) -> None:
    lease = await started(store)
    feed = follow(store, lease.operation_id, 2, poll_s=0.01, keepalive_s=0.03)
    assert await anext(feed) is None
    await step(store, lease, "a")
    event = await anext(feed)
    while event is None:
        event = await anext(feed)
    assert event.sequence == 3
    await feed.aclose()
    assert store.signals._listeners == {}


async def test_an_operation_that_ends_between_two_reads_is_told_to_its_end() -> None:
    """Asked after the events were read, ``finished`` would hide those that came between."""

    class EndsMeanwhile(MemoryStore):
        lease: Lease

        async def events(self, operation_id: str, after_sequence: int = 0, limit: int = 100) -> Any:
            found = await super().events(operation_id, after_sequence, limit)
            if not self.records[operation_id].operation.state.terminal:
                await self.apply(self.lease, Succeed(None))
            return found

    store = EndsMeanwhile(lambda: datetime.now(UTC))
    store.lease = await started(store)
    told = await collected(follow(store, store.lease.operation_id, 2, poll_s=0.01))
    assert told == [(3, "succeeded")]


async def test_an_unknown_operation_is_said_at_once(store: WorkStore) -> None:
    with pytest.raises(UnknownOperation):
        await anext(follow(store, "op_nope"))

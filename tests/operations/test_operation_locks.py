"""Locks and broken rows in the real databases: nobody waits behind a frozen process or a row that cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select, text, update

from operations.polling import until
from support.postgres import fresh_database_url
from wharfinger.operations.model import Lease, LeaseLost, NewOperation, Operation, OperationState
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.store import OperationStore
from wharfinger.operations.transitions import Checkpoint, Start, Succeed
from wharfinger.store.database import Database
from wharfinger.store.errors import StoreUnavailable
from wharfinger.store.tables import instances, operations

State = OperationState


@pytest.fixture
async def postgres(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(await fresh_database_url("postgres", tmp_path))
    yield opened
    await opened.close()


def offer(owner: str, limit: int = 8) -> ClaimRequest:
    return ClaimRequest(owner, ["k"], [], limit, 30.0)


async def started(store: OperationStore, name: str = "r") -> Lease:
    await store.submit(NewOperation("k", "thing", name))
    [operation] = await store.claim(offer("w1"))
    assert operation.lease is not None
    await store.apply(operation.lease, Start())
    return operation.lease


FREEZES = """
import asyncio, os, signal, sys
from wharfinger.operations.model import Lease
from wharfinger.operations.store import OperationStore
from wharfinger.store.database import Database

async def main(url, operation_id):
    store = OperationStore(Database.open(url))
    async with store.database.begin() as connection:
        await store.hold(Lease(operation_id, "w1", 1), connection)
        os.kill(os.getpid(), signal.SIGSTOP)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_process_frozen_inside_a_transaction_does_not_keep_its_row(postgres: Database) -> None:
    store = OperationStore(postgres)
    lease = await started(store)
    url = postgres.engine.url.render_as_string()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FREEZES, url, lease.operation_id)
    try:
        await until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        for _ in range(3):
            with contextlib.suppress(StoreUnavailable):  # it waited for as long as it may, and may ask again
                await store.request_cancel(lease.operation_id)
        assert (await store.get(lease.operation_id)).state is State.CANCELLING
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_a_claim_passes_over_a_locked_row(postgres: Database) -> None:
    store = OperationStore(postgres)
    first, _ = await store.submit(NewOperation("k", "thing", "a"))
    second, _ = await store.submit(NewOperation("k", "thing", "b"))
    lock = select(operations).where(operations.c.operation_id == first.operation_id).with_for_update()
    async with postgres.begin() as connection, asyncio.timeout(30):
        await connection.execute(lock)
        assert [found.operation_id for found in await store.claim(offer("w1"))] == [second.operation_id]
    assert [found.operation_id for found in await store.claim(offer("w1"))] == [first.operation_id]


async def test_a_fenced_write_waits_for_the_row_and_then_looks_again(postgres: Database) -> None:
    """Without the lock it would read the old generation beside the takeover, and write over it."""
    store = OperationStore(postgres)
    lease = await started(store)
    taken = update(operations).where(operations.c.operation_id == lease.operation_id)
    async with postgres.begin() as connection:
        await connection.execute(taken.values(lease_owner="w2", lease_generation=2))
        writing = asyncio.create_task(store.apply(lease, Checkpoint("late", "succeeded", None, 50, "")))
        await somebody_waits_for_a_lock(postgres)
        assert not writing.done()
    with pytest.raises(LeaseLost):
        await writing
    assert await store.steps(lease.operation_id) == []
    assert (await store.get(lease.operation_id)).progress == 0


async def test_a_cancel_waits_for_the_row_and_then_reads_it(postgres: Database) -> None:
    """Without the lock it would read the row as it was, and write that back over what the holder has just committed."""
    store = OperationStore(postgres)
    lease = await started(store)
    writes = update(operations).where(operations.c.operation_id == lease.operation_id)
    async with postgres.begin() as connection:
        await connection.execute(writes.values(progress=60, lease_generation=5))
        cancelling = asyncio.create_task(store.request_cancel(lease.operation_id))
        await somebody_waits_for_a_lock(postgres)
        assert not cancelling.done()
    await cancelling
    cancelled = await store.get(lease.operation_id)
    assert (cancelled.progress, cancelled.lease_generation, cancelled.state) == (60, 5, State.CANCELLING)


async def somebody_waits_for_a_lock(database: Database) -> None:
    """Return once a session does; a minute later none will."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(60):
        while True:
            async with database.read() as connection:
                if (await connection.execute(waiting)).scalar_one():
                    return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("values", [{"state": "of_the_future"}, {"state": "failed"}])
async def test_a_broken_row_keeps_nobody_from_claiming(database: Database, values: dict[str, str]) -> None:
    store = OperationStore(database)
    broken, _ = await store.submit(NewOperation("k", "thing", "broken"))
    where = operations.c.operation_id == broken.operation_id
    async with database.begin() as connection:
        old = broken.created_at - timedelta(hours=1)
        await connection.execute(update(operations).where(where).values(due_at=old, **values))
    sound, _ = await store.submit(NewOperation("k", "thing", "sound"))
    assert [found.operation_id for found in await store.claim(offer("w1", limit=1))] == [sound.operation_id]
    assert await store.claim(offer("w1")) == []


async def test_a_broken_row_keeps_nobody_from_reaping(database: Database) -> None:
    store = OperationStore(database)
    leases = [await started(store, name) for name in ("broken", "sound")]
    ran_out = datetime.now(UTC) - timedelta(hours=1)
    async with database.begin() as connection:
        await connection.execute(update(operations).values(due_at=ran_out))
        where = operations.c.operation_id == leases[0].operation_id
        await connection.execute(update(operations).where(where).values(state="of_the_future"))
    assert await store.reap(limit=1) == 1
    assert (await store.get(leases[1].operation_id)).state is State.WAITING


async def test_what_a_living_instance_names_is_not_pruned(database: Database) -> None:
    store = OperationStore(database)
    lease = await started(store)
    await store.apply(lease, Succeed(None))
    at = datetime.now(UTC)
    async with database.begin() as connection:
        await connection.execute(instances.insert().values(instance_row(at, lease.operation_id)))
    assert await store.prune(-60) == 0
    async with database.begin() as connection:
        await connection.execute(update(instances).values(deleted_at=at))
    assert await store.prune(-60) == 1


async def test_what_made_a_living_instance_under_a_key_is_not_pruned(database: Database) -> None:
    """A repeated request finds it, also when the instance names a later launch. What had no key nobody looks for."""
    store = OperationStore(database)
    for key in (None, "key"):
        await store.submit(NewOperation("k", "instance", "a", idempotency_key=key))
        [operation] = await store.claim(offer("w1"))
        assert operation.lease is not None
        await store.apply(operation.lease, Start())
        await store.apply(operation.lease, Succeed(None))
    at = datetime.now(UTC)
    async with database.begin() as connection:
        await connection.execute(instances.insert().values(instance_row(at, "op_later")))
    assert await store.prune(-60) == 1
    assert (await store.submit(NewOperation("k", "instance", "a", idempotency_key="key")))[1] is False
    async with database.begin() as connection:
        await connection.execute(update(instances).values(deleted_at=at))
    assert await store.prune(-60) == 1


def instance_row(at: datetime, operation_id: str) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(("instance_id", "model_id", "card_digest"), "a")
    row |= {name: {} for name in ("card", "request", "plan")}
    return row | {"status": "ready", "operation_id": operation_id, "created_at": at, "updated_at": at}


@pytest.mark.parametrize("hours", [-1, 1])
async def test_the_clock_of_a_process_does_not_matter(
    database: Database, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Skewed(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(hours=hours)

        @classmethod
        def utcnow(cls) -> datetime:
            return cls.now().replace(tzinfo=None)

    real_ns = __import__("time").time_ns
    monkeypatch.setattr("time.time_ns", lambda: real_ns() + hours * 3600 * 10**9)
    monkeypatch.setattr("time.time", lambda: real_ns() / 1e9 + hours * 3600)
    for module in ("model", "transitions", "store", "rows", "attempt", "worker"):
        monkeypatch.setattr(f"wharfinger.operations.{module}.datetime", Skewed, raising=False)
    store = OperationStore(database)
    lease = await started(store)
    held: Operation = await store.get(lease.operation_id)
    assert held.lease_expires_at is not None
    assert 0 < (held.lease_expires_at - datetime.now(UTC)).total_seconds() < 31
    made_ms = int(held.operation_id.removeprefix("op_")[:12], 16)  # lists are in the order of the ids
    assert made_ms == int(held.created_at.timestamp() * 1000)
    assert await store.reap() == 0
    assert await store.claim(offer("w2")) == []
    await store.apply(lease, Checkpoint("one", "succeeded", None, 10, ""))
    await store.apply(lease, Succeed(None))
    assert await store.prune(1800) == 0

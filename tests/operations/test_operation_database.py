"""What only the store in the database can do: taking part in a transaction, lists, releases at start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from support.postgres import fresh_database_url
from wharfinger.operations.model import Conflict, NewOperation, Operation, OperationState
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.store import OperationStore
from wharfinger.operations.transitions import Checkpoint, Start, Succeed
from wharfinger.store.database import Database
from wharfinger.store.tables import operation_events, operation_steps, revoked_sessions

State = OperationState


@pytest.fixture
def store(database: Database) -> OperationStore:
    return OperationStore(database)


def new(name: str = "r", kind: str = "k", **changes: object) -> NewOperation:
    return NewOperation(kind, "thing", name, **changes)  # type: ignore[arg-type]


def offer(owner: str = "w1", limit: int = 100) -> ClaimRequest:
    return ClaimRequest(owner, ["k"], [], limit, 30.0)


def names(operations: Sequence[Operation]) -> list[str]:
    return [operation.resource_name for operation in operations]


RECORD = revoked_sessions.insert().values(session_id="a", expires_at=datetime(2030, 1, 1, tzinfo=UTC))
"""Stands for what an operation is about; the table needs no parents."""


async def recorded(database: Database) -> list[str]:
    async with database.read() as connection:
        return list((await connection.execute(select(revoked_sessions.c.session_id))).scalars())


async def test_a_submission_is_committed_together_with_what_it_is_about(
    store: OperationStore, database: Database
) -> None:
    async with database.begin() as connection:
        await connection.execute(RECORD)
        operation, created = await store.submit(new(), connection)
    assert created
    assert await recorded(database) == ["a"]
    assert (await store.get(operation.operation_id)).state is State.PENDING


async def test_a_rolled_back_transaction_leaves_no_operation(
    store: OperationStore, database: Database
) -> None:
    async def submit_and_fail() -> None:
        async with database.begin() as connection:
            await store.submit(new(), connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await submit_and_fail()
    assert (await store.list()).items == []
    _, created = await store.submit(new())
    assert created


async def test_a_conflict_leaves_the_callers_transaction_good(
    store: OperationStore, database: Database
) -> None:
    busy, _ = await store.submit(new())
    async with database.begin() as connection:
        await connection.execute(RECORD)
        with pytest.raises(Conflict) as refused:
            await store.submit(new(kind="other"), connection)
        await store.submit(new("free"), connection)
    assert refused.value.operation_id == busy.operation_id
    assert await recorded(database) == ["a"]
    assert names((await store.list()).items) == ["free", "r"]


async def test_conflicts_name_the_operation_and_say_what_to_do(store: OperationStore) -> None:
    first, _ = await store.submit(new(idempotency_key="key-1"))
    with pytest.raises(
        Conflict, match=rf"this idempotency key .* is operation {first.operation_id}; use a new key"
    ):
        await store.submit(new("other", idempotency_key="key-1"))
    with pytest.raises(
        Conflict, match=rf"thing 'r' has unresolved work: operation {first.operation_id} \(k, pending\)"
    ):
        await store.submit(new())


async def test_the_same_key_is_known_after_a_restart(tmp_path: Path) -> None:
    url = await fresh_database_url("sqlite", tmp_path)
    ids: list[str] = []
    for created_now in (True, False):
        database = Database.open(url)
        operation, created = await OperationStore(database).submit(new(idempotency_key="k"))
        await database.close()
        assert created is created_now
        ids.append(operation.operation_id)
    assert ids[0] == ids[1]


async def test_lists_are_filtered_and_paged_newest_first(store: OperationStore) -> None:
    for number in range(7):
        await store.submit(new(f"r{number}", kind="odd" if number % 2 else "k"))
        await asyncio.sleep(0.002)  # ids sort by the millisecond
    [claimed] = await store.claim(offer(limit=1))
    assert claimed.lease is not None
    await store.apply(claimed.lease, Start())
    await store.apply(claimed.lease, Succeed(None))

    assert names((await store.list(kind="odd")).items) == ["r5", "r3", "r1"]
    assert names((await store.list(states=[State.SUCCEEDED])).items) == ["r0"]
    assert names((await store.list(states=[State.SUCCEEDED, State.PENDING], kind="k")).items) == [
        "r6",
        "r4",
        "r2",
        "r0",
    ]
    assert names((await store.list(resource_type="thing", resource_name="r3")).items) == ["r3"]
    assert (await store.list(resource_type="nothing")).items == []

    pages: list[list[str]] = []
    cursor: str | None = None
    while True:
        page = await store.list(limit=3, cursor=cursor)
        pages.append(names(page.items))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert pages == [["r6", "r5", "r4"], ["r3", "r2", "r1"], ["r0"]]


async def test_a_page_that_is_exactly_full_is_the_last(store: OperationStore) -> None:
    for number in range(3):
        await store.submit(new(f"r{number}"))
    assert (await store.list(limit=3)).next_cursor is None


@pytest.mark.parametrize("limit", [0, 1001, -1])
async def test_a_limit_out_of_bounds_is_refused(store: OperationStore, limit: int) -> None:
    with pytest.raises(ValueError, match=rf"limit {limit} is not within 1\.\.1000"):
        await store.list(limit=limit)
    with pytest.raises(ValueError, match=rf"limit {limit} is not within 1\.\.1000"):
        await store.events("op_x", limit=limit)


async def test_leases_of_earlier_processes_are_released_at_once(store: OperationStore) -> None:
    for name in ("a", "b", "c"):
        await store.submit(new(name))
        await asyncio.sleep(0.002)  # claims go by the millisecond
    await store.claim(offer("inst_1:11:aa", limit=1))
    await store.claim(offer("inst_1:12:bb", limit=1))
    await store.claim(offer("instX1:13:cc", limit=1))  # the underscore is no wildcard
    assert await store.release_leases_of_previous_owner("inst_1:") == 2
    again = await store.claim(offer("inst_1:14:dd"))
    assert names(again) == ["a", "b"]
    assert [operation.attempt for operation in again] == [1, 1]


async def test_pruning_takes_steps_and_events_along(store: OperationStore, database: Database) -> None:
    await store.submit(new())
    [operation] = await store.claim(offer())
    assert operation.lease is not None
    for rule in (Start(), Checkpoint("s", "succeeded", {}, 1, ""), Succeed(None)):
        await store.apply(operation.lease, rule)
    assert await store.prune(-60) == 1
    async with database.read() as connection:
        for table in (operation_steps, operation_events):
            assert (await connection.execute(select(func.count()).select_from(table))).scalar_one() == 0


async def test_absent_values_are_null_in_the_database(store: OperationStore, database: Database) -> None:
    operation, _ = await store.submit(new())
    [claimed] = await store.claim(offer())
    assert claimed.lease is not None
    await store.apply(claimed.lease, Start())
    await store.apply(claimed.lease, Checkpoint("s", "succeeded", None, 1, ""))
    queries = {
        "SELECT count(*) FROM operations WHERE result IS NULL": 1,
        "SELECT count(*) FROM operation_steps WHERE payload IS NULL": 1,
        f"SELECT count(*) FROM operation_events WHERE operation_id = '{operation.operation_id}'": 3,
    }
    async with database.read() as connection:
        for query, count in queries.items():
            assert (await connection.execute(text(query))).scalar_one() == count

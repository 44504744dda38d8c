"""Recurring work: one operation per period, whoever submits it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from operations.conftest import Harness
from operations.polling import reached, until
from wharfinger.operations.model import NewOperation, OperationState, UnknownOperation
from wharfinger.operations.port import ClaimRequest, WorkStore
from wharfinger.operations.recurring import Recurrence, Retention, Schedule
from wharfinger.operations.transitions import Start, Succeed
from wharfinger.operations.worker import Worker

SWEEP = Recurrence("sweep", 60.0, {"cloud": "all"})


async def finish(store: WorkStore, kind: str) -> str:
    [operation] = await store.claim(ClaimRequest("w1", [kind], [], 1, 30.0))
    assert operation.lease is not None
    await store.apply(operation.lease, Start())
    await store.apply(operation.lease, Succeed(None))
    return operation.operation_id


async def test_replicas_make_one_operation_per_period(store: WorkStore) -> None:
    schedules = [Schedule(store, [SWEEP]) for _ in range(3)]
    made = await asyncio.gather(*(schedule.submit(SWEEP, 7) for schedule in schedules))
    assert len({operation.operation_id for operation in made if operation is not None}) == 1
    first = await finish(store, "sweep")
    repeated = await schedules[0].submit(SWEEP, 7)
    assert repeated is not None
    assert repeated.operation_id == first
    following = await schedules[1].submit(SWEEP, 8)
    assert following is not None
    assert (following.operation_id != first, following.request) == (True, {"cloud": "all"})


async def test_a_period_is_skipped_while_the_last_one_is_still_at_work(store: WorkStore) -> None:
    schedule = Schedule(store, [SWEEP])
    assert await schedule.submit(SWEEP, 7) is not None
    assert await schedule.submit(SWEEP, 8) is None
    await finish(store, "sweep")
    assert await schedule.submit(SWEEP, 9) is not None


async def test_a_schedule_submits_each_period_as_it_comes(store: WorkStore) -> None:
    ran: list[str] = []

    class Sweep:
        async def run(self, context: object) -> None:
            ran.append(context.operation.idempotency_key)  # type: ignore[attr-defined]

        async def cleanup(self, context: object) -> None:
            """Nothing to undo."""

    worker = Worker(store, {"tick": Sweep()}, owner="w1", poll_s=0.02)
    tasks = [
        asyncio.create_task(worker.run()),
        *(asyncio.create_task(Schedule(store, [Recurrence("tick", 0.3)]).run()) for _ in range(2)),
    ]
    await until(lambda: len(ran) >= 3)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert len(ran) == len(set(ran))
    assert ran == sorted(ran)


async def test_retention_deletes_what_ended_long_ago(store: WorkStore, harness: Harness) -> None:
    old, _ = await store.submit(NewOperation("k", "thing", "old"))
    await finish(store, "k")
    await harness.let_pass(old.operation_id, 86_401)
    kept, _ = await store.submit(NewOperation("k", "thing", "kept"))
    await finish(store, "k")
    worker = Worker(store, {Retention.KIND: Retention(store, 86_400)}, owner="w1", poll_s=0.02)
    running = asyncio.create_task(worker.run())
    operation = await Schedule(store, []).submit(Recurrence(Retention.KIND, 3600), 1)
    assert operation is not None
    done = await reached(store, operation.operation_id)
    await worker.stop()
    await running
    assert (done.state, done.result) == (OperationState.SUCCEEDED, {"deleted": 1})
    with pytest.raises(UnknownOperation):
        await store.get(old.operation_id)
    assert (await store.get(kept.operation_id)).state is OperationState.SUCCEEDED

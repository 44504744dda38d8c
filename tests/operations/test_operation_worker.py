"""What a worker does with handlers that succeed, wait, fail, hang and are cancelled, on every store."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from operations.conftest import Harness
from operations.memory_store import MemoryStore
from operations.polling import reached, until
from support.postgres import fresh_database_url
from wharfinger.operations.attempt import AttemptSettings
from wharfinger.operations.backoff import Backoff
from wharfinger.operations.handler import Handler, OperationContext
from wharfinger.operations.model import (
    LeaseLost,
    NewOperation,
    OperationState,
    PermanentError,
    RetryableError,
    Waiting,
)
from wharfinger.operations.port import WorkStore
from wharfinger.operations.store import OperationStore
from wharfinger.operations.worker import Worker, new_owner
from wharfinger.store.database import Database

State = OperationState
Body = Callable[[OperationContext], Awaitable[dict[str, Any] | None]]
QUICK = AttemptSettings(
    lease_s=6.0, backoff=Backoff(base_s=0.01, cap_s=0.05), cancel_grace_s=0.3, store_retry_s=0.02
)


class Recorded:
    """A handler made of two functions, and how often each was called."""

    def __init__(self, run: Body, cleanup: Body | None = None) -> None:
        self.runs = 0
        self.cleanups = 0
        self._run = run
        self._cleanup = cleanup

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        self.runs += 1
        return await self._run(context)

    async def cleanup(self, context: OperationContext) -> None:
        self.cleanups += 1
        if self._cleanup is not None:
            await self._cleanup(context)


@contextlib.asynccontextmanager
async def working(store: WorkStore, handler: Handler, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs until the end of the block."""
    options = {"owner": new_owner("test"), "poll_s": 0.05, "settings": QUICK} | options
    worker = Worker(store, {"k": handler}, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await worker.stop()
        await task


async def submitted(store: WorkStore, name: str = "r", **changes: Any) -> str:
    operation, _ = await store.submit(NewOperation("k", "thing", name, **changes))
    return operation.operation_id


async def types(store: WorkStore, operation_id: str) -> list[str]:
    return [event.type for event in await store.events(operation_id, limit=1000)]


def raising(*errors: Exception, result: dict[str, Any] | None = None) -> Body:
    """A body that raises these in turn and then returns ``result``."""
    left = list(errors)

    async def body(context: OperationContext) -> dict[str, Any] | None:
        if left:
            raise left.pop(0)
        return result

    return body


async def until_cancelled(context: OperationContext) -> None:
    """Sleeps like a handler should: wakes when somebody cancels."""
    while not context.cancelled:
        await context.sleep(60)


async def test_success_completes(store: WorkStore) -> None:
    async def body(context: OperationContext) -> dict[str, Any]:
        assert context.operation.request == {"model": "m"}
        await context.checkpoint("fetch", progress=30, payload={"size_bytes": 5}, message="fetched")
        await context.checkpoint("probe", "running", progress=60)
        return {"endpoint": "e", "steps": list(context.steps)}

    handler = Recorded(body)
    async with working(store, handler):
        operation = await reached(store, await submitted(store, request={"model": "m"}))
    assert (operation.state, operation.progress, operation.attempt) == (State.SUCCEEDED, 100, 1)
    assert operation.result == {"endpoint": "e", "steps": ["fetch", "probe"]}
    assert (handler.runs, handler.cleanups) == (1, 0)
    assert await types(store, operation.operation_id) == [
        *("submitted", "claimed", "step.succeeded", "step.running", "succeeded")
    ]


@pytest.mark.parametrize(
    ("errors", "state", "code"),
    [
        (
            [KeyError("k"), PermanentError("refused", "no"), RetryableError("busy", "b")],
            State.FAILED,
            "refused",
        ),
        ([Waiting("w", "w", retry_after_s=60), RetryableError("busy", "b")], State.FAILED, "busy"),
        ([Waiting("w", "w", retry_after_s=60), KeyError("k")], State.FAILED, "unexpected_error"),
        (
            [Waiting("w", "w", retry_after_s=60), ExceptionGroup("g", [OSError()])],
            State.FAILED,
            "unexpected_error",
        ),
        ([Waiting("w", "w", retry_after_s=60)], State.WAITING, None),
        ([LeaseLost("lost"), PermanentError("refused", "no")], State.RUNNING, None),
    ],
)
async def test_the_gravest_error_of_a_task_group_decides(
    errors: list[Exception], state: State, code: str | None
) -> None:
    store = MemoryStore(lambda: datetime.now(UTC))

    async def body(context: OperationContext) -> dict[str, Any] | None:
        raise ExceptionGroup("unhandled errors in a TaskGroup", errors)

    calm = replace(QUICK, lease_s=60)  # a traceback may take its time to be printed
    async with working(store, Recorded(body), settings=calm) as worker:
        operation_id = await submitted(store, max_attempts=1)
        if state is State.RUNNING:
            await until(lambda: store.records[operation_id].operation.state is state and not worker._attempts)
        operation = await reached(store, operation_id, state)
    assert operation.error_code == code


async def test_a_retryable_error_is_tried_again_from_its_checkpoints(store: WorkStore) -> None:
    async def body(context: OperationContext) -> dict[str, Any]:
        if "fetch" not in context.steps:
            await context.checkpoint("fetch", payload={"path": "/p"})
            raise RetryableError("provider_busy", "later")
        payload = context.steps["fetch"].payload
        assert payload is not None
        return payload

    async with working(store, Recorded(body)):
        operation = await reached(store, await submitted(store))
    assert (operation.state, operation.result, operation.attempt) == (State.SUCCEEDED, {"path": "/p"}, 2)


async def test_attempts_are_bounded_and_the_last_error_is_kept(store: WorkStore) -> None:
    handler = Recorded(raising(*(RetryableError("provider_busy", f"error {n}") for n in range(9))))
    async with working(store, handler):
        operation = await reached(store, await submitted(store, max_attempts=3))
    assert (operation.state, operation.attempt) == (State.FAILED, 3)
    assert (operation.error_code, operation.error_message, operation.error_retryable) == (
        *("provider_busy", "error 2", True),
    )
    assert (handler.runs, handler.cleanups) == (3, 1)


async def test_waiting_costs_no_attempt(store: WorkStore) -> None:
    handler = Recorded(
        raising(*(Waiting("capacity", "none", retry_after_s=0.01) for _ in range(6)), result={"ok": 1})
    )
    async with working(store, handler):
        operation = await reached(store, await submitted(store, max_attempts=1))
    assert (operation.state, operation.attempt, handler.runs) == (State.SUCCEEDED, 1, 7)
    assert operation.waited_s >= 0.06


async def test_waiting_has_a_deadline_of_its_own(store: WorkStore) -> None:
    handler = Recorded(raising(*(Waiting("capacity", "none", retry_after_s=0.05) for _ in range(1000))))
    async with working(store, handler):
        operation = await reached(store, await submitted(store, wait_deadline_s=0.2))
    assert (operation.state, operation.error_code) == (State.FAILED, "wait_deadline_exceeded")
    assert handler.cleanups == 1


async def test_a_permanent_error_is_not_tried_again_and_is_cleaned_up(store: WorkStore) -> None:
    handler = Recorded(raising(PermanentError("model_mismatch", "serves another model")))
    async with working(store, handler):
        operation = await reached(store, await submitted(store))
    assert (operation.state, operation.error_code, operation.error_retryable) == (
        *(State.FAILED, "model_mismatch", False),
    )
    assert (handler.runs, handler.cleanups) == (1, 1)


async def test_an_unexpected_error_is_retried_and_its_text_is_not_stored(store: WorkStore) -> None:
    handler = Recorded(raising(*(KeyError("token-hunter2") for _ in range(9))))
    async with working(store, handler):
        operation = await reached(store, await submitted(store, max_attempts=2))
    assert (operation.state, operation.error_code, handler.runs) == (State.FAILED, "unexpected_error", 2)
    assert operation.error_message == "KeyError in the handler of k; the server's log has the details"
    stored = [*(await store.events(operation.operation_id)), operation]
    assert "hunter2" not in repr(stored)


async def test_a_result_that_cannot_be_stored_is_the_handlers_error(tmp_path: Path) -> None:
    database = Database.open(await fresh_database_url("sqlite", tmp_path))
    store = OperationStore(database)
    handler = Recorded(raising(result={"not json": object()}))
    async with working(store, handler, settings=AttemptSettings(backoff=QUICK.backoff)):
        operation = await reached(store, await submitted(store, max_attempts=2))
    await database.close()
    assert (operation.state, operation.error_code, handler.runs) == (State.FAILED, "unexpected_error", 2)


async def test_any_text_of_a_handler_can_be_stored(store: WorkStore) -> None:
    async def body(context: OperationContext) -> None:
        await context.checkpoint("s" * 500, "odd" * 100, message="nul \0 surrogate \ud800")
        raise PermanentError("c" * 500, "nul \0 surrogate \ud800")

    async with working(store, Recorded(body)):
        operation = await reached(store, await submitted(store))
    assert (operation.state, operation.error_code) == (State.FAILED, "c" * 500)
    if isinstance(store, OperationStore):
        assert operation.error_message == "nul \ufffd surrogate ?"


async def test_cleanup_is_tried_until_it_succeeds(store: WorkStore) -> None:
    errors = [
        PermanentError("still_there", "it is listed"),
        ValueError("v"),
        Waiting("drain", "2 requests", retry_after_s=0),
    ]
    handler = Recorded(raising(PermanentError("refused", "no")), raising(*errors))
    async with working(store, handler):
        operation = await reached(store, await submitted(store, max_attempts=1))
    assert (operation.state, operation.error_code, operation.error_message) == (State.FAILED, "refused", "no")
    assert (handler.cleanups, operation.cleanup_failures) == (4, 2)
    events = await store.events(operation.operation_id)
    assert [(event.type, event.message) for event in events if event.type.startswith("cleanup")] == [
        ("cleanup_failed", "still_there: it is listed"),
        ("cleanup_failed", "ValueError in the handler of k; the server's log has the details"),
        ("cleanup_waiting", "2 requests"),
    ]


async def test_the_lease_is_kept_during_long_work_and_long_cleanup(store: WorkStore) -> None:
    calm = replace(QUICK, lease_s=4.0)  # kept by a heartbeat every third of it

    async def long(context: OperationContext) -> None:
        await asyncio.sleep(calm.lease_s + 0.5)

    async def long_and_bad(context: OperationContext) -> None:
        await long(context)
        raise PermanentError("refused", "no")

    handler = Recorded(long_and_bad, long)
    async with working(store, handler, settings=calm), working(store, handler, settings=calm):
        operation = await reached(store, await submitted(store))
    assert (handler.runs, handler.cleanups, operation.lease_generation) == (1, 1, 1)
    assert "lease_expired" not in await types(store, operation.operation_id)


async def test_cancel_wakes_a_handler_that_sleeps_and_runs_cleanup(store: WorkStore) -> None:
    async def cleanup(context: OperationContext) -> None:
        assert not context.cancelled
        await context.sleep(0.05)

    handler = Recorded(until_cancelled, cleanup)
    async with working(store, handler, settings=AttemptSettings()):
        operation_id = await submitted(store)
        await reached(store, operation_id, State.RUNNING)
        await store.request_cancel(operation_id)
        operation = await reached(store, operation_id)
    assert (operation.state, handler.runs, handler.cleanups) == (State.CANCELLED, 1, 1)
    assert await types(store, operation_id) == ["submitted", "claimed", "cancel_requested", "cancelled"]


async def test_cancel_ends_a_handler_that_does_not_listen(store: WorkStore) -> None:
    async def deaf(context: OperationContext) -> None:
        await asyncio.sleep(3600)

    handler = Recorded(deaf)
    async with working(store, handler):
        operation_id = await submitted(store)
        await reached(store, operation_id, State.RUNNING)
        await store.request_cancel(operation_id)
        operation = await reached(store, operation_id)
    assert (operation.state, handler.runs, handler.cleanups) == (State.CANCELLED, 1, 1)


async def test_cancel_during_a_wait_runs_cleanup_only(store: WorkStore) -> None:
    handler = Recorded(raising(Waiting("capacity", "none", retry_after_s=600)))
    async with working(store, handler):
        operation_id = await submitted(store)
        await reached(store, operation_id, State.WAITING)
        await store.request_cancel(operation_id)
        operation = await reached(store, operation_id)
    assert (operation.state, handler.runs, handler.cleanups) == (State.CANCELLED, 1, 1)


async def test_a_failing_cleanup_keeps_a_cancelled_operation_unresolved(store: WorkStore) -> None:
    ready = asyncio.Event()

    async def cleanup(context: OperationContext) -> None:
        if not ready.is_set():
            raise RetryableError("still_there", "it is listed")

    async with working(store, Recorded(until_cancelled, cleanup)):
        operation_id = await submitted(store)
        await reached(store, operation_id, State.RUNNING)
        await store.request_cancel(operation_id)
        async with asyncio.timeout(60):
            while (unresolved := await store.get(operation_id)).cleanup_failures < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (unresolved.state, unresolved.completed_at) == (State.CANCELLING, None)
        ready.set()
        assert (await reached(store, operation_id)).state is State.CANCELLED


async def test_a_stopped_worker_hands_its_work_back_without_costing_an_attempt(store: WorkStore) -> None:
    started = asyncio.Event()

    async def body(context: OperationContext) -> dict[str, Any]:
        if "one" not in context.steps:
            await context.checkpoint("one")
            started.set()
            await asyncio.sleep(3600)
        return {"attempt": context.operation.attempt}

    handler = Recorded(body)
    async with working(store, handler):
        operation_id = await submitted(store, max_attempts=1)
        await started.wait()
    released = await store.get(operation_id)
    assert (released.state, released.waiting_reason, released.lease_owner, released.attempt) == (
        *(State.WAITING, "worker_stopped", None, 0),
    )
    async with working(store, handler):
        operation = await reached(store, operation_id)
    assert (operation.state, operation.result, handler.cleanups) == (State.SUCCEEDED, {"attempt": 1}, 0)


async def test_a_stopped_worker_leaves_unclaimed_work_alone(store: WorkStore) -> None:
    async with working(store, Recorded(raising())) as worker:
        await worker.stop()
        operation_id = await submitted(store)
        await asyncio.sleep(0.15)
    assert (await store.get(operation_id)).state is State.PENDING


async def test_a_worker_that_lost_its_lease_ends_the_handler_and_writes_nothing(
    store: WorkStore, harness: Harness
) -> None:
    ended = asyncio.Event()
    raised: list[type[BaseException]] = []

    async def body(context: OperationContext) -> None:
        try:
            await asyncio.sleep(3600)
        except BaseException as error:
            raised.append(type(error))
            ended.set()
            raise

    async with working(store, Recorded(body)):
        operation_id = await submitted(store)
        await reached(store, operation_id, State.RUNNING)
        await harness.let_pass(operation_id, 3600)
        await store.reap()
        await ended.wait()
        await reached(store, operation_id, State.RUNNING)  # taken over, by the same worker as it happens
        assert raised == [asyncio.CancelledError]
        assert await types(store, operation_id) == ["submitted", "claimed", "lease_expired", "claimed"]


async def test_a_checkpoint_after_the_lease_is_lost_raises_in_the_handler(
    store: WorkStore, harness: Harness
) -> None:
    caught: list[type[BaseException]] = []
    go_on = asyncio.Event()

    async def body(context: OperationContext) -> dict[str, Any]:
        if caught:
            return {"by": "second"}
        await go_on.wait()
        try:
            await context.checkpoint("late")
        except LeaseLost as error:
            caught.append(type(error))
            raise
        return {"by": "first"}

    async with working(store, Recorded(body)):
        operation_id = await submitted(store)
        await reached(store, operation_id, State.RUNNING)
        await harness.let_pass(operation_id, 3600)
        go_on.set()
        operation = await reached(store, operation_id)
    assert caught == [LeaseLost]
    assert (operation.state, operation.result, operation.attempt) == (State.SUCCEEDED, {"by": "second"}, 2)
    assert "step.succeeded" not in await types(store, operation_id)


async def test_two_workers_share_the_work_and_run_each_operation_once(store: WorkStore) -> None:
    ran: list[str] = []

    async def body(context: OperationContext) -> None:
        ran.append(context.operation.operation_id)
        await asyncio.sleep(0.01)

    ids = [await submitted(store, f"r{number}") for number in range(20)]
    async with working(store, Recorded(body), concurrency=3), working(store, Recorded(body), concurrency=3):
        for operation_id in ids:
            assert (await reached(store, operation_id)).state is State.SUCCEEDED
    assert sorted(ran) == sorted(ids)


async def test_no_more_run_at_a_time_than_allowed(store: WorkStore) -> None:
    running = 0
    most = 0

    async def body(context: OperationContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    ids = [await submitted(store, f"r{number}") for number in range(9)]
    async with working(store, Recorded(body), concurrency=3):
        for operation_id in ids:
            await reached(store, operation_id)
    assert most == 3


async def test_an_identity_outlives_the_attempt_that_wrote_it(store: WorkStore) -> None:
    made: list[dict[str, Any]] = []

    async def body(context: OperationContext) -> None:
        made.append(await context.persist_identity("machine", {"key": f"key-{context.operation.attempt}"}))
        if len(made) < 3:
            raise RetryableError("busy", "later")

    async with working(store, Recorded(body)):
        await reached(store, await submitted(store))
    assert made == [{"key": "key-1"}] * 3


async def test_affinity_is_honoured(store: WorkStore) -> None:
    operation_id = await submitted(store, affinity="node-1")
    async with working(store, Recorded(raising()), affinities=["node-2"]):
        await asyncio.sleep(0.2)
        assert (await store.get(operation_id)).state is State.PENDING
        async with working(store, Recorded(raising()), affinities=["node-1"]):
            assert (await reached(store, operation_id)).state is State.SUCCEEDED


async def test_local_work_starts_without_waiting_for_a_poll(store: WorkStore) -> None:
    async with working(store, Recorded(raising()), poll_s=3600), asyncio.timeout(60):
        operation = await reached(store, await submitted(store))
    assert operation.state is State.SUCCEEDED


def test_owners_differ_for_one_process() -> None:
    first, second = new_owner("replica-1"), new_owner("replica-1")
    assert first.startswith(f"replica-1:{os.getpid()}:")
    assert first != second

"""How a worker keeps its lease, to the second, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from operations.memory_store import MemoryStore
from operations.virtual_time import run_virtually
from wharfinger.operations.attempt import AttemptSettings
from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.handler import OperationContext
from wharfinger.operations.model import Lease, NewOperation, Operation, OperationState, OperationStep, Waiting
from wharfinger.operations.moves import InvalidTransition
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.transitions import Heartbeat
from wharfinger.operations.worker import Worker
from wharfinger.store.errors import StoreUnavailable

State = OperationState
START = datetime(2030, 1, 1, tzinfo=UTC)


def seconds() -> float:
    return asyncio.get_running_loop().time()


class Outages(MemoryStore):
    """Does not take writes during some spans of time; keeps the times of those it took."""

    def __init__(self, *spans: tuple[float, float]) -> None:
        super().__init__(lambda: START + timedelta(seconds=seconds()))
        self.heartbeats: list[float] = []
        self._spans = spans

    async def apply(self, lease: Lease, rule: Rule) -> Change:
        self._check()
        change = await super().apply(lease, rule)
        if isinstance(rule, Heartbeat):
            self.heartbeats.append(seconds())
        return change

    async def steps(self, operation_id: str) -> list[OperationStep]:
        self._check()
        return list(await super().steps(operation_id))

    def _check(self) -> None:
        if any(begin <= seconds() < end for begin, end in self._spans):
            raise StoreUnavailable("an outage")


class Sleeper:
    """Sleeps for its time and says when each of its runs ended, and how."""

    def __init__(self, run_s: float) -> None:
        self.ends: list[tuple[float, str]] = []
        self._run_s = run_s

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        try:
            await asyncio.sleep(self._run_s)
        except asyncio.CancelledError:
            self.ends.append((seconds(), "ended"))
            raise
        self.ends.append((seconds(), "returned"))
        return {"attempt": context.operation.attempt}

    async def cleanup(self, context: OperationContext) -> None:
        """Nothing to undo."""


def play(store_of: Callable[[], Outages], handler: Any, lasting_s: float) -> tuple[Outages, Operation]:
    """One operation and one worker with the default lease of 30 s, for so long."""

    async def scene() -> tuple[Outages, Operation]:
        store = store_of()
        worker = Worker(store, {"k": handler}, owner="w1", settings=AttemptSettings())
        running = asyncio.create_task(worker.run())
        operation, _ = await store.submit(NewOperation("k", "thing", "r", max_attempts=2))
        await asyncio.sleep(lasting_s)
        operation = await store.get(operation.operation_id)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return store, operation

    return run_virtually(scene())


def test_a_heartbeat_comes_every_third_of_the_lease() -> None:
    store, operation = play(Outages, Sleeper(65), 70)
    assert store.heartbeats == pytest.approx([10, 20, 30, 40, 50, 60], abs=0.01)
    assert (operation.state, operation.result) == (State.SUCCEEDED, {"attempt": 1})


def test_an_outage_shorter_than_the_lease_costs_nothing() -> None:
    """The lease counts from the renewal that got through, not from the first try."""
    handler = Sleeper(65)
    store, operation = play(lambda: Outages((5, 29), (31, 50)), handler, 70)
    assert store.heartbeats[0] == pytest.approx(29, abs=0.6)
    assert handler.ends == [(pytest.approx(65, abs=0.01), "returned")]
    assert (operation.state, operation.attempt, operation.lease_generation) == (State.SUCCEEDED, 1, 1)


def test_an_outage_longer_than_the_lease_ends_the_handler_when_it_runs_out() -> None:
    handler = Sleeper(65)
    _, operation = play(lambda: Outages((15, 60)), handler, 130)
    assert handler.ends[0] == (pytest.approx(40, abs=0.01), "ended")
    assert [how for _, how in handler.ends] == ["ended", "returned"]
    assert (operation.state, operation.result) == (State.SUCCEEDED, {"attempt": 2})


def test_a_lease_counts_from_before_its_renewal_was_sent() -> None:
    """The store renewed it at 10 s and only the answer was late: at 40 s somebody else may have it."""

    class AnswersLate(Outages):
        async def apply(self, lease: Lease, rule: Rule) -> Change:
            change = await super().apply(lease, rule)
            if isinstance(rule, Heartbeat):
                await asyncio.sleep(9)
            return change

    handler = Sleeper(65)
    store, _ = play(lambda: AnswersLate((12, 100)), handler, 60)
    assert store.heartbeats == [pytest.approx(10, abs=0.01)]
    assert handler.ends == [(pytest.approx(40, abs=0.01), "ended")]


def test_a_cleanup_is_not_ended_by_the_grace_of_the_cancel_that_led_to_it() -> None:
    class Cleans(Sleeper):
        async def run(self, context: OperationContext) -> dict[str, Any] | None:
            while not context.cancelled:
                await context.sleep(60)
            return None

        async def cleanup(self, context: OperationContext) -> None:
            self.ends.append((seconds(), "begun"))
            await context.sleep(0.5)
            self.ends.append((seconds(), "returned"))

    async def scene() -> tuple[list[tuple[float, str]], Operation]:
        store, handler = Outages(), Cleans(0)
        settings = AttemptSettings(cancel_grace_s=0.1)
        worker = Worker(store, {"k": handler}, owner="w1", settings=settings)
        running = asyncio.create_task(worker.run())
        operation, _ = await store.submit(NewOperation("k", "thing", "r"))
        await asyncio.sleep(5)
        await store.request_cancel(operation.operation_id)
        await asyncio.sleep(5)
        operation = await store.get(operation.operation_id)
        await worker.stop()
        await running
        return handler.ends, operation

    ends, operation = run_virtually(scene())
    assert ends == [(pytest.approx(5, abs=0.01), "begun"), (pytest.approx(5.5, abs=0.01), "returned")]
    assert operation.state is State.CANCELLED


def test_an_outcome_waits_for_the_store_to_come_back() -> None:
    _, operation = play(lambda: Outages((9, 25)), Sleeper(12), 40)
    assert (operation.state, operation.attempt) == (State.SUCCEEDED, 1)
    assert operation.completed_at is not None
    assert (operation.completed_at - START).total_seconds() == pytest.approx(25, abs=0.6)


def test_an_outage_that_a_handler_meets_itself_costs_no_attempt() -> None:
    class Reads(Sleeper):
        tries = 0

        async def run(self, context: OperationContext) -> dict[str, Any] | None:
            self.tries += 1
            if self.tries < 20:
                raise StoreUnavailable("an outage")
            return await super().run(context)

    _, operation = play(Outages, Reads(1), 60)
    assert (operation.state, operation.attempt) == (State.SUCCEEDED, 1)


def test_a_wait_is_over_to_the_second() -> None:
    class Waits(Sleeper):
        async def run(self, context: OperationContext) -> dict[str, Any] | None:
            self.ends.append((seconds(), "looked"))
            raise Waiting("capacity", "none", retry_after_s=7.3)

    handler = Waits(0)
    play(Outages, handler, 30)
    assert [at for at, _ in handler.ends] == pytest.approx([0, 7.3, 14.6, 21.9, 29.2], abs=0.05)


def test_sleeping_on_after_a_cancel_lets_the_loop_go_on() -> None:
    """A handler that does not look at ``cancelled`` must not freeze its process; see the gateway, which shares it."""

    class Drains(Sleeper):
        async def run(self, context: OperationContext) -> dict[str, Any] | None:
            while not context.cancelled:
                await context.sleep(60)
            for delay_s in (0.0, 0.05, 60.0):
                self.ends.append((seconds(), "slept"))
                turn = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(turn.set_result, None)
                await context.sleep(delay_s)
                assert turn.done()
            self.ends.append((seconds(), "slept"))
            return None

    async def scene() -> list[float]:
        store, handler = Outages(), Drains(0)
        worker = Worker(store, {"k": handler}, owner="w1")
        running = asyncio.create_task(worker.run())
        operation, _ = await store.submit(NewOperation("k", "thing", "r"))
        await asyncio.sleep(5)
        await store.request_cancel(operation.operation_id)
        await asyncio.sleep(5)
        assert (await store.get(operation.operation_id)).state is State.CANCELLED
        await worker.stop()
        await running
        return [at for at, _ in handler.ends]

    begun, *ends = run_virtually(scene())
    assert [at - begun for at in ends] == pytest.approx([0, 0.05, 0.15], abs=0.001)


def test_a_reaper_works_also_while_every_slot_is_taken() -> None:
    async def scene() -> Operation:
        store = Outages()
        worker = Worker(store, {"k": Sleeper(300)}, owner="w1", concurrency=1)
        running = asyncio.create_task(worker.run())
        await store.submit(NewOperation("k", "thing", "mine"))
        await asyncio.sleep(1)
        dead, _ = await store.submit(NewOperation("other", "thing", "of the dead"))
        await store.claim(ClaimRequest("dead", ["other"], [], 1, 30.0))
        await asyncio.sleep(45)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return await store.get(dead.operation_id)

    operation = run_virtually(scene())
    assert (operation.state, operation.lease_owner) == (State.WAITING, None)


def test_a_worker_outlives_a_claim_and_a_reap_that_break() -> None:
    class Breaks(Outages):
        def _break(self) -> None:
            if 5 <= seconds() < 15:
                raise InvalidTransition("a mistake of ours")

        async def claim(self, request: ClaimRequest) -> Sequence[Operation]:
            self._break()
            return await super().claim(request)

        async def reap(self, limit: int = 100) -> int:
            self._break()
            return await super().reap(limit)

    async def scene() -> Operation:
        store = Breaks()
        running = asyncio.create_task(Worker(store, {"k": Sleeper(1)}, owner="w1").run())
        await asyncio.sleep(10)
        operation, _ = await store.submit(NewOperation("k", "thing", "r"))
        await asyncio.sleep(15)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return await store.get(operation.operation_id)

    assert run_virtually(scene()).state is State.SUCCEEDED


def test_a_handler_that_was_cancelled_by_something_of_its_own_has_failed() -> None:
    class SelfCancelled(Sleeper):
        async def run(self, context: OperationContext) -> dict[str, Any] | None:
            raise asyncio.CancelledError

    _, operation = play(Outages, SelfCancelled(0), 20)
    assert (operation.state, operation.error_code) == (State.FAILED, "unexpected_error")


def test_stop_does_not_wait_for_ever_for_a_handler_that_will_not_end() -> None:
    class Stubborn(Sleeper):
        async def run(self, context: OperationContext) -> dict[str, Any] | None:
            until = seconds() + 100
            while seconds() < until:
                try:
                    await asyncio.sleep(until - seconds())
                except asyncio.CancelledError:
                    continue
            return None

    async def scene() -> tuple[float, Operation]:
        store = Outages()
        worker = Worker(store, {"k": Stubborn(0)}, owner="w1")
        running = asyncio.create_task(worker.run())
        operation, _ = await store.submit(NewOperation("k", "thing", "r"))
        await asyncio.sleep(1)
        await worker.stop(timeout_s=5)
        stopped_at = seconds()
        operation = await store.get(operation.operation_id)
        await running
        return stopped_at, operation

    stopped_at, operation = run_virtually(scene())
    assert stopped_at == pytest.approx(6, abs=0.1)
    assert operation.lease_owner == "w1"  # it may still be at work, so nobody else may have it yet

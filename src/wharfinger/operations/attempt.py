"""One attempt at one leased operation: run the handler or its cleanup, keep the lease, write the outcome.

The attempt ends its handler when the lease is lost (and then writes nothing), when the worker stops (and then hands the
operation back), and when a cancel was asked for and the handler has not returned within its grace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import structlog

from wharfinger.operations.backoff import Backoff
from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.handler import Handler
from wharfinger.operations.model import Lease, LeaseLost, Operation, OperationError, OperationStep, Waiting
from wharfinger.operations.port import WorkStore
from wharfinger.operations.signals import cancel_of, wait_for
from wharfinger.operations.transitions import (
    Checkpoint,
    Fail,
    FinishCleanup,
    Heartbeat,
    PersistIdentity,
    Release,
    Retry,
    RetryCleanup,
    Start,
    Succeed,
    Wait,
)
from wharfinger.store.errors import StoreUnavailable

_T = TypeVar("_T")
_SLEEP_AFTER_CANCEL_S = 0.1
"""Longest sleep once a cancel was asked for: soon over, and yet a handler that goes on sleeping blocks nobody."""
_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """How a worker runs its attempts."""

    lease_s: float = 30.0
    backoff: Backoff = field(default_factory=Backoff)
    cancel_grace_s: float = 10.0
    """Seconds a handler has to return by itself after a cancel was asked for."""
    store_retry_s: float = 0.5
    """Pause before a write is tried again that the store did not take."""

    @property
    def heartbeat_s(self) -> float:
        """Seconds between renewals of the lease."""
        return self.lease_s / 3


class _Interrupted(Exception):
    """The handler was ended from outside, and the lease is still ours."""


def _gravest(error: Exception) -> Exception:
    """The one error that decides, of those that a handler's TaskGroup raised together; or ``error`` itself."""
    if not isinstance(error, ExceptionGroup):
        return error
    together = cast("ExceptionGroup[Exception]", error).exceptions
    return min((_gravest(inner) for inner in together), key=_gravity)


def _gravity(error: Exception) -> int:
    """0 is the gravest. What nobody planned for is tried again, so it ranks beside what is to be tried again."""
    if isinstance(error, LeaseLost):
        return 0
    if isinstance(error, OperationError):
        return 2 if error.retryable else 1
    return 4 if isinstance(error, (Waiting, StoreUnavailable)) else 3


class Attempt:
    """The context of a handler (see ``OperationContext``), and what runs it."""

    def __init__(
        self,
        store: WorkStore,
        operation: Operation,
        handler: Handler,
        settings: AttemptSettings,
        valid_until: float,
    ) -> None:
        """``valid_until`` is when the lease runs out, in the event loop's time."""
        assert operation.lease is not None
        self.operation = operation
        self.outcome = operation
        """The operation as this attempt last saw it."""
        self._lease: Lease = operation.lease
        self._store = store
        self._handler = handler
        self._settings = settings
        self._steps: dict[str, OperationStep] = {}
        self._cancel = asyncio.Event()
        self._cleaning = operation.cleaning_for is not None
        self._lost = False
        self._stopped = False
        self._ended_from_outside = False
        self._work: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._watchdog = self._loop.call_at(valid_until, self._lose)

    async def run(self) -> None:
        """Run to an outcome and write it, or to the loss of the lease and write nothing."""
        heartbeats = asyncio.create_task(self._heartbeats())
        try:
            await self._attempt()
        except LeaseLost:
            _log.warning(
                "lease_lost", operation_id=self._lease.operation_id, generation=self._lease.generation
            )
        finally:
            self._watchdog.cancel()
            heartbeats.cancel()
            with suppress(asyncio.CancelledError):
                await heartbeats

    def stop(self) -> None:
        """End the handler and hand the operation back."""
        self._stopped = True
        self._end_work()

    # What a handler sees.

    @property
    def lease(self) -> Lease:
        """What a handler's own transactions are fenced with; see ``OperationStore.hold``."""
        return self._lease

    @property
    def cancelled(self) -> bool:
        """True once somebody asked to cancel; never during cleanup, which has to run to its end."""
        return self._cancel.is_set() and not self._cleaning

    @property
    def steps(self) -> Mapping[str, OperationStep]:
        """Checkpoints so far, those of earlier attempts included."""
        return self._steps

    async def checkpoint(
        self,
        step: str,
        status: str = "succeeded",
        *,
        payload: dict[str, Any] | None = None,
        progress: int | None = None,
        message: str = "",
    ) -> None:
        """Record a step, its event and the progress in one transaction; unchanged, nothing is written."""
        await self._apply(Checkpoint(step, status, payload, progress, message))

    async def persist_identity(self, step: str, identity: dict[str, Any]) -> dict[str, Any]:
        """Write an external identity once; returns the one that is stored."""
        change = await self._apply(PersistIdentity(step, identity))
        assert change.step is not None
        assert change.step.payload is not None
        return change.step.payload

    async def sleep(self, delay_s: float) -> None:
        """Sleep while the lease is kept; outside cleanup a cancel ends it early, without raising."""
        if self._cleaning:
            await asyncio.sleep(delay_s)
            return
        if self._cancel.is_set():
            await asyncio.sleep(min(delay_s, _SLEEP_AFTER_CANCEL_S))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._cancel.wait()

    # How it is run.

    async def _attempt(self) -> None:
        await self._apply(Start())
        if self._lease.generation > 1:
            stored = await self._patiently(lambda: self._store.steps(self._lease.operation_id))
            self._steps = {step.name: step for step in stored}
        if self.outcome.cleaning_for is None:
            await self._write_outcome(await self._run_handler())
        if self.outcome.cleaning_for is not None and self.outcome.lease == self._lease:
            self._cleaning = True
            await self._apply(await self._run_cleanup())

    async def _run_handler(self) -> Rule:
        try:
            return Succeed(await self._supervise(self._handler.run(self)))
        except LeaseLost:
            raise
        except _Interrupted:
            # After a cancel the outcome does not matter: the rule sees the cancel, and cleanup follows.
            return Release() if self._stopped else Succeed(None)
        except Waiting as waiting:
            return Wait(waiting.reason, str(waiting), waiting.retry_after_s)
        except StoreUnavailable as error:
            return Wait("store_unavailable", str(error), self._settings.store_retry_s)
        except OperationError as error:
            if not error.retryable:
                return Fail(error.code, str(error))
            return self._retry(error.code, str(error))
        except Exception as error:
            return self._retry("unexpected_error", self._unexpected(error))

    async def _write_outcome(self, outcome: Rule) -> None:
        try:
            await self._apply(outcome)
        except LeaseLost:
            raise
        except (
            Exception
        ) as error:  # a result that is no JSON, say: the handler's mistake, and it must be seen
            await self._apply(self._retry("unexpected_error", self._unexpected(error)))

    def _retry(self, code: str, message: str) -> Rule:
        return Retry(code, message, self._settings.backoff.delay_s(self.outcome.attempt))

    async def _run_cleanup(self) -> Rule:
        delay_s = self._settings.backoff.delay_s(self.outcome.cleanup_failures + 1)
        try:
            await self._supervise(self._handler.cleanup(self))
        except LeaseLost:
            raise
        except _Interrupted:
            return Release()
        except Waiting as waiting:
            return RetryCleanup(str(waiting), waiting.retry_after_s, failed=False)
        except StoreUnavailable as error:
            return RetryCleanup(str(error), self._settings.store_retry_s, failed=False)
        except OperationError as error:
            return RetryCleanup(f"{error.code}: {error}", delay_s, failed=True)
        except Exception as error:
            return RetryCleanup(self._unexpected(error), delay_s, failed=True)
        return FinishCleanup()

    async def _supervise(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run handler code as a task of its own, which :meth:`_interrupt` can end."""
        if self._lost or self._stopped:
            work.close()
            self._raise_if_lost()
            raise _Interrupted
        self._work = asyncio.create_task(work)
        self._ended_from_outside = False
        try:
            return await self._work
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise  # the whole attempt is being cancelled
            if not self._ended_from_outside:
                raise RuntimeError("the handler awaited something that was cancelled") from error
            self._raise_if_lost()
            raise _Interrupted from error
        except Exception as error:
            self._raise_if_lost()
            if self._ended_from_outside:
                raise _Interrupted from error  # an error that only the interruption made
            if (gravest := _gravest(error)) is not error:
                raise gravest from error
            raise
        finally:
            self._work = None

    def _end_work(self) -> None:
        if self._work is not None:
            self._ended_from_outside = True
            self._work.cancel()

    def _lose(self) -> None:
        self._lost = True
        self._end_work()

    def _end_overdue_work(self) -> None:
        if not self._cleaning:  # cleanup has to run to its end
            self._end_work()

    def _raise_if_lost(self) -> None:
        if self._lost:
            raise LeaseLost(
                f"{self._lease.owner} could not renew its lease on {self._lease.operation_id} in time"
            )

    async def _heartbeats(self) -> None:
        with self._store.signals.listen(cancel_of(self._lease.operation_id)) as cancel:
            while True:
                await wait_for(cancel, self._settings.heartbeat_s)
                try:
                    await self._patiently(self._renew)
                except LeaseLost:
                    self._lose()
                    return

    async def _renew(self) -> None:
        before = self._loop.time()
        change = await self._store.apply(self._lease, Heartbeat(self._settings.lease_s))
        # Counted from before the write, so never later than what the database believes.
        self._watchdog.cancel()
        self._watchdog = self._loop.call_at(before + self._settings.lease_s, self._lose)
        self._notice_cancel(change.operation)

    async def _apply(self, rule: Rule) -> Change:
        change = await self._patiently(lambda: self._store.apply(self._lease, rule))
        self.outcome = change.operation
        if change.step is not None:
            self._steps[change.step.name] = change.step
        self._notice_cancel(change.operation)
        return change

    def _notice_cancel(self, operation: Operation) -> None:
        if operation.cancel_requested and not self._cancel.is_set():
            self._cancel.set()
            self._loop.call_later(self._settings.cancel_grace_s, self._end_overdue_work)

    async def _patiently(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call the store again while it is unavailable and the lease may still be ours."""
        while True:
            self._raise_if_lost()
            try:
                return await call()
            except StoreUnavailable as error:
                _log.warning("store_unavailable", operation_id=self._lease.operation_id, error=str(error))
                await asyncio.sleep(self._settings.store_retry_s)

    def _unexpected(self, error: Exception) -> str:
        """What may be stored of an error nobody planned for: its text could hold a secret, so only its type."""
        _log.error(
            "handler_raised", operation_id=self._lease.operation_id, kind=self.operation.kind, exc_info=error
        )
        return f"{type(error).__name__} in the handler of {self.operation.kind}; the server's log has the details"

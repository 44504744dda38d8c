"""Every way an operation can change, written once.

A *rule* is a small value: the states it may start from, and a pure function from the operation and the database's
time to a :class:`Change`. Stores load, check the fence, apply a rule and write what it says; they decide nothing.

Two dimensions tell where an operation stands: ``state``, and ``cleaning_for``, which names the end its cleanup leads
to. A cancel shows as state ``cancelling``; the cleanup after a failure goes on as ``running`` and ``waiting``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from wharfinger.operations.changes import Change, EventDraft
from wharfinger.operations.model import NewOperation, Operation, OperationState, OperationStep
from wharfinger.operations.moves import (
    HELD,
    InvalidTransition,
    ended,
    failing,
    moved,
    require,
    require_cleaning,
    require_held,
    unleased,
)

State = OperationState


class _Stepless:
    """A rule that looks at no step."""

    __slots__ = ()

    @property
    def step(self) -> str | None:
        """None."""
        return None


def submitted(new: NewOperation, operation_id: str, now: datetime) -> Change:
    """The change that brings a new operation into being, in state ``pending``."""
    operation = Operation(
        operation_id=operation_id,
        kind=new.kind,
        resource_type=new.resource_type,
        resource_name=new.resource_name,
        state=State.PENDING,
        request=new.request,
        result=None,
        progress=0,
        message="",
        waiting_reason=None,
        error_code=None,
        error_message=None,
        error_retryable=None,
        attempt=0,
        max_attempts=new.max_attempts,
        cancel_requested=False,
        affinity=new.affinity,
        idempotency_key=new.idempotency_key,
        lease_owner=None,
        lease_generation=0,
        lease_expires_at=None,
        next_attempt_at=now + timedelta(seconds=new.delay_s),
        created_at=now,
        updated_at=now,
        completed_at=None,
        wait_deadline_s=new.wait_deadline_s,
        cleanup_if_unstarted=new.cleanup_if_unstarted,
    )
    return Change(
        operation, (EventDraft("submitted", f"{new.kind} for {new.resource_type} {new.resource_name}"),)
    )


@dataclass(frozen=True, slots=True)
class Claim(_Stepless):
    """Take a due operation that nobody holds, for ``lease_s`` seconds."""

    owner: str
    lease_s: float

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """A wait that ends here is added to ``waited_s``; cleanup does not count as an attempt."""
        require(operation, self, State.PENDING, State.WAITING, State.CANCELLING)
        if operation.lease_owner is not None:
            raise InvalidTransition(f"{operation.operation_id} is held by {operation.lease_owner}")
        since = operation.waiting_since
        cleaning = operation.cleaning_for is not None
        after = moved(
            operation,
            now,
            state=operation.state if operation.state is State.CANCELLING else State.LEASED,
            attempt=operation.attempt if cleaning else operation.attempt + 1,
            waited_s=operation.waited_s + ((now - since).total_seconds() if since else 0.0),
            waiting_since=None,
            lease_owner=self.owner,
            lease_generation=operation.lease_generation + 1,
            lease_expires_at=now + timedelta(seconds=self.lease_s),
            next_attempt_at=None,
        )
        if since is not None or (cleaning and operation.cleanup_failures):
            return Change(after)  # polling must not fill the log
        what = "cleanup" if cleaning else f"attempt {after.attempt} of {after.max_attempts}"
        return Change(after, (EventDraft("claimed", f"{what} by {self.owner}"),))


@dataclass(frozen=True, slots=True)
class Expire(_Stepless):
    """Take an operation away from a holder whose lease has run out (or whose process is known to be gone)."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """The attempt counts as used: a handler that takes its process down must not do so for ever.

        One that was claimed and never started (the claim's answer was lost, say) is given back.
        """
        require_held(operation, self, *HELD)
        event = EventDraft(
            "lease_expired", f"worker {operation.lease_owner} stopped renewing its lease", "warning"
        )
        after = unleased(operation, now, 0.0, "worker_lost")
        if operation.cleaning_for is None and operation.state is State.LEASED:
            return Change(replace(after, attempt=max(0, operation.attempt - 1)), (event,))
        if operation.cleaning_for is None and operation.attempt >= operation.max_attempts:
            error = (after.error_code, after.error_message, after.error_retryable)
            if after.error_code is None:
                error = ("worker_lost", "the worker that ran the last attempt stopped without a word", True)
            return Change(failing(after, now, *error), (event, _exhausted(operation)))
        return Change(after, (event,))


@dataclass(frozen=True, slots=True)
class Release(_Stepless):
    """Hand back an operation whose handler was stopped on purpose; the attempt is given back."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """Another worker, or the next start, may claim it at once."""
        require_held(operation, self, *HELD)
        attempt = operation.attempt if operation.cleaning_for else max(0, operation.attempt - 1)
        after = replace(unleased(operation, now, 0.0, "worker_stopped"), attempt=attempt)
        return Change(after, (EventDraft("released", f"worker {operation.lease_owner} stopped"),))


@dataclass(frozen=True, slots=True)
class Start(_Stepless):
    """The holder begins to run the handler or its cleanup."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """``leased`` becomes ``running``; ``cancelling`` stays.

        A start whose answer was lost is asked for again and finds ``running``: the fence has proved that it is the
        same holder, so nothing changes.
        """
        require_held(operation, self, State.LEASED, State.RUNNING, State.CANCELLING)
        if operation.state is State.RUNNING:
            return Change(operation)
        cancelling = operation.state is State.CANCELLING
        return Change(moved(operation, now, state=State.CANCELLING if cancelling else State.RUNNING))


@dataclass(frozen=True, slots=True)
class Heartbeat(_Stepless):
    """Keep the lease for another ``lease_s`` seconds; not a sign of progress, so ``updated_at`` stays."""

    lease_s: float

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """Extend the lease."""
        require_held(operation, self, *HELD)
        return Change(replace(operation, lease_expires_at=now + timedelta(seconds=self.lease_s)))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Record a step, its event and the progress. Repeating one unchanged writes nothing."""

    step: str
    status: str
    payload: dict[str, Any] | None
    progress: int | None
    message: str

    def __post_init__(self) -> None:
        if self.progress is not None and not 0 <= self.progress <= 100:
            raise ValueError(f"progress {self.progress} of step {self.step!r} is not within 0..100")

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None) -> Change:
        """Progress is a high-water mark and stays below 100 until the operation has succeeded."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        progress = max(operation.progress, min(self.progress or 0, 99))
        step = OperationStep(self.step, self.status, self.payload, operation.attempt, now, self.message)
        if stored is not None and progress == operation.progress and _same_step(stored, step):
            return Change(operation, step=stored)
        event = EventDraft(f"step.{self.status}", self.message or self.step, payload={"step": self.step})
        return Change(moved(operation, now, progress=progress, message=self.message), (event,), step)


@dataclass(frozen=True, slots=True)
class PersistIdentity:
    """Write an external identity once; later attempts get the first one back.

    It has a step of its own, so that no checkpoint can overwrite it.
    """

    name: str
    identity: dict[str, Any]

    @property
    def step(self) -> str:
        """The step that holds it."""
        return f"{self.name}.identity"

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None) -> Change:
        """The stored identity is the payload of the returned step."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        if stored is not None and stored.payload is not None:
            return Change(operation, step=stored)
        step = OperationStep(self.step, "succeeded", self.identity, operation.attempt, now)
        event = EventDraft("identity", f"identity of {self.name} settled", payload={"step": self.step})
        return Change(moved(operation, now), (event,), step)


@dataclass(frozen=True, slots=True)
class Wait(_Stepless):
    """The handler has nothing to do for ``retry_after_s`` seconds; costs no attempt."""

    reason: str
    message: str
    retry_after_s: float

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """Past the wait deadline the operation fails with ``wait_deadline_exceeded``.

        The deadline is looked at here and not when a wait ends, so that after an outage of ours the handler sees
        once more whether what it waits for has come.
        """
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        if operation.cleaning_for is not None:
            return Change(operation)
        left_s = None if operation.wait_deadline_s is None else operation.wait_deadline_s - operation.waited_s
        if left_s is not None and left_s <= 0:
            message = f"waited {operation.waited_s:.0f} s in all, last for {self.reason}: {self.message}"
            return Fail("wait_deadline_exceeded", message, retryable=False).change(operation, now)
        delay_s = self.retry_after_s if left_s is None else min(self.retry_after_s, left_s)
        after = replace(
            unleased(operation, now, delay_s, self.reason),
            message=self.message,
            waiting_since=now,
            attempt=max(0, operation.attempt - 1),
        )
        if operation.waiting_reason == self.reason:
            return Change(after)  # polling must not fill the log
        return Change(after, (EventDraft("waiting", self.message, payload={"reason": self.reason}),))


@dataclass(frozen=True, slots=True)
class Retry(_Stepless):
    """The attempt ended with an error that another one may not meet."""

    code: str
    message: str
    delay_s: float

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """After the last attempt the cleanup follows, and this error is the one that is kept."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        if operation.cleaning_for is not None:
            return Change(operation)
        error = {"error_code": self.code, "error_message": self.message, "error_retryable": True}
        payload = {"code": self.code, "attempt": operation.attempt}
        event = EventDraft("attempt_failed", self.message, "warning", payload)
        if operation.attempt >= operation.max_attempts:
            after = failing(operation, now, self.code, self.message, True)
            return Change(after, (event, _exhausted(operation)))
        return Change(replace(unleased(operation, now, self.delay_s, "retry"), **error), (event,))


@dataclass(frozen=True, slots=True)
class Fail(_Stepless):
    """The operation cannot succeed. The holder keeps it and runs the cleanup next."""

    code: str
    message: str
    retryable: bool = False

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """``cleaning_for`` becomes ``failed``."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        if operation.cleaning_for is not None:
            return Change(operation)
        event = EventDraft("failing", self.message, "error", {"code": self.code})
        return Change(failing(operation, now, self.code, self.message, self.retryable), (event,))


@dataclass(frozen=True, slots=True)
class Succeed(_Stepless):
    """The handler returned. If somebody asked to cancel meanwhile, the cleanup is next instead."""

    result: dict[str, Any] | None

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """Errors of earlier attempts stay in the event log only."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        if operation.cleaning_for is not None:
            return Change(operation)
        after = ended(
            operation,
            now,
            State.SUCCEEDED,
            result=self.result,
            progress=100,
            error_code=None,
            error_message=None,
            error_retryable=None,
        )
        return Change(after, (EventDraft("succeeded", f"{operation.kind} succeeded"),))


@dataclass(frozen=True, slots=True)
class RetryCleanup(_Stepless):
    """The cleanup has not proved itself yet and is tried again, without end."""

    message: str
    delay_s: float
    failed: bool
    """False when the cleanup only waits for something."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """An unchanged message writes no event again."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        require_cleaning(operation, self)
        after = replace(
            unleased(operation, now, self.delay_s, "cleanup_retry" if self.failed else "cleanup"),
            message=self.message,
            cleanup_failures=operation.cleanup_failures + self.failed,
        )
        if operation.message == self.message:
            return Change(after)
        level = "warning" if self.failed else "info"
        return Change(
            after, (EventDraft("cleanup_failed" if self.failed else "cleanup_waiting", self.message, level),)
        )


@dataclass(frozen=True, slots=True)
class FinishCleanup(_Stepless):
    """The cleanup has proved itself: the operation ends as ``cleaning_for`` says."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """The error that led here is kept; a cancelled operation says so instead of how far it had come."""
        require_held(operation, self, State.RUNNING, State.CANCELLING)
        end = require_cleaning(operation, self)
        text = operation.error_message if end is State.FAILED and operation.error_message else "cleaned up"
        level = "error" if end is State.FAILED else "info"
        said = operation.message if end is State.FAILED else text
        return Change(ended(operation, now, end, message=said), (EventDraft(end.value, text, level),))


@dataclass(frozen=True, slots=True)
class RequestCancel(_Stepless):
    """Somebody wants the operation to stop. Needs no lease; asking again, or too late, changes nothing."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """An operation that has not started ends at once, unless its submitter left something to clean up."""
        if operation.state.terminal or operation.cancel_requested:
            return Change(operation)
        event = EventDraft("cancel_requested", "cancel requested")
        if operation.cleaning_for is not None:
            return Change(moved(operation, now, cancel_requested=True), (event,))
        if operation.state is State.PENDING and not operation.cleanup_if_unstarted:
            text = "cancelled before it started"
            after = ended(operation, now, State.CANCELLED, cancel_requested=True, message=text)
            return Change(after, (event, EventDraft("cancelled", text)))
        held = operation.lease_owner is not None
        after = moved(
            operation,
            now,
            state=State.CANCELLING,
            cancel_requested=True,
            cleaning_for=State.CANCELLED,
            waiting_since=None,
            next_attempt_at=None if held else now,
        )
        return Change(after, (event,))


@dataclass(frozen=True, slots=True)
class Abandon(_Stepless):
    """The machine that the work is bound to will not come back: cancel, and let any worker run the cleanup."""

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None = None) -> Change:
        """Needs no lease. A holder that lives after all keeps it, and sees the cancel."""
        if operation.state.terminal or operation.affinity is None:
            return RequestCancel().change(operation, now)
        event = EventDraft("abandoned", f"no longer bound to {operation.affinity}", "warning")
        cancelled = RequestCancel().change(operation, now)
        after = moved(cancelled.operation, now, affinity=None)
        return Change(after, (event, *cancelled.events))


def _exhausted(operation: Operation) -> EventDraft:
    return EventDraft("attempts_exhausted", f"all {operation.max_attempts} attempts are used up", "error")


def _same_step(stored: OperationStep, step: OperationStep) -> bool:
    return (stored.status, stored.payload, stored.message) == (step.status, step.payload, step.message)

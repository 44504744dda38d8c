"""What an operation is: its states, its record, and what a handler may raise."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any


class OperationState(StrEnum):
    """Life of an operation. The allowed transitions are in :mod:`wharfinger.operations.transitions`."""

    PENDING = "pending"
    LEASED = "leased"
    RUNNING = "running"
    WAITING = "waiting"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUCCEEDED = "succeeded"

    @property
    def terminal(self) -> bool:
        """True when nothing more will happen."""
        return self in (OperationState.CANCELLED, OperationState.FAILED, OperationState.SUCCEEDED)


_LENGTHS = {"kind": 64, "resource_type": 32, "resource_name": 256, "idempotency_key": 256, "affinity": 64}
"""The longest text of each that the database holds."""


@dataclass(frozen=True, slots=True)
class NewOperation:
    """Work to enqueue."""

    kind: str
    """e.g. ``instance.launch``."""
    resource_type: str
    resource_name: str
    """At most one unresolved operation per (resource_type, resource_name)."""
    request: dict[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    affinity: str | None = None
    """Only a worker that offers this affinity (a node id it hosts) may claim the operation."""
    max_attempts: int = 5
    """Bound on attempts that ended in a retryable *error*; waiting costs none."""
    wait_deadline_s: float | None = None
    """Total seconds the operation may spend waiting before it fails with ``wait_deadline_exceeded``."""
    """None waits without end."""
    delay_s: float = 0.0
    """Earliest start, counted from the submission."""
    cleanup_if_unstarted: bool = False
    """True when the submitter's own transaction wrote something that ``cleanup`` must undo (an instance, a
    reservation): cancelling then runs ``cleanup`` even if no worker has started the operation yet."""

    def __post_init__(self) -> None:
        """Raises ValueError for what could not be stored or would never be tried."""
        for name, most in _LENGTHS.items():
            value: str | None = getattr(self, name)
            if value is not None and not (0 < len(value) <= most and "\0" not in value):
                raise ValueError(f"{name} {value!r} must have 1 to {most} characters, none of them NUL")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts {self.max_attempts} must be at least 1")
        for name in ("wait_deadline_s", "delay_s"):
            seconds: float | None = getattr(self, name)
            if seconds is not None and not 0 <= seconds < inf:
                raise ValueError(f"{name} {seconds} must be a finite number of seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Operation:
    """A stored operation, as read."""

    operation_id: str
    kind: str
    resource_type: str
    resource_name: str
    state: OperationState
    request: dict[str, Any]
    result: dict[str, Any] | None
    progress: int
    """0..100, never falls."""
    message: str
    waiting_reason: str | None
    """Why it waits; while an attempt is under way, why it waited last."""
    error_code: str | None
    error_message: str | None
    error_retryable: bool | None
    attempt: int
    """Number of the attempt under way or last ended with an error; a wait and a graceful stop give theirs back."""
    max_attempts: int
    cancel_requested: bool
    affinity: str | None
    idempotency_key: str | None
    lease_owner: str | None
    lease_generation: int
    lease_expires_at: datetime | None
    next_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    wait_deadline_s: float | None = None
    waited_s: float = 0.0
    """Seconds of finished waits; a wait under way counts from ``waiting_since``."""
    waiting_since: datetime | None = None
    cleaning_for: OperationState | None = None
    """The end that the cleanup under way leads to (``failed`` or ``cancelled``); None while there is none."""
    cleanup_failures: int = 0
    cleanup_if_unstarted: bool = False
    last_sequence: int = 0
    """Number of events so far, which is the sequence of the latest."""

    @property
    def lease(self) -> Lease | None:
        """The lease that is held on it, or None."""
        if self.lease_owner is None:
            return None
        return Lease(self.operation_id, self.lease_owner, self.lease_generation)


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof of holding an operation: every write of a worker carries it, and fails once it is not the newest."""

    operation_id: str
    owner: str
    generation: int


@dataclass(frozen=True, slots=True)
class OperationStep:
    """A named checkpoint and what it remembered."""

    name: str
    status: str
    payload: dict[str, Any] | None
    attempt: int
    updated_at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """One line of an operation's ordered log; ``sequence`` has no gaps and starts at 1."""

    sequence: int
    type: str
    level: str
    message: str
    payload: dict[str, Any] | None
    at: datetime


class OperationError(Exception):
    """Base of what a handler raises on purpose. ``code`` is stable."""

    retryable = False

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PermanentError(OperationError):
    """Trying again cannot help; cleanup runs, then the operation fails."""


class RetryableError(OperationError):
    """Try again after a backoff; costs one attempt."""

    retryable = True


class Waiting(Exception):
    """Nothing is wrong, something is not there yet (capacity, readiness, drain). Costs no attempt."""

    def __init__(self, reason: str, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Conflict(Exception):
    """Refused at submission: the key was used for another body, or the resource has unresolved work."""

    def __init__(self, code: str, message: str, operation_id: str) -> None:
        super().__init__(message)
        self.code = code
        self.operation_id = operation_id


class UnknownOperation(LookupError):
    """No operation has this id (any more: finished ones are pruned after the configured time)."""

    def __init__(self, operation_id: str) -> None:
        super().__init__(
            f"there is no operation {operation_id!r}; finished operations are pruned after a while"
        )
        self.operation_id = operation_id


class LeaseLost(Exception):
    """This worker no longer holds the operation; its write changed nothing."""

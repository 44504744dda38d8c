"""The states, which may follow which, and the few ways to move between them that the rules are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from wharfinger.operations.model import Operation, OperationState

State = OperationState

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.LEASED, State.CANCELLING, State.CANCELLED}),
    State.LEASED: frozenset({State.RUNNING, State.WAITING, State.CANCELLING}),
    State.RUNNING: frozenset({State.WAITING, State.CANCELLING, State.FAILED, State.SUCCEEDED}),
    State.WAITING: frozenset({State.LEASED, State.CANCELLING}),
    State.CANCELLING: frozenset({State.CANCELLED}),
    State.CANCELLED: frozenset(),
    State.FAILED: frozenset(),
    State.SUCCEEDED: frozenset(),
}
"""Which state may follow which; staying in a state is always allowed unless it is terminal."""

HELD = frozenset({State.LEASED, State.RUNNING, State.CANCELLING})
"""States in which an operation can be under a lease."""


class InvalidTransition(Exception):
    """A rule was applied to an operation in a state it does not start from: a programming error."""


def require(operation: Operation, rule: object, *states: State) -> None:
    """Raises InvalidTransition unless the operation is in one of ``states``."""
    if operation.state not in states:
        raise InvalidTransition(
            f"{type(rule).__name__} does not apply to {operation.operation_id} in state {operation.state}"
        )


def require_held(operation: Operation, rule: object, *states: State) -> None:
    """Raises InvalidTransition unless somebody holds the operation in one of ``states``."""
    require(operation, rule, *states)
    if operation.lease_owner is None:
        raise InvalidTransition(
            f"{type(rule).__name__} needs a holder, and nobody holds {operation.operation_id}"
        )


def require_cleaning(operation: Operation, rule: object) -> State:
    """The end that the cleanup leads to. Raises InvalidTransition when there is no cleanup."""
    if operation.cleaning_for is None:
        raise InvalidTransition(
            f"{type(rule).__name__} applies to cleanup, which {operation.operation_id} is not in"
        )
    return operation.cleaning_for


def moved(operation: Operation, now: datetime, **changes: Any) -> Operation:
    """The operation with ``changes``, at ``now``. Raises InvalidTransition for a state that may not follow."""
    after = replace(operation, updated_at=now, **changes)
    if after.state is not operation.state and after.state not in TRANSITIONS[operation.state]:
        raise InvalidTransition(f"{operation.operation_id}: {operation.state} cannot become {after.state}")
    return after


def unleased(operation: Operation, now: datetime, delay_s: float, reason: str) -> Operation:
    """Taken from its holder or handed back: due again in ``delay_s`` seconds."""
    return moved(
        operation,
        now,
        state=State.CANCELLING if operation.state is State.CANCELLING else State.WAITING,
        waiting_reason=reason,
        waiting_since=None,
        lease_owner=None,
        lease_expires_at=None,
        next_attempt_at=now + timedelta(seconds=delay_s),
    )


def failing(
    operation: Operation, now: datetime, code: str | None, message: str | None, retryable: bool | None
) -> Operation:
    """The error is settled, and the cleanup is next."""
    return moved(
        operation,
        now,
        cleaning_for=State.FAILED,
        error_code=code,
        error_message=message,
        error_retryable=retryable,
    )


def ended(operation: Operation, now: datetime, end: State, **changes: Any) -> Operation:
    """Nothing more will happen to it."""
    return moved(
        operation,
        now,
        state=end,
        completed_at=now,
        waiting_reason=None,
        waiting_since=None,
        lease_owner=None,
        lease_expires_at=None,
        next_attempt_at=None,
        **changes,
    )

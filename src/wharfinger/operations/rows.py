"""Operations, steps and events as rows, and the statements over them, each compiled once."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Row, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from wharfinger.operations.changes import EventDraft
from wharfinger.operations.model import NewOperation, Operation, OperationEvent, OperationState, OperationStep
from wharfinger.store.tables import operation_events, operation_steps, operations

_COLUMNS = tuple(operations.columns.keys())
MUTABLE_COLUMNS = ("affinity", *_COLUMNS[_COLUMNS.index("created_at") + 1 :])
"""The affinity and the columns after ``created_at``; the others never change (see the table)."""

UPDATE_OPERATION = (
    update(operations)
    .where(operations.c.operation_id == bindparam("key"))
    .values({name: bindparam(name) for name in MUTABLE_COLUMNS})
)
INSERT_EVENT = operation_events.insert()
SELECT_EVENTS = (
    select(operation_events)
    .where(
        operation_events.c.operation_id == bindparam("key"),
        operation_events.c.sequence > bindparam("after_sequence"),
    )
    .order_by(operation_events.c.sequence)
    .limit(bindparam("page_size"))
)
SELECT_STEPS = (
    select(operation_steps)
    .where(operation_steps.c.operation_id == bindparam("key"))
    .order_by(operation_steps.c.updated_at, operation_steps.c.name)
)
_STEP_VALUES = ("status", "payload", "message", "attempt", "updated_at")


def upsert_step(is_sqlite: bool) -> Any:
    """The statement that writes a step, new or again."""
    insert = sqlite.insert(operation_steps) if is_sqlite else postgresql.insert(operation_steps)
    return insert.on_conflict_do_update(
        index_elements=["operation_id", "name"], set_={name: insert.excluded[name] for name in _STEP_VALUES}
    )


def update_in_one_statement(with_step: bool) -> Any:
    """PostgreSQL only: the operation, one event and perhaps a step in one statement, hence one round trip.

    Parameters of the event and the step are named as :func:`prefixed` does.
    """
    event = operation_events.insert().values(
        {c.name: bindparam(f"event_{c.name}") for c in operation_events.c}
    )
    statement = UPDATE_OPERATION.add_cte(event.cte("event"))
    if not with_step:
        return statement
    insert = postgresql.insert(operation_steps)
    upsert = insert.values(
        {c.name: bindparam(f"step_{c.name}") for c in operation_steps.c}
    ).on_conflict_do_update(
        index_elements=["operation_id", "name"], set_={name: insert.excluded[name] for name in _STEP_VALUES}
    )
    return statement.add_cte(upsert.cte("step"))


def prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with ``prefix_`` before each name."""
    return {f"{prefix}_{name}": value for name, value in values.items()}


def insert_operation(is_sqlite: bool) -> Any:
    """The statement that inserts an operation, or returns no row where a unique key stands against it."""
    insert = sqlite.insert(operations) if is_sqlite else postgresql.insert(operations)
    return insert.on_conflict_do_nothing().returning(operations.c.operation_id)


def new_operation_id(now: datetime) -> str:
    """An id that sorts by ``now``, the database's time: 12 hex digits of milliseconds, 20 of chance."""
    return f"op_{int(now.timestamp() * 1000):012x}{secrets.token_hex(10)}"


def request_hash(new: NewOperation) -> str:
    """What must be equal for the same idempotency key to mean the same operation."""
    body = [new.kind, new.resource_type, new.resource_name, new.request]
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def storable(text: str) -> str:
    """``text`` without what PostgreSQL or UTF-8 cannot hold (NUL, lone surrogates), such as an engine may print."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def operation_values(operation: Operation) -> dict[str, Any]:
    """The mutable columns of ``operation``."""
    leased = operation.lease_owner is not None
    return {
        "affinity": operation.affinity,
        "state": operation.state.value,
        "result": operation.result,
        "progress": operation.progress,
        "message": storable(operation.message),
        "attempt": operation.attempt,
        "cancel_requested": operation.cancel_requested,
        "cleaning_for": operation.cleaning_for.value if operation.cleaning_for else None,
        "cleanup_failures": operation.cleanup_failures,
        "waiting_reason": operation.waiting_reason,
        "waiting_since": operation.waiting_since,
        "waited_s": operation.waited_s,
        "error_code": operation.error_code,
        "error_message": None if operation.error_message is None else storable(operation.error_message),
        "error_retryable": operation.error_retryable,
        "unresolved_resource": None if operation.state.terminal else resource_key(operation),
        "lease_owner": operation.lease_owner,
        "lease_generation": operation.lease_generation,
        "due_at": operation.lease_expires_at if leased else operation.next_attempt_at,
        "last_sequence": operation.last_sequence,
        "updated_at": operation.updated_at,
        "completed_at": operation.completed_at,
    }


def new_operation_values(operation: Operation, body_hash: str) -> dict[str, Any]:
    """All columns of a new ``operation``."""
    return operation_values(operation) | {
        "operation_id": operation.operation_id,
        "kind": operation.kind,
        "resource_type": operation.resource_type,
        "resource_name": operation.resource_name,
        "request": operation.request,
        "request_hash": body_hash,
        "idempotency_key": operation.idempotency_key,
        "max_attempts": operation.max_attempts,
        "wait_deadline_s": operation.wait_deadline_s,
        "cleanup_if_unstarted": operation.cleanup_if_unstarted,
        "created_at": operation.created_at,
    }


def resource_key(operation: Operation | NewOperation) -> str:
    """The value whose uniqueness allows one unresolved operation per resource."""
    return f"{operation.resource_type}/{operation.resource_name}"


def step_values(operation_id: str, step: OperationStep) -> dict[str, Any]:
    """All columns of a step."""
    return {
        "operation_id": operation_id,
        "name": step.name,
        "status": step.status,
        "payload": step.payload,
        "message": storable(step.message),
        "attempt": step.attempt,
        "updated_at": step.updated_at,
    }


def event_values(operation: Operation, sequence: int, draft: EventDraft, at: datetime) -> dict[str, Any]:
    """All columns of an event of ``operation``, as that is after the change."""
    return {
        "operation_id": operation.operation_id,
        "sequence": sequence,
        "type": draft.type,
        "level": draft.level,
        "message": storable(draft.message),
        "payload": draft.told(operation),
        "at": at,
    }


def read_operation(row: Row[Any]) -> Operation:
    """The operation in a row that has all its columns."""
    leased = row.lease_owner is not None
    return Operation(
        operation_id=row.operation_id,
        kind=row.kind,
        resource_type=row.resource_type,
        resource_name=row.resource_name,
        state=OperationState(row.state),
        request=row.request,
        result=row.result,
        progress=row.progress,
        message=row.message,
        waiting_reason=row.waiting_reason,
        error_code=row.error_code,
        error_message=row.error_message,
        error_retryable=row.error_retryable,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        cancel_requested=row.cancel_requested,
        affinity=row.affinity,
        idempotency_key=row.idempotency_key,
        lease_owner=row.lease_owner,
        lease_generation=row.lease_generation,
        lease_expires_at=row.due_at if leased else None,
        next_attempt_at=None if leased else row.due_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
        completed_at=row.completed_at,
        wait_deadline_s=row.wait_deadline_s,
        waited_s=row.waited_s,
        waiting_since=row.waiting_since,
        cleaning_for=OperationState(row.cleaning_for) if row.cleaning_for else None,
        cleanup_failures=row.cleanup_failures,
        cleanup_if_unstarted=row.cleanup_if_unstarted,
        last_sequence=row.last_sequence,
    )


def read_step(row: Row[Any]) -> OperationStep:
    """The step in a row of its table."""
    return OperationStep(row.name, row.status, row.payload, row.attempt, row.updated_at, row.message)


def read_event(row: Row[Any]) -> OperationEvent:
    """The event in a row of its table."""
    return OperationEvent(row.sequence, row.type, row.level, row.message, row.payload, row.at)

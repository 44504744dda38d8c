"""Durable work: listing, one operation, its events (paged and as a stream), cancel."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator, Field

from wharfinger.access.callers import Auth, Operator, Viewer
from wharfinger.api.answers import EVENT_STREAM, answers
from wharfinger.api.errors import ApiError
from wharfinger.api.schemas_own import Events, OperationDetails, Operations, OperationSummary
from wharfinger.api.text import Name
from wharfinger.operations.feed import follow
from wharfinger.operations.model import (
    Operation,
    OperationEvent,
    OperationState,
    OperationStep,
    UnknownOperation,
)
from wharfinger.operations.recurring import SCHEDULE
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.serving import Control

router = APIRouter(prefix="/api/v1/operations", tags=["Operations"])

KEEPALIVE_S = 15.0
"""A silent event stream shows that it is alive this often."""
LOOK_S = 1.0
"""How often a silent event stream looks whether the process is going down, or its caller's key was revoked."""

_OPERATION_ID = re.compile(r"op_[0-9a-f]{32}")
_MAX_SEQUENCE = 2**31 - 1
"""The column is a 32-bit integer."""
_Filter = Annotated[str | None, Query(min_length=1, max_length=256)]
_Sequence = Annotated[int, Query(ge=0, le=_MAX_SEQUENCE)]
_LastEventId = Annotated[
    Annotated[int, Field(ge=0, le=_MAX_SEQUENCE)] | None,
    BeforeValidator(
        lambda value: None if value == "" else value
    ),  # browsers send an empty one for "none yet"
    Header(),
]


@router.get("", **answers(Operations))
async def list_operations(
    control: Control,
    _: Viewer,
    kind: _Filter = None,
    state: Annotated[list[OperationState] | None, Query()] = None,
    resource: _Filter = None,
    all: bool = False,  # noqa: A002 - the name of the parameter in the URL
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Operations, newest first. Ask again with ``next_cursor`` for older ones.

    ``state`` may be given several times. Recurring work of the control plane itself is shown with ``all=true``, or
    when a ``kind`` or ``resource`` is asked for.
    """
    if cursor is not None and not _OPERATION_ID.fullmatch(cursor):
        raise ApiError(
            400, "invalid_cursor", "cursor must be the next_cursor of an earlier answer", param="cursor"
        )
    everything = all or kind is not None or resource is not None
    page = await control.operations.list(
        kind=kind,
        states=state or (),
        without_resource_type=None if everything else SCHEDULE,
        resource_name=resource,
        limit=limit,
        cursor=cursor,
    )
    return {
        "operations": [operation_wire(found) for found in page.items],
        "next_cursor": page.next_cursor,
    }


@router.get("/{operation_id}", **answers(OperationDetails, 404))
async def show_operation(control: Control, _: Viewer, operation_id: Name) -> dict[str, Any]:
    """One operation with its steps."""
    operation = await _get(control, operation_id)
    steps = await control.operations.steps(operation_id)
    return operation_wire(operation) | {"steps": [_step_wire(step) for step in steps]}


@router.get("/{operation_id}/events", **answers(Events, 404, content=EVENT_STREAM))
async def operation_events(
    request: Request,
    control: Control,
    auth: Auth,
    viewer: Viewer,
    operation_id: Name,
    after: _Sequence = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    last_event_id: _LastEventId = None,
) -> Any:
    """Events in order. ``Accept: text/event-stream`` follows them live and resumes from ``Last-Event-ID``."""
    await _get(control, operation_id)
    if "text/event-stream" in request.headers.get("accept", ""):
        start = last_event_id if last_event_id is not None else after
        return StreamingResponse(
            _stream(control, operation_id, start, lambda: auth.still_valid(viewer)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
    events = await control.operations.events(operation_id, after_sequence=after, limit=limit)
    following = events[-1].sequence if len(events) == limit else None
    return {"events": [_event_wire(event) for event in events], "next_after": following}


@router.post("/{operation_id}/cancel", **answers(OperationSummary, 404, status=202))
async def cancel_operation(control: Control, _: Operator, operation_id: Name) -> dict[str, Any]:
    """Ask to cancel. Queued work ends at once; running work stops cooperatively and cleans up."""
    await _get(control, operation_id)
    operation = await control.operations.request_cancel(operation_id)
    control.worker.wake()
    return operation_wire(operation)


async def _get(control: ControlPlane, operation_id: str) -> Operation:
    try:
        if not _OPERATION_ID.fullmatch(operation_id):
            raise UnknownOperation(operation_id)
        return await control.operations.get(operation_id)
    except UnknownOperation as error:
        raise ApiError(404, "operation_not_found", str(error), param="operation_id") from error


async def _stream(
    control: ControlPlane, operation_id: str, after: int, allowed: Callable[[], bool]
) -> AsyncIterator[bytes]:
    silent_s = 0.0
    async for event in follow(control.operations, operation_id, after, keepalive_s=LOOK_S):
        if control.stopping.is_set() or not allowed():
            return  # the client reconnects and resumes from its last event, or is refused
        if event is None:
            silent_s += LOOK_S
            if silent_s >= KEEPALIVE_S:
                silent_s = 0.0
                yield b": still here\n\n"
            continue
        silent_s = 0.0
        data = orjson.dumps(_event_wire(event)).decode()
        yield f"id: {event.sequence}\nevent: {event.type}\ndata: {data}\n\n".encode()
    operation = await control.operations.get(operation_id)
    yield f"event: end\ndata: {orjson.dumps(operation_wire(operation)).decode()}\n\n".encode()


def operation_wire(operation: Operation) -> dict[str, Any]:
    """An operation as JSON."""
    return {
        "id": operation.operation_id,
        "kind": operation.kind,
        "resource_type": operation.resource_type,
        "resource": operation.resource_name,
        "state": operation.state.value,
        "progress": operation.progress,
        "message": operation.message,
        "waiting_reason": operation.waiting_reason,
        "waiting_since": _iso(operation.waiting_since),
        "waited_s": operation.waited_s,
        "wait_deadline_s": operation.wait_deadline_s,
        "error": None
        if operation.error_code is None
        else {
            "code": operation.error_code,
            "message": operation.error_message,
            "retryable": operation.error_retryable,
        },
        "attempt": operation.attempt,
        "max_attempts": operation.max_attempts,
        "cancel_requested": operation.cancel_requested,
        "cleaning_for": None if operation.cleaning_for is None else operation.cleaning_for.value,
        "cleanup_failures": operation.cleanup_failures,
        "affinity": operation.affinity,
        "lease_owner": operation.lease_owner,
        "lease_expires_at": _iso(operation.lease_expires_at),
        "result": operation.result,
        "created_at": operation.created_at.isoformat(),
        "updated_at": operation.updated_at.isoformat(),
        "completed_at": _iso(operation.completed_at),
        "next_attempt_at": _iso(operation.next_attempt_at),
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _step_wire(step: OperationStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "status": step.status,
        "message": step.message,
        "payload": step.payload,
        "attempt": step.attempt,
        "updated_at": step.updated_at.isoformat(),
    }


def _event_wire(event: OperationEvent) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "type": event.type,
        "level": event.level,
        "message": event.message,
        "payload": event.payload,
        "at": event.at.isoformat(),
    }

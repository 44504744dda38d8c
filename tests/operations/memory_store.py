"""A store of operations in memory, held to the same contract tests as the one in the database.

It exists for the simulator: its clock is the simulation's, and every commit is shown to an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.model import (
    Conflict,
    Lease,
    LeaseLost,
    NewOperation,
    Operation,
    OperationEvent,
    OperationStep,
    UnknownOperation,
)
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.rows import request_hash, resource_key
from wharfinger.operations.signals import WORK, Signals, cancel_of, events_of
from wharfinger.operations.transitions import Abandon, Claim, Expire, RequestCancel, submitted


@dataclass
class Record:
    """Everything that is stored of one operation."""

    operation: Operation
    body_hash: str
    steps: dict[str, OperationStep] = field(default_factory=dict)
    events: list[OperationEvent] = field(default_factory=list)

    @property
    def due_at(self) -> datetime | None:
        """When it may be claimed: the start of the next attempt, or the end of the lease."""
        return self.operation.lease_expires_at or self.operation.next_attempt_at


class MemoryStore:
    """A ``WorkStore``. Each method is atomic, because nothing in it awaits."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        observe: Callable[[Operation | None, Record], None] = lambda before, record: None,
    ) -> None:
        self.signals = Signals()
        self.records: dict[str, Record] = {}
        self._made = 0
        self._clock = clock
        self._observe = observe

    async def now(self) -> datetime:
        return self._clock()

    async def submit(self, new: NewOperation) -> tuple[Operation, bool]:
        body_hash = request_hash(new)
        unresolved: Operation | None = None
        for record in self.records.values():
            operation = record.operation
            if new.idempotency_key is not None and (operation.kind, operation.idempotency_key) == (
                new.kind,
                new.idempotency_key,
            ):
                if record.body_hash != body_hash:
                    raise Conflict("idempotency_key_reused", "other body", operation.operation_id)
                return operation, False
            if not operation.state.terminal and resource_key(operation) == resource_key(new):
                unresolved = operation
        if unresolved is not None:
            raise Conflict("resource_busy", "unresolved work", unresolved.operation_id)
        now = self._clock()
        self._made += 1
        change = submitted(new, f"op_{self._made:06d}", now)
        self.records[change.operation.operation_id] = record = Record(change.operation, body_hash)
        self._write(None, record, change, now)
        self.signals.notify(WORK)
        return record.operation, True

    async def get(self, operation_id: str) -> Operation:
        return self._record(operation_id).operation

    async def steps(self, operation_id: str) -> Sequence[OperationStep]:
        return list(self.records[operation_id].steps.values()) if operation_id in self.records else []

    async def events(
        self, operation_id: str, after_sequence: int = 0, limit: int = 100
    ) -> Sequence[OperationEvent]:
        if operation_id not in self.records:
            return []
        return self.records[operation_id].events[after_sequence : after_sequence + limit]

    async def request_cancel(self, operation_id: str) -> Operation:
        record = self._record(operation_id)
        operation = self._change(record, RequestCancel().change(record.operation, self._clock())).operation
        self.signals.notify(cancel_of(operation_id))
        self.signals.notify(WORK)
        return operation

    async def abandon(self, resource_type: str, resource_name: str) -> Operation | None:
        for record in self.records.values():
            operation = record.operation
            if resource_key(operation) == f"{resource_type}/{resource_name}" and not operation.state.terminal:
                self._change(record, Abandon().change(operation, self._clock()))
                self.signals.notify(cancel_of(operation.operation_id))
                self.signals.notify(WORK)
                return record.operation
        return None

    async def claim(self, request: ClaimRequest) -> Sequence[Operation]:
        now = self._clock()
        due = [
            record
            for record in self.records.values()
            if record.due_at is not None
            and record.due_at <= now
            and record.operation.kind in request.kinds
            and (record.operation.affinity is None or record.operation.affinity in request.affinities)
        ]
        due.sort(key=lambda record: (record.due_at, record.operation.operation_id))
        for record in due[: request.limit]:
            if record.operation.lease_owner is not None:
                self._change(record, Expire().change(record.operation, now))
            self._change(record, Claim(request.owner, request.lease_s).change(record.operation, now))
        return [record.operation for record in due[: request.limit]]

    async def apply(self, lease: Lease, rule: Rule) -> Change:
        now = self._clock()
        record = self._record(lease.operation_id)
        operation = record.operation
        if (
            operation.lease != lease
            or operation.lease_expires_at is None
            or operation.lease_expires_at <= now
        ):
            raise LeaseLost(f"{lease.owner} no longer holds {lease.operation_id}")
        change = rule.change(operation, now, record.steps.get(rule.step) if rule.step is not None else None)
        if change.step is not None:
            record.steps.pop(change.step.name, None)
            record.steps[change.step.name] = change.step
        change = self._change(record, change)
        if change.operation.lease_owner is None and not change.operation.state.terminal:
            self.signals.notify(WORK)
        return change

    async def reap(self, limit: int = 100) -> int:
        now = self._clock()
        expired = [
            record
            for record in self.records.values()
            if record.operation.lease_expires_at is not None and record.operation.lease_expires_at <= now
        ][:limit]
        for record in expired:
            self._change(record, Expire().change(record.operation, now))
        if expired:
            self.signals.notify(WORK)
        return len(expired)

    async def prune(self, retention_s: float, limit: int = 1000) -> int:
        before = self._clock() - timedelta(seconds=retention_s)
        old = [
            key
            for key, record in self.records.items()
            if record.operation.completed_at is not None and record.operation.completed_at < before
        ][:limit]
        for key in old:
            del self.records[key]
        return len(old)

    def _record(self, operation_id: str) -> Record:
        if operation_id not in self.records:
            raise UnknownOperation(operation_id)
        return self.records[operation_id]

    def _change(self, record: Record, change: Change) -> Change:
        return self._write(record.operation, record, change, self._clock())

    def _write(self, before: Operation | None, record: Record, change: Change, now: datetime) -> Change:
        first = change.operation.last_sequence + 1
        operation = replace(
            change.operation, last_sequence=change.operation.last_sequence + len(change.events)
        )
        for sequence, draft in enumerate(change.events, start=first):
            record.events.append(
                OperationEvent(sequence, draft.type, draft.level, draft.message, draft.told(operation), now)
            )
        record.operation = operation
        self._observe(before, record)
        if change.events:
            self.signals.notify(events_of(operation.operation_id))
        return replace(change, operation=operation)

"""Operations in the database, the same on SQLite and PostgreSQL.

Each method is one transaction. A worker's write selects its row by id, owner, generation and unexpired lease, all
in the database and by the database's clock, locks it, applies a rule of :mod:`wharfinger.operations.transitions` and
writes what the rule says: row, step and events together or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from wharfinger.operations import rows
from wharfinger.operations.changes import Change, EventDraft, Rule
from wharfinger.operations.model import (
    Conflict,
    Lease,
    LeaseLost,
    NewOperation,
    Operation,
    OperationEvent,
    OperationState,
    OperationStep,
    UnknownOperation,
)
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.signals import WORK, Signals, cancel_of, events_of
from wharfinger.operations.taking import Taker
from wharfinger.operations.transitions import Abandon, Claim, Expire, RequestCancel, submitted
from wharfinger.store.database import Database
from wharfinger.store.tables import instances, operation_steps, operations

_MAX_PAGE = 1000
_SUBMIT_TRIES = 20
_columns = operations.c


@dataclass(frozen=True, slots=True)
class OperationPage:
    """Part of a list, newest first."""

    items: Sequence[Operation]
    next_cursor: str | None
    """Pass it as ``cursor`` for the next page; None on the last."""


class OperationStore:
    """Durable operations. Every method may raise ``StoreUnavailable``; see the class's module for the rest."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.signals = Signals()
        now = database.now()
        fence = (
            _columns.operation_id == bindparam("key"),
            _columns.lease_owner == bindparam("owner"),
            _columns.lease_generation == bindparam("generation"),
            _columns.due_at > now,
        )
        self._now = select(now)
        self._fenced = select(operations, now.label("now")).where(*fence).with_for_update()
        # A statement of its own, after the lock: PostgreSQL reads again what it had to wait for, but not what was
        # joined to it, so a step that another writer has just committed would be missed.
        self._step = select(operation_steps).where(
            operation_steps.c.operation_id == bindparam("key"), operation_steps.c.name == bindparam("step")
        )
        self._by_id = select(operations, now.label("now")).where(_columns.operation_id == bindparam("key"))
        self._skip_locked = select(operations, now.label("now")).with_for_update(skip_locked=True)
        self._upsert_step = rows.upsert_step(database.is_sqlite)
        # One round trip instead of three. SQLite has neither the statement nor a round trip.
        self._in_one = (
            None
            if database.is_sqlite
            else {step: rows.update_in_one_statement(step) for step in (False, True)}
        )
        self._insert_operation = rows.insert_operation(database.is_sqlite)
        self._taker = Taker(database, self._by_id)

    async def submit(
        self, new: NewOperation, connection: AsyncConnection | None = None
    ) -> tuple[Operation, bool]:
        """Enqueue ``new``; or find the operation that the same kind, idempotency key and body made before.

        Args:
            new: the work.
            connection: a transaction of ``Database.begin()`` to take part in, so that what the work is about is
                committed together with it. After its commit call :meth:`announce`, or workers see it only at their
                next poll.

        Returns:
            The operation, and True when this call made it.

        Raises:
            Conflict: ``idempotency_key_reused`` (same key, other body) or ``resource_busy`` (another unresolved
                operation has the resource); it names that operation. Nothing was written, and a transaction that
                was passed in is still good.
        """
        if connection is not None:
            return await connection.run_sync(self._submit, new)
        result = await self.database.run(partial(self._submit, new=new))
        self.announce()
        return result

    def announce(self) -> None:
        """Tell the workers of this process that something may be claimable."""
        self.signals.notify(WORK)

    async def get(self, operation_id: str) -> Operation:
        """The operation. Raises UnknownOperation."""
        found = await self._read(self._by_id, {"key": operation_id})
        if not found:
            raise UnknownOperation(operation_id)
        return rows.read_operation(found[0])

    async def list(
        self,
        *,
        kind: str | None = None,
        states: Collection[OperationState] = (),
        resource_type: str | None = None,
        resource_name: str | None = None,
        without_resource_type: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> OperationPage:
        """Operations that match all that is given, newest first, at most ``limit`` (1..1000) of them."""
        _check_limit(limit)
        query = select(operations).order_by(_columns.operation_id.desc()).limit(limit + 1)
        equal = (
            (_columns.kind, kind),
            (_columns.resource_type, resource_type),
            (_columns.resource_name, resource_name),
        )
        query = query.where(*(column == value for column, value in equal if value is not None))
        if without_resource_type is not None:
            query = query.where(_columns.resource_type != without_resource_type)
        if states:
            query = query.where(_columns.state.in_([state.value for state in states]))
        if cursor is not None:
            query = query.where(_columns.operation_id < cursor)
        found = [rows.read_operation(row) for row in await self._read(query, {})]
        more = len(found) > limit
        return OperationPage(found[:limit], found[limit - 1].operation_id if more else None)

    async def steps(self, operation_id: str) -> Sequence[OperationStep]:
        """Checkpoints in the order of their latest change; empty for an unknown operation."""
        return [rows.read_step(row) for row in await self._read(rows.SELECT_STEPS, {"key": operation_id})]

    async def events(
        self, operation_id: str, after_sequence: int = 0, limit: int = 100
    ) -> Sequence[OperationEvent]:
        """Events after ``after_sequence`` in order, at most ``limit`` (1..1000); empty for an unknown operation."""
        _check_limit(limit)
        values = {"key": operation_id, "after_sequence": after_sequence, "page_size": limit}
        return [rows.read_event(row) for row in await self._read(rows.SELECT_EVENTS, values)]

    async def request_cancel(self, operation_id: str) -> Operation:
        """Ask that the operation stop, and return it as it then is.

        One that has not started is ``cancelled`` at once (or ``cancelling``, if its submitter left something to
        clean up); one under way becomes ``cancelling``; a finished one stays as it is. Raises UnknownOperation.
        """
        operation = await self.database.run(partial(self._request_cancel, operation_id=operation_id))
        self.signals.notify(cancel_of(operation_id))
        self._committed(operation_id)
        self.announce()
        return operation

    async def abandon(
        self, resource_type: str, resource_name: str, connection: AsyncConnection
    ) -> Operation | None:
        """Cancel the resource's unresolved operation whose machine will not come back; any worker may clean it up.

        Args:
            resource_type: of the resource.
            resource_name: of the resource.
            connection: the transaction of ``Database.begin()`` that gives the resource up; :meth:`announce` after it.

        Returns:
            The operation as it then is; None when nothing is unresolved.
        """
        return await connection.run_sync(self._abandon, f"{resource_type}/{resource_name}")

    async def claim(self, request: ClaimRequest) -> Sequence[Operation]:
        """Lease up to ``request.limit`` due operations; rows that another worker is taking are passed over."""
        affinity = or_(_columns.affinity.is_(None), _columns.affinity.in_(list(request.affinities)))
        due = self._skip_locked.where(
            _columns.due_at <= self.database.now(), _columns.kind.in_(list(request.kinds)), affinity
        ).order_by(_columns.due_at, _columns.operation_id)
        claimed = await self._taker.take(due, request.limit, partial(self._claim_one, request=request))
        for operation in claimed:
            self._committed(operation.operation_id)
        return claimed

    async def apply(self, lease: Lease, rule: Rule) -> Change:
        """Apply ``rule`` under ``lease``. Raises LeaseLost, and then nothing has changed."""
        change = await self.database.run(partial(self._apply, lease=lease, rule=rule))
        if change.events:
            self._committed(lease.operation_id)
        if change.operation.lease_owner is None and not change.operation.state.terminal:
            self.announce()
        return change

    async def hold(self, lease: Lease, connection: AsyncConnection) -> None:
        """Fence a transaction of the holder's own: until it commits, nobody else can take the operation.

        Raises LeaseLost, and then the transaction must write nothing.
        """
        values = {"key": lease.operation_id, "owner": lease.owner, "generation": lease.generation}
        if (await connection.execute(self._fenced, values)).first() is None:
            raise LeaseLost(
                f"{lease.owner} no longer holds {lease.operation_id} (generation {lease.generation})"
            )

    async def reap(self, limit: int = 100) -> int:
        """Expire leases that have run out, of every kind and affinity; returns how many."""
        due = self._skip_locked.where(
            _columns.lease_owner.is_not(None), _columns.due_at <= self.database.now()
        )
        return await self._expire(due.order_by(_columns.due_at), limit)

    async def release_leases_of_previous_owner(self, owner_prefix: str) -> int:
        """Expire all leases of owners whose name begins so; returns how many.

        For an installation that knows their processes to be gone, because it holds the only lock on the data
        directory: its work resumes at once instead of after the lease.
        """
        of_owner = self._skip_locked.where(_columns.lease_owner.startswith(owner_prefix, autoescape=True))
        released = 0
        while True:
            batch = await self._expire(of_owner.order_by(_columns.due_at), _MAX_PAGE)
            released += batch
            if batch < _MAX_PAGE:
                return released

    async def prune(self, retention_s: float, limit: int = 1000) -> int:
        """Delete up to ``limit`` operations, steps and events that finished over ``retention_s`` seconds ago.

        An operation that a living instance names, or that made it under an idempotency key, is kept for as long as
        the instance lives.
        """
        made = and_(
            _columns.resource_type == "instance",
            _columns.resource_name == instances.c.instance_id,
            _columns.idempotency_key.is_not(None),
        )
        named = exists().where(
            or_(instances.c.operation_id == _columns.operation_id, made), instances.c.deleted_at.is_(None)
        )

        def work(connection: Connection) -> int:
            before: datetime = connection.execute(self._now).scalar_one() - timedelta(seconds=retention_s)
            old = select(_columns.operation_id).where(_columns.completed_at < before, ~named).limit(limit)
            return connection.execute(delete(operations).where(_columns.operation_id.in_(old))).rowcount

        return await self.database.run(work)

    async def now(self) -> datetime:
        """The database's clock, which all replicas share."""
        return await self.database.current_time()

    # Below: plain functions, each run inside one transaction.

    def _submit(self, connection: Connection, new: NewOperation) -> tuple[Operation, bool]:
        body_hash = rows.request_hash(new)
        now: datetime = connection.execute(self._now).scalar_one()
        change = submitted(new, rows.new_operation_id(now), now)
        operation = _numbered(change)
        for _ in range(_SUBMIT_TRIES):
            values = rows.new_operation_values(operation, body_hash)
            if connection.execute(self._insert_operation, values).first() is not None:
                self._append(connection, operation, change.events, now)
                return operation, True
            found = self._standing_against(connection, new, body_hash)
            if found is not None:
                return found, False
            # What stood against it has just finished; so insert again.
        raise RuntimeError(
            f"{new.kind} for {rows.resource_key(new)} could not be submitted: something that this transaction cannot "
            "see stands against it; use the isolation level READ COMMITTED"
        )

    def _standing_against(
        self, connection: Connection, new: NewOperation, body_hash: str
    ) -> Operation | None:
        resource = rows.resource_key(new)
        standing = _columns.unresolved_resource == resource
        if new.idempotency_key is not None:  # ``== None`` would match every operation without a key
            same_key = and_(_columns.kind == new.kind, _columns.idempotency_key == new.idempotency_key)
            standing = or_(same_key, standing)
        query = select(operations).where(standing)
        found = connection.execute(query).all()
        for row in found:
            if (
                new.idempotency_key is None
                or row.kind != new.kind
                or row.idempotency_key != new.idempotency_key
            ):
                continue
            if row.request_hash != body_hash:
                raise Conflict(
                    "idempotency_key_reused",
                    f"this idempotency key was used for another {new.kind} request, which is operation "
                    f"{row.operation_id}; use a new key for a new request",
                    row.operation_id,
                )
            return rows.read_operation(row)
        for row in found:
            raise Conflict(
                "resource_busy",
                f"{new.resource_type} {new.resource_name!r} has unresolved work: operation {row.operation_id} "
                f"({row.kind}, {row.state}); wait for it or cancel it",
                row.operation_id,
            )
        return None

    def _request_cancel(self, connection: Connection, operation_id: str) -> Operation:
        row = connection.execute(self._by_id.with_for_update(), {"key": operation_id}).first()
        if row is None:
            raise UnknownOperation(operation_id)
        return self._unfenced(connection, row, RequestCancel())

    def _abandon(self, connection: Connection, resource: str) -> Operation | None:
        query = select(operations, self.database.now().label("now")).with_for_update()
        row = connection.execute(query.where(_columns.unresolved_resource == resource)).first()
        return None if row is None else self._unfenced(connection, row, Abandon())

    def _unfenced(self, connection: Connection, row: Row[Any], rule: Rule) -> Operation:
        """What anybody may do to the locked ``row``, whoever holds the lease."""
        before = rows.read_operation(row)
        return self._write(connection, before, rule.change(before, row.now, None), row.now).operation

    def _claim_one(
        self, connection: Connection, operation: Operation, now: datetime, request: ClaimRequest
    ) -> Operation:
        if operation.lease_owner is not None:
            operation = self._expire_one(connection, operation, now)
        change = Claim(request.owner, request.lease_s).change(operation, now)
        return self._write(connection, operation, change, now).operation

    def _apply(self, connection: Connection, lease: Lease, rule: Rule) -> Change:
        values = {"key": lease.operation_id, "owner": lease.owner, "generation": lease.generation}
        row = connection.execute(self._fenced, values).first()
        if row is None:
            raise LeaseLost(
                f"{lease.owner} no longer holds {lease.operation_id} (generation {lease.generation})"
            )
        before = rows.read_operation(row)
        stored = None if rule.step is None else self._stored_step(connection, lease.operation_id, rule.step)
        change = rule.change(before, row.now, stored)
        new_step = change.step if change.step is not stored else None
        return self._write(connection, before, change, row.now, new_step)

    def _stored_step(self, connection: Connection, operation_id: str, name: str) -> OperationStep | None:
        row = connection.execute(self._step, {"key": operation_id, "step": name}).first()
        return None if row is None else rows.read_step(row)

    async def _expire(self, query: Select[Any], limit: int) -> int:
        expired = await self._taker.take(query, limit, self._expire_one)
        for operation in expired:
            self._committed(operation.operation_id)
        if expired:
            self.announce()
        return len(expired)

    def _expire_one(self, connection: Connection, before: Operation, now: datetime) -> Operation:
        return self._write(connection, before, Expire().change(before, now), now).operation

    def _write(
        self,
        connection: Connection,
        before: Operation,
        change: Change,
        now: datetime,
        new_step: OperationStep | None = None,
    ) -> Change:
        operation = _numbered(change)
        if operation is before:
            return change
        values = rows.operation_values(operation) | {"key": operation.operation_id}
        step = rows.step_values(operation.operation_id, new_step) if new_step is not None else None
        if self._in_one is not None and len(change.events) == 1:
            event = rows.event_values(operation, operation.last_sequence, change.events[0], now)
            parameters = values | rows.prefixed("event", event) | rows.prefixed("step", step or {})
            connection.execute(self._in_one[step is not None], parameters)
        else:
            connection.execute(rows.UPDATE_OPERATION, values)
            if step is not None:
                connection.execute(self._upsert_step, step)
            self._append(connection, operation, change.events, now)
        return Change(operation, change.events, change.step)

    def _append(
        self, connection: Connection, operation: Operation, drafts: Sequence[EventDraft], now: datetime
    ) -> None:
        first = operation.last_sequence - len(drafts) + 1
        for sequence, draft in enumerate(drafts, start=first):
            connection.execute(rows.INSERT_EVENT, rows.event_values(operation, sequence, draft, now))

    async def _read(self, query: Select[Any], values: dict[str, Any]) -> Sequence[Any]:
        async with self.database.read() as connection:
            return (await connection.execute(query, values)).all()

    def _committed(self, operation_id: str) -> None:
        self.signals.notify(events_of(operation_id))


def _numbered(change: Change) -> Operation:
    """The changed operation, with its events counted."""
    if not change.events:
        return change.operation
    return replace(change.operation, last_sequence=change.operation.last_sequence + len(change.events))


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= _MAX_PAGE:
        raise ValueError(f"limit {limit} is not within 1..{_MAX_PAGE}")

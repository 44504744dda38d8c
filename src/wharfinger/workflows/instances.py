"""Reads and writes of instances, their reservations, runners and failures: the rows, and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from wharfinger.catalog.card import ModelCard
from wharfinger.fleet.agent import RunnerReport
from wharfinger.operations.rows import storable
from wharfinger.placement.serial import plan_from_json, plan_to_json
from wharfinger.placement.types import Plan, ReservationFacts
from wharfinger.store.database import now_on
from wharfinger.store.tables import instance_failures, instances, reservations, runners

RAM = -1
"""``device_index`` of the node's RAM in the reservations table."""
MAX_FAILURES = 64
MAX_MESSAGE_CHARACTERS = 2048


class InstanceStatus(StrEnum):
    """Where an instance is in its life. A deleted one is not listed any more."""

    LAUNCHING = "launching"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"
    DELETED = "deleted"


class UnknownInstance(Exception):
    """There is no instance of that id, or it was deleted."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(f"no instance {instance_id!r}; `wharf ps` lists the ones there are")


@dataclass(frozen=True, slots=True)
class Instance:
    """One placed model."""

    instance_id: str
    model_id: str
    card: ModelCard
    request: dict[str, Any]
    plan: Plan
    status: InstanceStatus
    status_reason: str | None
    operation_id: str | None
    created_at: datetime
    updated_at: datetime
    ready_at: datetime | None

    def runner_id(self, rank: int) -> str:
        """The runner of one rank: stable over relaunches, so that a retry adopts instead of doubling."""
        return f"{self.instance_id}-r{rank}"


@dataclass(frozen=True, slots=True)
class InstanceFailure:
    """Why an instance ended without anybody asking for it."""

    instance_id: str
    model_id: str
    error_code: str
    error_message: str
    affected_node_ids: tuple[str, ...]
    log_tail: tuple[str, ...]
    recorded_at: datetime


async def add_instance(
    connection: AsyncConnection, instance_id: str, card: ModelCard, request: dict[str, Any], plan: Plan
) -> None:
    """Write a launching instance and the reservations its plan charges."""
    now = now_on(connection)
    await connection.execute(
        insert(instances).values(
            instance_id=instance_id,
            model_id=card.model_id,
            card_digest=card.digest,
            card=card.to_wire(),
            request=request,
            plan=plan_to_json(plan),
            status=InstanceStatus.LAUNCHING,
            created_at=now,
            updated_at=now,
        )
    )
    await _reserve(connection, instance_id, plan)


async def _reserve(connection: AsyncConnection, instance_id: str, plan: Plan) -> None:
    charges: dict[tuple[str, int], int] = {}
    for rank in plan.ranks:
        for charge in rank.charges:
            pool = (rank.node_id, RAM if charge.device_index is None else charge.device_index)
            charges[pool] = charges.get(pool, 0) + charge.needed_bytes
    for (node_id, device_index), size_bytes in sorted(charges.items()):
        await connection.execute(
            insert(reservations).values(
                instance_id=instance_id,
                node_id=node_id,
                device_index=device_index,
                size_bytes=size_bytes,
                observed=False,
            )
        )


async def get_instance(
    connection: AsyncConnection, instance_id: str, *, include_deleted: bool = False
) -> Instance | None:
    """One instance, by default only if it is not deleted."""
    query = select(instances).where(instances.c.instance_id == instance_id)
    if not include_deleted:
        query = query.where(instances.c.deleted_at.is_(None))
    row = (await connection.execute(query)).one_or_none()
    return _instance(row) if row else None


async def statuses(connection: AsyncConnection, instance_ids: Collection[str]) -> dict[str, InstanceStatus]:
    """The status of each of ``instance_ids`` that has a row, also of those that are deleted."""
    query = select(instances.c.instance_id, instances.c.status).where(
        instances.c.instance_id.in_(instance_ids)
    )
    return {row.instance_id: InstanceStatus(row.status) for row in await connection.execute(query)}


async def ready_on(connection: AsyncConnection, node_ids: Collection[str]) -> set[tuple[str, str]]:
    """Every ready instance with each of ``node_ids`` that it holds memory on, as ``(instance_id, node_id)``."""
    query = (
        select(reservations.c.instance_id, reservations.c.node_id)
        .join(instances)
        .where(reservations.c.node_id.in_(node_ids), instances.c.status == InstanceStatus.READY)
    )
    return {(row.instance_id, row.node_id) for row in await connection.execute(query)}


async def list_instances(connection: AsyncConnection) -> list[Instance]:
    """All instances that are not deleted, oldest first."""
    query = (
        select(instances)
        .where(instances.c.deleted_at.is_(None))
        .order_by(instances.c.created_at, instances.c.instance_id)
    )
    return [_instance(row) for row in (await connection.execute(query)).all()]


def _instance(row: Any) -> Instance:
    return Instance(
        instance_id=row.instance_id,
        model_id=row.model_id,
        card=ModelCard.model_validate(row.card),
        request=row.request,
        plan=plan_from_json(row.plan),
        status=InstanceStatus(row.status),
        status_reason=row.status_reason,
        operation_id=row.operation_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        ready_at=row.ready_at,
    )


async def set_status(
    connection: AsyncConnection,
    instance_id: str,
    status: InstanceStatus,
    reason: str | None = None,
    *,
    operation_id: str | None = None,
    expected: Collection[InstanceStatus] | None = None,
) -> bool:
    """Move an instance on; ready and deleted carry their times, and the given operation becomes its latest.

    With ``expected``, only out of one of these states. A deleted instance never comes back.

    Returns:
        Whether it was moved.
    """
    now = now_on(connection)
    said = None if reason is None else storable(reason)
    values: dict[str, Any] = {"status": status, "status_reason": said, "updated_at": now}
    if operation_id is not None:
        values["operation_id"] = operation_id
    if status is InstanceStatus.READY:
        values["ready_at"] = now
    if status is InstanceStatus.DELETED:
        values["deleted_at"] = now
    query = update(instances).where(instances.c.instance_id == instance_id, instances.c.deleted_at.is_(None))
    if expected is not None:
        query = query.where(instances.c.status.in_([state.value for state in expected]))
    return (await connection.execute(query.values(**values))).rowcount == 1


async def mark_observed(connection: AsyncConnection, instance_id: str) -> None:
    """The instance's memory is in use now, so telemetry shows it as well."""
    await connection.execute(
        update(reservations).where(reservations.c.instance_id == instance_id).values(observed=True)
    )


async def release_memory(connection: AsyncConnection, instance_id: str) -> None:
    """Give the instance's memory back: no process of it is left."""
    await connection.execute(delete(reservations).where(reservations.c.instance_id == instance_id))


async def release(connection: AsyncConnection, instance_id: str) -> None:
    """Give the instance's memory back and forget its runners as well."""
    await release_memory(connection, instance_id)
    await connection.execute(delete(runners).where(runners.c.instance_id == instance_id))


async def list_reservations(connection: AsyncConnection) -> tuple[ReservationFacts, ...]:
    """The whole ledger."""
    rows = (await connection.execute(select(reservations))).all()
    return tuple(
        ReservationFacts(
            instance_id=row.instance_id,
            node_id=row.node_id,
            device_index=None if row.device_index == RAM else row.device_index,
            size_bytes=row.size_bytes,
            observed=row.observed,
        )
        for row in rows
    )


async def save_runner(connection: AsyncConnection, report: RunnerReport) -> None:
    """Keep the latest report of a runner."""
    values = {
        "instance_id": report.instance_id,
        "node_id": report.node_id,
        "report": report.model_dump(mode="json"),
        "updated_at": now_on(connection),
    }
    known = update(runners).where(runners.c.runner_id == report.runner_id).values(**values)
    if (await connection.execute(known)).rowcount == 0:
        await connection.execute(insert(runners).values(runner_id=report.runner_id, **values))


async def list_runners(connection: AsyncConnection) -> list[RunnerReport]:
    """The latest report of every runner of a living instance."""
    rows = (await connection.execute(select(runners.c.report).order_by(runners.c.runner_id))).all()
    return [RunnerReport.model_validate(row.report) for row in rows]


async def record_failure(connection: AsyncConnection, failure: InstanceFailure) -> None:
    """Remember a failure, at most one per instance and 64 in all, the newest kept."""
    await connection.execute(
        delete(instance_failures).where(instance_failures.c.instance_id == failure.instance_id)
    )
    await connection.execute(
        insert(instance_failures).values(
            instance_id=failure.instance_id,
            model_id=failure.model_id,
            error_code=failure.error_code,
            error_message=storable(failure.error_message[:MAX_MESSAGE_CHARACTERS]) or failure.error_code,
            affected_node_ids=sorted(failure.affected_node_ids)[:64],
            log_tail=list(failure.log_tail),
            recorded_at=failure.recorded_at,
        )
    )
    newest = (
        select(instance_failures.c.instance_id)
        .order_by(instance_failures.c.recorded_at.desc(), instance_failures.c.instance_id)
        .limit(MAX_FAILURES)
    )
    kept = {row.instance_id for row in (await connection.execute(newest)).all()}
    if len(kept) == MAX_FAILURES:
        await connection.execute(
            delete(instance_failures).where(instance_failures.c.instance_id.not_in(kept))
        )


async def list_failures(connection: AsyncConnection) -> list[InstanceFailure]:
    """Recorded failures, newest first."""
    query = select(instance_failures).order_by(instance_failures.c.recorded_at.desc())
    return [
        InstanceFailure(
            instance_id=row.instance_id,
            model_id=row.model_id,
            error_code=row.error_code,
            error_message=row.error_message,
            affected_node_ids=tuple(row.affected_node_ids),
            log_tail=tuple(row.log_tail),
            recorded_at=row.recorded_at,
        )
        for row in (await connection.execute(query)).all()
    ]


async def prune_deleted(connection: AsyncConnection, retention_s: float) -> int:
    """Drop instances that were deleted over ``retention_s`` seconds ago; returns how many."""
    now = (await connection.execute(select(now_on(connection)))).scalar_one()
    before = now - timedelta(seconds=retention_s)
    gone = select(instances.c.instance_id).where(instances.c.deleted_at < before)
    for table in (reservations, runners):
        await connection.execute(delete(table).where(table.c.instance_id.in_(gone)))
    return (await connection.execute(delete(instances).where(instances.c.deleted_at < before))).rowcount

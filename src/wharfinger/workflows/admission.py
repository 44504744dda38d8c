"""Admission: the one place where an instance comes into being.

The plan is made again inside the transaction that writes the instance, its reservations and its launch operation,
against the reservation ledger of that very moment. Two launches can therefore never be promised the same memory.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from wharfinger.catalog.card import ModelCard
from wharfinger.operations.model import Conflict, NewOperation, Operation
from wharfinger.operations.store import OperationStore
from wharfinger.placement.planner import plan
from wharfinger.placement.types import FleetSnapshot, NodeFacts, Plan, PlanRequest, PlanResult, Refusal
from wharfinger.store.database import Database
from wharfinger.workflows.facts import excluding_by_name, fleet_snapshot
from wharfinger.workflows.instances import (
    InstanceStatus,
    add_instance,
    get_instance,
    list_instances,
    list_reservations,
    set_status,
)

LAUNCH = "instance.launch"
STOP = "instance.stop"
INSTANCE = "instance"
ADMISSION_LOCK = 0x57_48_41_52
"""PostgreSQL advisory lock that serialises admissions over replicas; SQLite has one writer anyway."""

WAIT_DEADLINE_S = 900.0
"""How long launching or stopping an instance may wait in all for something that does not come."""

Planner = Callable[[FleetSnapshot], PlanResult]


class PlacementRefused(Exception):
    """The planner said no, or not yet."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client sent, before any default of ours: the same key and body mean the same launch."""

    body: dict[str, Any]
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A launch that was accepted; the work goes on under ``operation``."""

    instance_id: str
    card: ModelCard
    plan: Plan
    operation: Operation


class Admission:
    """Turns requests into instances with reserved memory and a durable launch."""

    def __init__(self, database: Database, operations: OperationStore) -> None:
        self._database = database
        self._operations = operations

    async def place(
        self,
        nodes: list[NodeFacts],
        card: ModelCard,
        asked: Asked,
        request: PlanRequest,
        catalog: list[ModelCard],
    ) -> Admitted:
        """Quick launch: the best plan of this moment for ``request``, which is what was asked with our defaults.

        Raises:
            PlacementRefused: nothing fits, or facts are still missing.
            Conflict: the idempotency key was used for another request.
        """

        def best(snapshot: FleetSnapshot) -> PlanResult:
            return plan(snapshot, card, excluding_by_name(request, snapshot.nodes), catalog=catalog)

        return await self._admit(nodes, card, best, asked, _instance_id(asked.idempotency_key))

    async def create(
        self, nodes: list[NodeFacts], card: ModelCard, instance_id: str, asked: Asked, planner: Planner
    ) -> Admitted:
        """Exact create: ``planner`` checks the caller's own placement against the snapshot."""
        return await self._admit(nodes, card, planner, asked, instance_id)

    async def _admit(
        self, nodes: list[NodeFacts], card: ModelCard, planner: Planner, asked: Asked, instance_id: str
    ) -> Admitted:
        body = {"model_id": card.model_id, "request": asked.body}
        new = NewOperation(
            kind=LAUNCH,
            resource_type=INSTANCE,
            resource_name=instance_id,
            request=body | {"instance_id": instance_id},
            idempotency_key=asked.idempotency_key,
            cleanup_if_unstarted=True,
            wait_deadline_s=WAIT_DEADLINE_S,
        )
        async with self._database.begin() as connection:
            await self._serialise(connection)
            repeated = await self._repeated(connection, card, new)
            if repeated is not None:
                return repeated
            snapshot = await self.snapshot(connection, nodes)
            result = planner(snapshot)
            chosen = result.best
            if chosen is None:
                assert result.refusal is not None, "a result without plans carries a refusal"
                raise PlacementRefused(result.refusal)
            await add_instance(connection, instance_id, card, body, chosen)
            operation, _ = await self._operations.submit(
                replace(new, affinity=chosen.node_ids[0]), connection
            )
            await set_status(
                connection, instance_id, InstanceStatus.LAUNCHING, operation_id=operation.operation_id
            )
        return Admitted(instance_id, card, chosen, operation)

    async def _repeated(
        self, connection: AsyncConnection, card: ModelCard, new: NewOperation
    ) -> Admitted | None:
        """The launch this idempotency key already made, deleted since or not.

        Raises:
            Conflict: the instance id is taken by another launch.
        """
        instance = await get_instance(connection, new.resource_name, include_deleted=True)
        if instance is None:
            return None
        if new.idempotency_key is not None:
            operation, created = await self._operations.submit(new, connection)  # compares the bodies
            if not created:
                return Admitted(instance.instance_id, card, instance.plan, operation)
        raise Conflict(
            "instance_exists",
            f"there is or was an instance {new.resource_name!r} already; choose another instance id",
            instance.operation_id or "",
        )

    async def snapshot(self, connection: AsyncConnection, nodes: list[NodeFacts]) -> FleetSnapshot:
        """The fleet with the reservation ledger of this transaction."""
        placed = await list_instances(connection)
        return fleet_snapshot(nodes, await list_reservations(connection), placed)

    async def _serialise(self, connection: AsyncConnection) -> None:
        if not self._database.is_sqlite:
            await connection.execute(select(func.pg_advisory_xact_lock(ADMISSION_LOCK)))


def new_instance_id() -> str:
    """An id that no instance has had before."""
    return f"inst_{secrets.token_hex(8)}"


def _instance_id(idempotency_key: str | None) -> str:
    """A new instance id; the same for the same key, so that a repeated request names the same instance."""
    if idempotency_key is None:
        return new_instance_id()
    return f"inst_{hashlib.sha256(idempotency_key.encode()).hexdigest()[:16]}"

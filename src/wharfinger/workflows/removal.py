"""Giving instances up: a stop is queued, a launch under way is cancelled, and what cannot be reached is abandoned."""

from __future__ import annotations

import asyncio

from wharfinger.operations.feed import follow
from wharfinger.operations.model import Conflict, NewOperation, Operation, OperationState
from wharfinger.operations.store import OperationStore
from wharfinger.store.database import Database
from wharfinger.workflows import instances as rows
from wharfinger.workflows.admission import INSTANCE, LAUNCH, STOP, WAIT_DEADLINE_S
from wharfinger.workflows.fleet_view import FleetView
from wharfinger.workflows.instances import Instance, InstanceStatus, UnknownInstance
from wharfinger.workflows.routes import RoutePublisher

LAST_WRITE_S = 10.0
"""How long a launch that has recorded its failure may take to end before a stop is refused."""


class Removal:
    """Decides what a wish to be rid of an instance becomes."""

    def __init__(
        self, database: Database, operations: OperationStore, routes: RoutePublisher, fleet: FleetView
    ) -> None:
        self._database = database
        self._operations = operations
        self._routes = routes
        self._fleet = fleet

    async def stop(self, instance_id: str, idempotency_key: str | None = None) -> Operation:
        """Begin to delete an instance: a stop is queued, or its launch is cancelled and cleans up.

        The wish is written first, so a launch that fails by itself meanwhile ends in the deletion as well.

        Args:
            instance_id: the instance.
            idempotency_key: finds the stop that it queued again, also after that has ended.

        Raises:
            UnknownInstance.
            Conflict: the key was used for another instance, or a launch that has failed does not come to its end.
        """
        ended: Operation | None = None
        while True:
            try:
                return await self._queue_stop(instance_id, idempotency_key)
            except UnknownInstance:
                if ended is None:
                    raise
                return ended
            except Conflict as busy:
                if busy.code != "resource_busy":
                    raise
                operation = await self._operations.get(busy.operation_id)
                if operation.kind == LAUNCH:
                    operation = await self._end_launch(instance_id, operation, busy)
                if not operation.state.terminal or operation.state is OperationState.CANCELLED:
                    return operation
                ended = operation  # between the two looks: now the way is free

    async def abandon(self, instance: Instance) -> None:
        """Forget an instance whose nodes all left the fleet: recorded as not proven ended.

        Its unresolved work is cancelled, and any replica runs the cleanup, which finds nothing left to do.

        Raises:
            Conflict: a node of it is there, so it can be stopped properly.
        """
        instance_id = instance.instance_id
        async with self._database.begin() as connection:
            here = await self._fleet.heard_of(connection, instance.plan.node_ids)
            if here:
                raise Conflict(
                    "node_present",
                    f"{', '.join(sorted(here))} is in the fleet, so stop {instance_id} without force",
                    instance.operation_id or "",
                )
            await self._operations.abandon(INSTANCE, instance_id, connection)
            await rows.release(connection, instance_id)
            reason = "abandoned while its node was away: not proven ended"
            await rows.set_status(connection, instance_id, InstanceStatus.DELETED, reason)
        self._operations.announce()
        await self._routes.withdraw(instance_id)

    async def _queue_stop(self, instance_id: str, idempotency_key: str | None) -> Operation:
        async with self._database.begin() as connection:
            instance = await rows.get_instance(
                connection, instance_id, include_deleted=idempotency_key is not None
            )
            if instance is None:
                raise UnknownInstance(instance_id)
            operation, created = await self._operations.submit(
                NewOperation(
                    kind=STOP,
                    resource_type=INSTANCE,
                    resource_name=instance_id,
                    request={"instance_id": instance_id},
                    idempotency_key=idempotency_key,
                    affinity=instance.plan.node_ids[0],
                    cleanup_if_unstarted=True,
                    wait_deadline_s=WAIT_DEADLINE_S,
                ),
                connection,
            )
            if created and instance.status is InstanceStatus.DELETED:
                raise UnknownInstance(instance_id)  # another key: nothing is written
            if created:
                await rows.set_status(
                    connection, instance_id, InstanceStatus.STOPPING, operation_id=operation.operation_id
                )
        return operation

    async def _end_launch(self, instance_id: str, launch: Operation, busy: Conflict) -> Operation:
        wished = (InstanceStatus.LAUNCHING, InstanceStatus.READY, InstanceStatus.STOPPING)
        async with self._database.begin() as connection:
            moved = await rows.set_status(
                connection,
                instance_id,
                InstanceStatus.STOPPING,
                operation_id=launch.operation_id,
                expected=wished,
            )
        if moved:
            return await self._operations.request_cancel(launch.operation_id)
        # Its cleanup has recorded how it ended and would not see the wish any more; only its last write is missing.
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                async for _ in follow(self._operations, launch.operation_id, launch.last_sequence):
                    pass
        except TimeoutError:
            raise busy from None
        return await self._operations.get(launch.operation_id)

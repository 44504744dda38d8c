"""``instance.stop``: withdraw, drain, end the runners, and only then say it is gone."""

from __future__ import annotations

import time
from typing import Any

from wharfinger.operations.handler import OperationContext
from wharfinger.workflows import instances as rows
from wharfinger.workflows.instances import InstanceStatus
from wharfinger.workflows.launch import LaunchDependencies, end_runners, forget_runners

_DRAIN_POLL_S = 0.05


class StopHandler:
    """Deletes one instance."""

    def __init__(self, dependencies: LaunchDependencies) -> None:
        self._d = dependencies

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Stop an instance; one that is gone already is a success."""
        instance_id = context.operation.resource_name
        async with self._d.database.read() as connection:
            instance = await rows.get_instance(connection, instance_id)
        if instance is None:
            return {"instance_id": instance_id}
        await self._d.routes.withdraw(instance_id)
        await context.checkpoint("withdraw", progress=20, message="route withdrawn")
        left = await self._drain(context, instance.runner_id(0))
        if context.cancelled:
            return None  # the cleanup follows, drains to its deadline and finishes the stop
        cut_off = f"{_requests(left)} cut off" if left else ""
        await context.checkpoint("drain", progress=50, message=cut_off or "no request is running")
        await end_runners(self._d, instance)
        async with self._d.fenced(context) as connection:
            await rows.release(connection, instance_id)
            await rows.set_status(connection, instance_id, InstanceStatus.DELETED)
        await forget_runners(self._d, instance)
        await context.checkpoint(
            "delete",
            progress=99,
            message="; ".join(filter(None, ("runners ended, memory released", cut_off))),
        )
        return {"instance_id": instance_id}

    async def cleanup(self, context: OperationContext) -> None:
        """Finish the stop: half a deletion is no state to leave anything in."""
        await self.run(context)

    async def _drain(self, context: OperationContext, target_id: str) -> int:
        """Wait for running requests of this gateway; returns how many are left at the deadline or a cancel."""
        deadline = time.monotonic() + self._d.drain_timeout_s
        running = self._d.routes.table.in_flight(target_id)
        if running:
            message = f"waiting up to {self._d.drain_timeout_s:.0f} s for {_requests(running)}"
            await context.checkpoint("drain", "running", message=message)
        while (left := self._d.routes.table.in_flight(target_id)) and time.monotonic() < deadline:
            if context.cancelled:
                break
            await context.sleep(_DRAIN_POLL_S)
        return left


def _requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"

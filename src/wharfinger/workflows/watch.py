"""Sees runners die, ends those that belong to nobody, and brings instances back after a restart."""

from __future__ import annotations

import structlog
from sqlalchemy import update

from wharfinger.fleet.agent import AgentError, NodeAgent, RunnerReport, StopDeadlines
from wharfinger.operations.model import Conflict, NewOperation
from wharfinger.operations.store import OperationStore
from wharfinger.store.tables import reservations
from wharfinger.workflows import instances as rows
from wharfinger.workflows.admission import INSTANCE, LAUNCH, STOP, WAIT_DEADLINE_S
from wharfinger.workflows.instances import Instance, InstanceStatus
from wharfinger.workflows.launch import LaunchDependencies, end_runners, failure_of, forget_runners

POLL_S = 0.5
"""A dead runner is seen within this time; the contract allows 2 s."""

log = structlog.get_logger(__name__)


class RunnerWatch:
    """Follows every runner of the nodes this process reaches."""

    def __init__(self, dependencies: LaunchDependencies, operations: OperationStore) -> None:
        self._d = dependencies
        self._operations = operations
        self.reports: dict[str, RunnerReport] = {}
        """Latest report of every runner on our nodes, by runner id."""

    async def look(self) -> None:
        """Read all runners once: fail the ready instances whose runner has ended, end what no instance wants.

        The runners are read before the instances: whoever starts one has seen its instance committed, so a launch
        under way is never taken for a runner that belongs to nobody.
        """
        found = [
            (agent, report) for agent in self._d.fleet.agents.values() for report in await agent.runners()
        ]
        self.reports = {report.runner_id: report for _, report in found}
        if not found:
            return
        async with self._d.database.read() as connection:
            wanted = await rows.living(connection, {report.instance_id for _, report in found})
        for _, report in found:
            if report.state.ended and report.instance_id in wanted:
                await self._ended(report)
        for agent, report in found:  # last, because ending one may take its time
            if report.instance_id not in wanted:
                await self._end_unwanted(agent, report)

    async def _end_unwanted(self, agent: NodeAgent, report: RunnerReport) -> None:
        """End a runner whose instance was deleted without it: abandoned while its node could not be seen, say."""
        try:
            if not report.state.ended:
                log.warning(
                    "runner of no instance", instance_id=report.instance_id, runner_id=report.runner_id
                )
                await agent.stop_runner(report.runner_id, StopDeadlines())
            await agent.forget_runner(report.runner_id)
        except AgentError as error:  # the next look tries again
            log.error("runner not ended", runner_id=report.runner_id, code=error.code, reason=str(error))

    async def _ended(self, report: RunnerReport) -> None:
        async with self._d.database.read() as connection:
            instance = await rows.get_instance(connection, report.instance_id)
        if instance is None:
            return  # deleted just now: the next look forgets the runner
        if instance.status is not InstanceStatus.READY:
            return  # its launch or stop operation is at work and sees the same report
        code = report.error_code or "runner_crashed"
        message = report.error_message or f"the runner ended with exit code {report.exit_code}"
        log.error("runner died", instance_id=instance.instance_id, runner_id=report.runner_id, code=code)
        await end_runners(self._d, instance)
        async with self._d.database.begin() as connection:
            ready = (InstanceStatus.READY,)
            failed = InstanceStatus.FAILED
            if not await rows.set_status(connection, instance.instance_id, failed, message, expected=ready):
                return  # somebody began to stop it meanwhile
            await rows.save_runner(connection, report)
            await rows.release_memory(connection, instance.instance_id)
            await rows.record_failure(connection, failure_of(instance, code, message, [report]))
        await forget_runners(self._d, instance)

    async def bring_back(self) -> list[str]:
        """At start: relaunch every instance of our nodes that should run, since runners end with their process.

        Returns the ids of the instances that are being launched again. Instances with unresolved work are left
        to that work, which resumes by itself.
        """
        ours = self._d.fleet.agents.keys()
        async with self._d.database.read() as connection:
            placed = await rows.list_instances(connection)
        relaunched: list[str] = []
        for instance in placed:
            if not ours & set(instance.plan.node_ids):
                continue
            await self._d.routes.withdraw(instance.instance_id)
            kind = {
                InstanceStatus.READY: LAUNCH,
                InstanceStatus.LAUNCHING: LAUNCH,
                InstanceStatus.STOPPING: STOP,
            }.get(instance.status)
            if kind is not None and await self._resubmit(kind, instance):
                relaunched.append(instance.instance_id)
        return relaunched

    async def _resubmit(self, kind: str, instance: Instance) -> bool:
        new = NewOperation(
            kind=kind,
            resource_type=INSTANCE,
            resource_name=instance.instance_id,
            request=instance.request | {"instance_id": instance.instance_id},
            affinity=instance.plan.node_ids[0],
            cleanup_if_unstarted=True,
            wait_deadline_s=WAIT_DEADLINE_S,
        )
        status = InstanceStatus.LAUNCHING if kind == LAUNCH else InstanceStatus.STOPPING
        async with self._d.database.begin() as connection:
            try:
                operation, _ = await self._operations.submit(new, connection)
                operation_id = operation.operation_id
            except Conflict as unresolved:
                operation_id = unresolved.operation_id  # it resumes by itself, from discovery
            await rows.set_status(
                connection, instance.instance_id, status, "restarted", operation_id=operation_id
            )
            await connection.execute(
                update(reservations)
                .where(reservations.c.instance_id == instance.instance_id)
                .values(observed=False)
            )
        return kind == LAUNCH

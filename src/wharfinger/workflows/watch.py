"""Sees runners die, ends those that belong to nobody, and brings instances back after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from sqlalchemy import update

from wharfinger.fleet.agent import AgentError, NodeAgent, RunnerReport, StopDeadlines
from wharfinger.operations.model import Conflict, NewOperation, RetryableError
from wharfinger.operations.store import OperationStore
from wharfinger.store.errors import StoreUnavailable
from wharfinger.store.tables import reservations
from wharfinger.workflows import instances as rows
from wharfinger.workflows.admission import INSTANCE, LAUNCH, STOP, WAIT_DEADLINE_S
from wharfinger.workflows.instances import Instance, InstanceStatus
from wharfinger.workflows.launch import LaunchDependencies, end_runners, failure_of, forget_runners

POLL_S = 0.5
"""A dead runner is seen within this time; the contract allows 2 s."""
ROWLESS_LOOKS = 20
"""A runner is nobody's once this many looks in a row, so about 10 s, found no row of its instance at all. One look may
meet a database that is just being restored."""
RETRY_PAUSE_S = 2.0
"""How long what failed for one runner is left alone."""

log = structlog.get_logger(__name__)


class RunnerWatch:
    """Follows every runner of the nodes this process reaches."""

    def __init__(self, dependencies: LaunchDependencies, operations: OperationStore) -> None:
        self._d = dependencies
        self._operations = operations
        self.reports: dict[str, RunnerReport] = {}
        """Latest report of every runner on our nodes, by runner id."""
        self.at_work: dict[str, asyncio.Task[None]] = {}
        """What is being done now, by the id of the instance that has died or of the runner that is nobody's. It may
        take its time, and must not keep the watch from seeing what happens to others."""
        self._rowless_looks: dict[str, int] = {}

    async def look(self) -> None:
        """Read all runners once: fail the ready instances whose runner has ended or is missing, end what no instance
        wants.

        The runners are read before the instances: whoever starts one has seen its instance committed, so a launch
        under way is never taken for a runner that belongs to nobody.
        """
        busy = frozenset(self.at_work)  # may be done by the time what is read now is looked at
        found = await self._read_runners()
        reports = [report for of_node in found.values() for report in of_node]
        self.reports = {report.runner_id: report for report in reports}
        async with self._d.database.read() as connection:
            statuses = await rows.statuses(connection, {report.instance_id for report in reports})
            ready = await rows.ready_on(connection, found.keys())
        ended = {(report.instance_id, report.node_id) for report in reports if report.state.ended}
        missing = ready - {(report.instance_id, report.node_id) for report in reports}
        for instance_id in {instance_id for instance_id, _ in ready & ended | missing}:
            self._begin(instance_id, busy, partial(self._fail_if_dead, instance_id))
        self._rowless_looks = {
            report.runner_id: self._rowless_looks.get(report.runner_id, 0) + 1
            for report in reports
            if report.instance_id not in statuses
        }
        for node_id, of_node in found.items():
            for report in of_node:
                deleted = statuses.get(report.instance_id) is InstanceStatus.DELETED
                if deleted or self._rowless_looks.get(report.runner_id, 0) >= ROWLESS_LOOKS:
                    work = partial(self._end_unwanted, self._d.fleet.agents[node_id], report)
                    self._begin(report.runner_id, busy, work)

    async def close(self) -> None:
        """Give up what is being done."""
        tasks = list(self.at_work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_runners(self) -> dict[str, tuple[RunnerReport, ...]]:
        """The runners of each of our nodes that answers."""
        found: dict[str, tuple[RunnerReport, ...]] = {}
        for node_id, agent in self._d.fleet.agents.items():
            try:
                found[node_id] = await agent.runners()
            except AgentError as error:
                log.warning("runners not seen", node_id=node_id, code=error.code, reason=str(error))
        return found

    def _begin(self, key: str, busy: frozenset[str], work: Callable[[], Awaitable[None]]) -> None:
        if key not in busy:
            self.at_work[key] = asyncio.create_task(self._at(key, work))

    async def _at(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``; when it fails, a later look begins it again."""
        try:
            await work()
        except (AgentError, RetryableError, StoreUnavailable) as error:
            log.warning("end of a runner not settled, trying again", of=key, reason=str(error))
            await asyncio.sleep(RETRY_PAUSE_S)
        except Exception as error:
            log.error("end of a runner not settled, trying again", of=key, exc_info=error)
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            del self.at_work[key]

    async def _end_unwanted(self, agent: NodeAgent, report: RunnerReport) -> None:
        """End a runner whose instance was deleted without it: abandoned while its node could not be seen, say."""
        if not report.state.ended:
            log.warning("runner of no instance", instance_id=report.instance_id, runner_id=report.runner_id)
            await agent.stop_runner(report.runner_id, StopDeadlines())
        await agent.forget_runner(report.runner_id)

    async def _fail_if_dead(self, instance_id: str) -> None:
        async with self._d.database.read() as connection:
            instance = await rows.get_instance(connection, instance_id)
        if instance is None or instance.status is not InstanceStatus.READY:
            return  # deleted just now, or its launch or stop operation is at work and sees the same report
        # Its runners are read again, now that it was seen ready: an end from before may be that of an earlier attempt.
        dead = await self._first_dead(instance)
        if dead is None:
            return
        runner_id, report = dead
        if report is None:
            code, message = "runner_crashed", f"its node has no runner {runner_id} any more"
        else:
            code = report.error_code or "runner_crashed"
            message = report.error_message or f"the runner ended with exit code {report.exit_code}"
        log.error("runner died", instance_id=instance_id, runner_id=runner_id, code=code)
        await end_runners(self._d, instance)
        ended = [] if report is None else [report]
        async with self._d.database.begin() as connection:
            ready = (InstanceStatus.READY,)
            failed = InstanceStatus.FAILED
            if not await rows.set_status(connection, instance_id, failed, message, expected=ready):
                return  # somebody began to stop it meanwhile
            for last in ended:
                await rows.save_runner(connection, last)
            await rows.release_memory(connection, instance_id)
            await rows.record_failure(connection, failure_of(instance, code, message, ended))
        await forget_runners(self._d, instance)

    async def _first_dead(self, instance: Instance) -> tuple[str, RunnerReport | None] | None:
        """The first runner on our nodes that has ended, with its report, or that its node does not know."""
        for rank in instance.plan.ranks:
            agent = self._d.fleet.agents.get(rank.node_id)
            if agent is None:
                continue
            runner_id = instance.runner_id(rank.rank)
            reports = {report.runner_id: report for report in await agent.runners()}
            report = reports.get(runner_id)
            if report is None or report.state.ended:
                return runner_id, report
        return None

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
            seen = (instance.status,)
            if not await rows.set_status(
                connection,
                instance.instance_id,
                status,
                "restarted",
                operation_id=operation_id,
                expected=seen,
            ):
                await connection.rollback()  # another replica stops it, say: its work, not ours
                return False
            await connection.execute(
                update(reservations)
                .where(reservations.c.instance_id == instance.instance_id)
                .values(observed=False)
            )
        return kind == LAUNCH

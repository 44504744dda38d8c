"""``instance.launch``: from an admitted plan to a routed, proven endpoint.

Every attempt starts from what is there: a runner that already lives is adopted by its id, a finished step is only
repeated where the world must be looked at again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncConnection

from wharfinger.access.secrets import InstallationSecret
from wharfinger.catalog.library import CatalogLibrary, UnknownModel
from wharfinger.engines.registry import engine_for
from wharfinger.fleet.agent import AgentError, RunnerReport, RunnerSpec, RunnerState, StopDeadlines
from wharfinger.operations.handler import OperationContext
from wharfinger.operations.model import OperationState, PermanentError, RetryableError, Waiting
from wharfinger.operations.store import OperationStore
from wharfinger.placement.types import RankPlan
from wharfinger.routing.targets import Target
from wharfinger.runtimes.inspect import Verdict, inspect
from wharfinger.store.database import Database
from wharfinger.workflows import instances as rows
from wharfinger.workflows.fleet_view import FleetView
from wharfinger.workflows.instances import Instance, InstanceFailure, InstanceStatus
from wharfinger.workflows.routes import RoutePublisher

log = structlog.get_logger(__name__)

FALLBACK_CONTEXT_TOKENS = 8192
"""Window when neither card nor memory says one (the contract's back-fill)."""
_POLL_S = 2.0
_PROGRESS = {
    RunnerState.IDLE: 25,
    RunnerState.LOADING: 40,
    RunnerState.LOADED: 70,
    RunnerState.WARMING_UP: 80,
}
_READY_PROGRESS = 85
_FAILS_FROM = (InstanceStatus.LAUNCHING, InstanceStatus.READY, InstanceStatus.FAILED)
"""Where a failed launch may find its instance. The last: its cleanup is tried again after it was recorded."""


@dataclass(frozen=True, slots=True)
class LaunchDependencies:
    """What launching and stopping need."""

    database: Database
    catalog: CatalogLibrary
    fleet: FleetView
    routes: RoutePublisher
    secret: InstallationSecret
    operations: OperationStore
    drain_timeout_s: float = 30.0

    @asynccontextmanager
    async def fenced(self, context: OperationContext) -> AsyncIterator[AsyncConnection]:
        """A transaction that only the holder of the operation's lease can commit.

        Raises:
            LeaseLost: another worker has taken over; nothing was written.
        """
        async with self.database.begin() as connection:
            await self.operations.hold(context.lease, connection)
            yield connection


class LaunchHandler:
    """Runs one launch; see the module for the steps."""

    def __init__(self, dependencies: LaunchDependencies) -> None:
        self._d = dependencies

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Start the runners of an instance, prove them, route to them.

        Raises:
            PermanentError: the model cannot be served like this; cleanup follows.
            RetryableError: a node did not answer; the next attempt starts from discovery.
        """
        instance = await self._instance(context)
        path = await self._files(context, instance)
        ready = await self._runners(context, instance, path)
        if context.cancelled:
            raise PermanentError("cancelled", "the launch was cancelled")
        await self._inspect(context, instance, ready[0])
        await self._route(context, instance, ready[0])
        return {
            "instance_id": instance.instance_id,
            "endpoint": ready[0].endpoint,
            "engine_load_s": ready[0].engine_load_s,
        }

    async def cleanup(self, context: OperationContext) -> None:
        """Leave nothing: route withdrawn, runners ended, memory released, the reason kept."""
        instance_id = context.operation.resource_name
        async with self._d.database.read() as connection:
            instance = await rows.get_instance(connection, instance_id)
        if instance is None:
            return
        reports = await end_runners(self._d, instance)
        await self._record_end(context, instance, reports)
        await forget_runners(self._d, instance)

    async def _record_end(
        self, context: OperationContext, instance: Instance, reports: list[RunnerReport]
    ) -> None:
        instance_id = instance.instance_id
        operation = context.outcome
        code = operation.error_code or "placement_failed"
        message = operation.error_message or "the launch failed"
        async with self._d.fenced(context) as connection:
            failed = operation.cleaning_for is not OperationState.CANCELLED and await rows.set_status(
                connection, instance_id, InstanceStatus.FAILED, message, expected=_FAILS_FROM
            )
            if (
                not failed
            ):  # it was cancelled, or somebody wished it gone: by a stop, or for good by an abandon
                await rows.release(connection, instance_id)
                await rows.set_status(connection, instance_id, InstanceStatus.DELETED, "cancelled")
                return
            for report in reports:
                await rows.save_runner(connection, report)
            await rows.release_memory(connection, instance_id)
            await rows.record_failure(connection, failure_of(instance, code, message, reports))

    async def _instance(self, context: OperationContext) -> Instance:
        async with self._d.database.read() as connection:
            instance = await rows.get_instance(connection, context.operation.resource_name)
        if instance is None:
            raise PermanentError("instance_gone", "the instance was deleted before it was launched")
        if instance.status is InstanceStatus.STOPPING:
            raise PermanentError("cancelled", "the instance is being deleted")
        return instance

    async def _files(self, context: OperationContext, instance: Instance) -> str:
        try:
            entry = await self._d.catalog.get(instance.model_id)
        except UnknownModel as error:
            raise PermanentError("model_removed", str(error)) from error
        if entry.card.digest != instance.card.digest:
            raise PermanentError(
                "model_replaced",
                f"the catalog has another {instance.model_id} now than the one this instance was planned with; "
                "launch it again",
            )
        path = entry.artifact_path
        if path is None or not await self._present(instance, path):
            raise PermanentError(
                "download_failed",
                f"the file of {instance.model_id} is missing ({path or 'no path recorded'}); "
                "put it back or add the model again with: wharf models add FILE",
            )
        await context.checkpoint("files", progress=10, message=f"model file {Path(path).name} is here")
        return path

    async def _present(self, instance: Instance, path: str) -> bool:
        """Whether every node of the instance has the file; asked of the nodes, whose disks these are."""
        try:
            found = [await self._d.fleet.agent(node).has_files((path,)) for node in instance.plan.node_ids]
        except AgentError as error:
            raise RetryableError(error.code, str(error)) from error
        return all(here for (here,) in found)

    async def _runners(self, context: OperationContext, instance: Instance, path: str) -> list[RunnerReport]:
        """The ready runners by rank. All are started before any is waited for, since ranks that share a model load
        only once they have met; the first that fails ends the waiting for the others, and its cause is the launch's.
        """
        ranks = instance.plan.ranks
        specs = [self._spec(instance, rank, path) for rank in ranks]
        progress = dict.fromkeys((rank.rank for rank in ranks), 0)
        async with asyncio.TaskGroup() as group:
            starting = [
                group.create_task(self._start(context, rank, spec))
                for rank, spec in zip(ranks, specs, strict=True)
            ]
        async with asyncio.TaskGroup() as group:
            loading = [
                group.create_task(self._ready(context, rank, started.result(), progress))
                for rank, started in zip(ranks, starting, strict=True)
            ]
        return [task.result() for task in loading]

    async def _start(self, context: OperationContext, rank: RankPlan, spec: RunnerSpec) -> RunnerReport:
        identity = {"runner_id": spec.runner_id, "node_id": rank.node_id}
        await context.persist_identity(_step(rank), identity)
        with _told_by_the_node():
            return await self._d.fleet.agent(rank.node_id).start_runner(spec)

    async def _ready(
        self, context: OperationContext, rank: RankPlan, report: RunnerReport, progress: dict[int, int]
    ) -> RunnerReport:
        """Follow one runner until it is ready. ``progress`` holds that of every rank; the slowest one's is told."""
        shown: RunnerState | None = None
        while report.state not in (RunnerState.READY, RunnerState.RUNNING):
            if report.state.ended:
                raise PermanentError(
                    report.error_code or "runner_crashed", report.error_message or "the runner ended"
                )
            if report.state is not shown:
                shown = report.state
                progress[rank.rank] = _PROGRESS.get(shown, 20)
                await context.checkpoint(
                    _step(rank),
                    "running",
                    payload={"state": shown.value, "pid": report.pid},
                    progress=min(progress.values()),
                    message=f"{shown.value.removeprefix('Runner').lower()} on {self._d.fleet.name(rank.node_id)}",
                )
            if context.cancelled:
                raise PermanentError("cancelled", "the launch was cancelled")
            with _told_by_the_node():
                agent = self._d.fleet.agent(rank.node_id)
                report = await agent.wait_runner(report.runner_id, report, _POLL_S)
        progress[rank.rank] = _READY_PROGRESS
        await context.checkpoint(
            _step(rank),
            payload={"endpoint": report.endpoint, "engine_load_s": report.engine_load_s},
            progress=min(progress.values()),
            message=f"runner {report.runner_id} is ready",
        )
        return report

    def _spec(self, instance: Instance, rank: RankPlan, path: str) -> RunnerSpec:
        plan = instance.plan
        return RunnerSpec(
            runner_id=instance.runner_id(rank.rank),
            instance_id=instance.instance_id,
            model_id=instance.model_id,
            backend=rank.backend,
            model_path=path,
            context_tokens=_context_tokens(instance),
            slots=plan.settings.slots,
            port=plan.port if len(plan.ranks) > 1 else None,  # alone, any port the node finds free will do
            api_key=SecretStr(self._d.secret.runner_key(instance.runner_id(0))),
            rank=rank.rank,
            world_size=len(plan.ranks),
            start_layer=rank.start_layer,
            end_layer=rank.end_layer,
            n_layers=instance.card.n_layers,
            batch_tokens=plan.settings.micro_batch_tokens,
            micro_batch_tokens=plan.settings.micro_batch_tokens,
            cache_type_k=plan.settings.cache_type_k,
            cache_type_v=plan.settings.cache_type_v,
            chat_template=None if instance.card.chat is None else instance.card.chat.template,
            chat_stop=() if instance.card.chat is None else instance.card.chat.stop,
            embedding="TextEmbedding" in instance.card.tasks,
        )

    async def _inspect(self, context: OperationContext, instance: Instance, report: RunnerReport) -> None:
        assert report.endpoint is not None, "a ready runner listens"
        key = self._d.secret.runner_key(instance.runner_id(0))
        async with aiohttp.ClientSession() as session:
            found = await inspect(
                session,
                report.endpoint,
                instance.model_id,
                api_key=key,
                context_tokens=_context_tokens(instance),
            )
        if found.verdict is Verdict.WRONG:
            raise PermanentError(found.reason, found.detail)
        if found.verdict is not Verdict.READY:
            raise Waiting("runtime_starting", found.detail)
        await context.checkpoint(
            "inspect",
            payload={"latency_s": round(found.latency_s, 4)},
            progress=92,
            message="endpoint proven",
        )

    async def _route(self, context: OperationContext, instance: Instance, report: RunnerReport) -> None:
        assert report.endpoint is not None, "a ready runner listens"
        engine = engine_for(instance.plan.ranks[0].backend)
        target = Target(
            target_id=instance.runner_id(0),
            model_id=instance.model_id,
            upstream_model=instance.model_id,
            base_url=report.endpoint,
            instance_id=instance.instance_id,
            context_tokens=instance.plan.context_tokens,
            created_unix_s=int(time.time()),
            tasks=instance.card.tasks,
            collects=engine is not None and engine.notices_hangup_only_of_streams,
        )
        async with self._d.fenced(context) as connection:
            # Ready already where an earlier attempt was cut off right after this.
            launched = (InstanceStatus.LAUNCHING, InstanceStatus.READY)
            moved = await rows.set_status(
                connection, instance.instance_id, InstanceStatus.READY, expected=launched
            )
            if not moved:
                raise PermanentError("cancelled", "the instance is being deleted")
            await rows.save_runner(connection, report)
            await rows.mark_observed(connection, instance.instance_id)
            await self._d.routes.register(connection, target, report.node_id)
        await self._d.routes.refresh()
        await context.checkpoint("route", progress=99, message=f"{instance.model_id} is routed")


def _step(rank: RankPlan) -> str:
    return f"runner.{rank.rank}"


@contextmanager
def _told_by_the_node() -> Iterator[None]:
    """A node that cannot be reached may be later; what it refuses, it refuses for good."""
    try:
        yield
    except AgentError as error:
        if error.code == "node_unavailable":
            raise RetryableError(error.code, str(error)) from error
        raise PermanentError(error.code, str(error)) from error


def _context_tokens(instance: Instance) -> int:
    return instance.plan.context_tokens or FALLBACK_CONTEXT_TOKENS


async def end_runners(d: LaunchDependencies, instance: Instance) -> list[RunnerReport]:
    """Withdraw the route and end every runner of an instance; returns their last reports.

    Raises:
        RetryableError: a node that may still run one does not answer. Nothing is then called ended.
    """
    await d.routes.withdraw(instance.instance_id)
    ended = await asyncio.gather(
        *(_end(d.fleet, rank.node_id, instance.runner_id(rank.rank)) for rank in instance.plan.ranks),
        return_exceptions=True,
    )
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in ended if isinstance(outcome, RunnerReport)]


async def _end(fleet: FleetView, node_id: str, runner_id: str) -> RunnerReport | None:
    """End one runner; ``None`` when its node knows none of that id."""
    try:
        agent = fleet.agent(node_id)
        if runner_id in {report.runner_id for report in await agent.runners()}:
            return await agent.stop_runner(runner_id, StopDeadlines())
    except AgentError as error:
        raise RetryableError(error.code, str(error)) from error
    return None


async def forget_runners(d: LaunchDependencies, instance: Instance) -> None:
    """Drop the nodes' records of an instance's ended runners.

    Only after what they say is committed: a cleanup that is tried again must find the log's tail again.
    """
    for rank in instance.plan.ranks:
        try:
            await d.fleet.agent(rank.node_id).forget_runner(instance.runner_id(rank.rank))
        except AgentError as error:
            log.warning("runner not forgotten", instance_id=instance.instance_id, reason=str(error))


def failure_of(instance: Instance, code: str, message: str, reports: list[RunnerReport]) -> InstanceFailure:
    """The failure record of an instance, with the last log lines of its runners."""
    return InstanceFailure(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        error_code=code,
        error_message=message,
        affected_node_ids=tuple(sorted(set(instance.plan.node_ids))),
        log_tail=tuple(line for report in reports for line in report.log_tail),
        recorded_at=datetime.now(UTC),
    )

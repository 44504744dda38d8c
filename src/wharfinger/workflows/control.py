"""The control plane as one object: what the API, the dashboard and the composition root use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from wharfinger.access.secrets import InstallationSecret
from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.library import CatalogLibrary
from wharfinger.engines.registry import STARTED_ENGINES
from wharfinger.fleet.agent import LogChunk, NodeAgent, RunnerReport
from wharfinger.operations.model import Conflict, Operation
from wharfinger.operations.recurring import Recurrence, Retention, Schedule
from wharfinger.operations.store import OperationStore
from wharfinger.operations.worker import Worker
from wharfinger.placement.backends import preferring
from wharfinger.placement.hypothetical import add_what_if
from wharfinger.placement.previews import PreviewAnswer, preview_answer
from wharfinger.placement.serial import request_to_json
from wharfinger.placement.types import FleetSnapshot, NodeFacts, PlanRequest, Sharding
from wharfinger.routing.targets import RouteTable
from wharfinger.settings import Settings
from wharfinger.store.database import Database
from wharfinger.store.errors import StoreUnavailable
from wharfinger.workflows import instances as rows
from wharfinger.workflows.admission import (
    LAUNCH,
    STOP,
    Admission,
    Admitted,
    Asked,
    PlacementRefused,
    Planner,
)
from wharfinger.workflows.facts import excluding_by_name
from wharfinger.workflows.fleet_view import HEARTBEAT_S, FleetView
from wharfinger.workflows.instances import Instance, InstanceFailure, UnknownInstance
from wharfinger.workflows.launch import LaunchDependencies, LaunchHandler
from wharfinger.workflows.loops import forever
from wharfinger.workflows.removal import Removal
from wharfinger.workflows.retention import InstanceRetention
from wharfinger.workflows.routes import REFRESH_S, RoutePublisher
from wharfinger.workflows.stop import StopHandler
from wharfinger.workflows.watch import POLL_S, RunnerWatch

INFO_PENDING = "placement_info_pending"
INFO_PENDING_WAIT_S = 15.0
"""How long a launch waits for missing facts before it answers 503 (the contract's figure)."""

RETENTION_EVERY_S = 3600.0
SCHEDULE_RETRY_S = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Previews:
    """Where a model could run, and the facts that says it."""

    card: ModelCard
    snapshot: FleetSnapshot
    answer: PreviewAnswer


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance with what is known of its runners right now."""

    instance: Instance
    runners: tuple[RunnerReport, ...]


class ControlPlane:
    """Facts, plans and durable work of one installation."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        catalog: CatalogLibrary,
        agents: Mapping[str, NodeAgent],
        table: RouteTable,
        secret: InstallationSecret,
        owner: str,
    ) -> None:
        self.settings = settings
        self.database = database
        self.catalog = catalog
        self.table = table
        self.operations = OperationStore(database)
        self.fleet = FleetView(database, agents)
        self.routes = RoutePublisher(database, table, secret, agents.keys())
        self._dependencies = LaunchDependencies(
            database, catalog, self.fleet, self.routes, secret, self.operations, settings.drain_timeout_s
        )
        retention_s = settings.operation_retention_days * 86400
        self.watch = RunnerWatch(self._dependencies, self.operations)
        self.admission = Admission(database, self.operations)
        self._removal = Removal(database, self.operations, self.routes, self.fleet)
        self.worker = Worker(
            self.operations,
            {
                LAUNCH: LaunchHandler(self._dependencies),
                STOP: StopHandler(self._dependencies),
                Retention.KIND: Retention(self.operations, retention_s),
                InstanceRetention.KIND: InstanceRetention(database, retention_s),
            },
            owner=owner,
            affinities=frozenset(agents),
        )
        self._schedule = Schedule(
            self.operations,
            [
                Recurrence(Retention.KIND, RETENTION_EVERY_S),
                Recurrence(InstanceRetention.KIND, RETENTION_EVERY_S),
            ],
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = asyncio.Event()
        """Set first when the process goes down: whoever streams to a client ends the stream."""

    async def start(self) -> None:
        """Learn the fleet, bring back what should run, and begin to work."""
        await self.fleet.heartbeat()
        relaunched = await self.watch.bring_back()
        if relaunched:
            log.info("relaunching instances", instance_ids=relaunched)
        await self.routes.refresh()
        loops = {
            "fleet": forever("fleet", self.fleet.heartbeat, HEARTBEAT_S),
            "routes": forever("routes", self.routes.refresh, REFRESH_S),
            "watch": forever("watch", self.watch.look, POLL_S),
            "schedule": forever("schedule", self._schedule.run, SCHEDULE_RETRY_S),
            "worker": self.worker.run(),
        }
        self._tasks = [asyncio.create_task(work, name=name) for name, work in loops.items()]

    async def close(self) -> None:
        """Stop working: leases are given back, runners end with their agents."""
        await self.worker.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.watch.close()
        try:
            await self.routes.withdraw_all()
            await self.fleet.leave()
        except StoreUnavailable as error:
            log.warning("not signed off, the next start does it", reason=str(error))
        await asyncio.gather(*(agent.close() for agent in self.fleet.agents.values()))

    @property
    def failed_task(self) -> str | None:
        """Name of a background loop that ended although it never should; ``None`` while all run."""
        return next((task.get_name() for task in self._tasks if task.done()), None)

    # ── where can it run ──────────────────────────────────────────────────────────────────────────────────────

    async def snapshot(self) -> FleetSnapshot:
        """The fleet now, with the reservation ledger."""
        await self.fleet.measure()
        facts = await self._facts()
        async with self.database.read() as connection:
            return await self.admission.snapshot(connection, facts)

    async def previews(
        self,
        model_id: str,
        request: PlanRequest,
        *,
        what_if: Sequence[str] = (),
        sharding: Sharding | None = None,
    ) -> Previews:
        """What a launch could choose from now, with the reasons of the other nodes.

        Args:
            model_id: the model.
            request: sharding and meta of it are varied, the rest holds for every row.
            what_if: machines to imagine beside the fleet, e.g. ``+1xH100-80GB``.
            sharding: only rows of this sharding.

        Raises:
            UnknownModel: the catalog has no such card.
            FleetError: a ``what_if`` machine is not known.
        """
        card = (await self.catalog.get(model_id)).card
        snapshot = add_what_if(await self.snapshot(), what_if)
        wanted = excluding_by_name(self.with_defaults(request), snapshot.nodes)
        # A machine that is imagined has every engine of its hardware; those that would be started come first.
        planned_for = preferring(card, STARTED_ENGINES) if what_if else card
        answer = preview_answer(snapshot, planned_for, wanted, catalog=await self.cards(), sharding=sharding)
        return Previews(card, snapshot, answer)

    # ── make it run, make it stop ─────────────────────────────────────────────────────────────────────────────

    async def place(
        self, model_id: str, request: PlanRequest, *, idempotency_key: str | None = None
    ) -> Admitted:
        """Quick launch; waits up to 15 s for facts that are still missing.

        Raises:
            UnknownModel, PlacementRefused, Conflict.
        """
        entry = await self.catalog.get(model_id)
        catalog = await self.cards()
        waited_s = 0.0
        while True:
            await self.fleet.measure()
            try:
                admitted = await self.admission.place(
                    await self._facts(),
                    entry.card,
                    Asked(request_to_json(request), idempotency_key),
                    self.with_defaults(request),
                    catalog,
                )
            except PlacementRefused as refused:
                if refused.refusal.category != INFO_PENDING or waited_s >= INFO_PENDING_WAIT_S:
                    raise
                await asyncio.sleep(1.0)
                waited_s += 1.0
                continue
            self.worker.wake()
            return admitted

    async def create(
        self,
        card: ModelCard,
        instance_id: str,
        asked: Asked,
        planner: Planner,
    ) -> Admitted:
        """Exact create of a placement the caller computed; ``planner`` checks it.

        Raises:
            PlacementRefused, Conflict.
        """
        await self.fleet.measure()
        admitted = await self.admission.create(await self._facts(), card, instance_id, asked, planner)
        self.worker.wake()
        return admitted

    async def stop(self, instance_id: str, *, idempotency_key: str | None = None) -> Operation:
        """Begin to delete an instance; see :meth:`Removal.stop`.

        Raises:
            UnknownInstance, Conflict.
        """
        operation = await self._removal.stop(instance_id, idempotency_key)
        self.worker.wake()
        return operation

    async def abandon(self, instance_id: str) -> None:
        """Forget an instance whose nodes all left the fleet; see :meth:`Removal.abandon`.

        Raises:
            UnknownInstance, Conflict.
        """
        await self._removal.abandon((await self.instance(instance_id)).instance)

    async def remove_model(self, model_id: str) -> None:
        """Take a custom model out of the catalog; its file stays.

        Raises:
            UnknownModel, NotRemovableError.
            Conflict: an instance uses it.
        """
        for view in await self.instances():
            if view.instance.model_id == model_id:
                raise Conflict(
                    "model_in_use",
                    f"instance {view.instance.instance_id} uses {model_id}; stop it first",
                    view.instance.operation_id or "",
                )
        await self.catalog.remove(model_id)

    # ── is it running ─────────────────────────────────────────────────────────────────────────────────────────

    async def instances(self) -> list[InstanceView]:
        """All instances, oldest first, with their runners."""
        async with self.database.read() as connection:
            placed = await rows.list_instances(connection)
            stored = await rows.list_runners(connection)
        reports = {report.runner_id: report for report in stored}
        for runner_id, seen in self.watch.reports.items():
            known = reports.get(runner_id)
            if known is None or seen.state_since >= known.state_since:
                reports[runner_id] = (
                    seen  # what was stored when it became ready may be younger than our last look
                )
        return [
            InstanceView(
                instance,
                tuple(
                    reports[instance.runner_id(rank.rank)]
                    for rank in instance.plan.ranks
                    if instance.runner_id(rank.rank) in reports
                ),
            )
            for instance in placed
        ]

    async def instance(self, instance_id: str) -> InstanceView:
        """One instance with its runners.

        Raises:
            UnknownInstance.
        """
        for view in await self.instances():
            if view.instance.instance_id == instance_id:
                return view
        raise UnknownInstance(instance_id)

    async def failures(self) -> list[InstanceFailure]:
        """Instances that ended by themselves, newest first."""
        async with self.database.read() as connection:
            return await rows.list_failures(connection)

    async def read_log(self, instance_id: str, offset: int, limit_bytes: int, rank: int = 0) -> LogChunk:
        """Part of a runner's log.

        Raises:
            UnknownInstance, AgentError.
        """
        view = await self.instance(instance_id)
        agent = self.fleet.agent(view.instance.plan.ranks[rank].node_id)
        return await agent.read_log(view.instance.runner_id(rank), offset, limit_bytes)

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _facts(self) -> list[NodeFacts]:
        async with self.database.read() as connection:
            placed = await rows.list_instances(connection)
        active: dict[str, int] = {}
        for instance in placed:
            running = self.table.in_flight(instance.runner_id(0))
            for node_id in instance.plan.node_ids:
                active[node_id] = active.get(node_id, 0) + running
        artifacts = {
            entry.card.model_id: entry.artifact_path
            for entry in await self.catalog.list()
            if entry.artifact_path is not None
        }
        return await self.fleet.facts(artifacts, active)

    async def cards(self) -> list[ModelCard]:
        """Every card of the catalog."""
        return [entry.card for entry in await self.catalog.list()]

    def with_defaults(self, request: PlanRequest) -> PlanRequest:
        """The request with this installation's default window."""
        return replace(request, default_context_tokens=self.settings.default_context_tokens)

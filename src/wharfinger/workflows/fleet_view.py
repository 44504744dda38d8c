"""The fleet as this control-plane process sees it: agents it reaches, and the last report of every node.

Each process heartbeats the nodes it hosts into the ``nodes`` table, so that every replica plans with one fleet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from wharfinger.fleet.agent import AgentError, NodeAgent, NodeReport
from wharfinger.placement.types import NodeFacts
from wharfinger.store.database import Database, now_on
from wharfinger.store.tables import nodes, reservations
from wharfinger.workflows.facts import PRUNE_AFTER_S, node_facts

HEARTBEAT_S = 5.0
_LOOK_AGAIN_S = 0.5
FORGET_AFTER_S = 7 * 86400.0
"""A lost node on which no memory is reserved is dropped altogether when it was not heard of for this long."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node's last report and how long ago it was heard."""

    report: NodeReport
    seen_at: datetime
    silent_s: float

    @property
    def lost(self) -> bool:
        """Not part of the fleet any more, until it is heard of again."""
        return self.silent_s >= PRUNE_AFTER_S


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A report, how old it was when we got it, and when that was by our monotonic clock."""

    report: NodeReport
    age_s: float
    got_at_s: float

    @property
    def silent_s(self) -> float:
        return max(0.0, self.age_s + time.monotonic() - self.got_at_s)


class FleetView:
    """Agents by node id, and reports of the whole fleet."""

    def __init__(self, database: Database, agents: Mapping[str, NodeAgent]) -> None:
        self._database = database
        self.agents = dict(agents)
        self._seen: dict[str, _Sighting] = {}

    def agent(self, node_id: str) -> NodeAgent:
        """The agent of a node this process reaches.

        Raises:
            AgentError: ``node_unavailable`` when another process hosts the node, or none does.
        """
        try:
            return self.agents[node_id]
        except KeyError:
            raise AgentError(
                "node_unavailable", f"node {node_id} is not reachable from this control plane"
            ) from None

    def name(self, node_id: str) -> str:
        """What the node is called; its id where it was never heard of."""
        sighting = self._seen.get(node_id)
        return node_id if sighting is None else sighting.report.name

    async def measure(self) -> None:
        """Ask every agent for a fresh report; a node that fails keeps its last one and ages."""
        await asyncio.gather(*(self._measure(node_id, agent) for node_id, agent in self.agents.items()))

    async def _measure(self, node_id: str, agent: NodeAgent) -> None:
        try:
            self._seen[node_id] = _Sighting(await agent.report(), 0.0, time.monotonic())
        except AgentError as error:
            log.warning("node did not report", node_id=node_id, code=error.code, reason=str(error))

    async def heartbeat(self) -> None:
        """Measure our nodes, write their reports, and read those of nodes hosted elsewhere."""
        await self.measure()
        async with self._database.begin() as connection:
            for node_id in self.agents.keys() & self._seen.keys():
                sighting = self._seen[node_id]
                if sighting.silent_s > HEARTBEAT_S:
                    continue  # it did not answer: its row must age
                values = {"report": sighting.report.model_dump(mode="json"), "seen_at": self._database.now()}
                known = update(nodes).where(nodes.c.node_id == node_id).values(**values)
                if (await connection.execute(known)).rowcount == 0:
                    await connection.execute(insert(nodes).values(node_id=node_id, **values))
        async with self._database.read() as connection:
            rows = (await connection.execute(select(nodes, self._database.now().label("now")))).all()
        for node_id in self._seen.keys() - self.agents.keys() - {row.node_id for row in rows}:
            del self._seen[node_id]  # dropped by the retention
        for row in rows:
            if row.node_id not in self.agents:
                silent_s = (row.now - row.seen_at).total_seconds()  # both by the database's clock
                try:
                    report = NodeReport.model_validate(row.report)
                except ValidationError as error:
                    # Of another version, while replicas are updated one after the other: the others must be seen.
                    log.warning("node report not read", node_id=row.node_id, problems=error.error_count())
                    continue
                self._seen[row.node_id] = _Sighting(report, silent_s, time.monotonic())

    async def leave(self) -> None:
        """Make our nodes' records look missed: whoever hosts them next need not wait to see that we are gone."""
        async with self._database.begin() as connection:
            now = (await connection.execute(select(self._database.now()))).scalar_one()
            missed = now - timedelta(seconds=2 * HEARTBEAT_S)
            ours = nodes.c.node_id.in_(self.agents)
            await connection.execute(
                update(nodes).where(ours, nodes.c.seen_at > missed).values(seen_at=missed)
            )

    def seen(self) -> list[SeenNode]:
        """Every node there is a record of, lost ones included, by id; one that is silent says for how long."""
        now = datetime.now(UTC)
        return [
            SeenNode(sighting.report, now - timedelta(seconds=sighting.silent_s), sighting.silent_s)
            for _, sighting in sorted(self._seen.items())
        ]

    def present(self) -> list[SeenNode]:
        """The nodes that are part of the fleet now: heard of within the pruning time."""
        return [node for node in self.seen() if not node.lost]

    async def heard_of(self, connection: AsyncConnection, node_ids: Collection[str]) -> set[str]:
        """Those of ``node_ids`` that may be part of the fleet now: ours, and all with a fresh record.

        Asked of the records themselves: :meth:`present` misses a report that another release wrote, and is as old as
        the last heartbeat.
        """
        query = select(nodes.c.node_id, nodes.c.seen_at, self._database.now().label("now"))
        rows = (await connection.execute(query.where(nodes.c.node_id.in_(node_ids)))).all()
        fresh = timedelta(seconds=PRUNE_AFTER_S)
        return self.agents.keys() & node_ids | {row.node_id for row in rows if row.now - row.seen_at < fresh}

    async def facts(
        self, artifacts: Mapping[str, str], active_requests: Mapping[str, int]
    ) -> list[NodeFacts]:
        """Planner facts of every present node.

        Args:
            artifacts: model id to the path of its file; each node is asked which of them it has.
            active_requests: requests running now, by node id.
        """
        present = self.present()
        held = await asyncio.gather(*(self._held(node.report, artifacts) for node in present))
        return [
            node_facts(
                node.report,
                silent_s=node.silent_s,
                held_models=models,
                active_requests=active_requests.get(node.report.node_id, 0),
            )
            for node, models in zip(present, held, strict=True)
        ]

    async def _held(self, report: NodeReport, artifacts: Mapping[str, str]) -> frozenset[str]:
        """Models whose file the node has: asked of an agent we reach, else as far as its report names them."""
        names, paths = tuple(artifacts), tuple(artifacts.values())
        agent = self.agents.get(report.node_id)
        if agent is not None:
            try:
                found = await agent.has_files(paths)
                return frozenset(name for name, here in zip(names, found, strict=True) if here)
            except AgentError as error:
                log.warning("node did not look for files", node_id=report.node_id, reason=str(error))
        return frozenset(name for name, path in artifacts.items() if path in report.artifact_files)


async def prune_nodes(connection: AsyncConnection) -> int:
    """Drop nodes that left for good, see :data:`FORGET_AFTER_S`; returns how many."""
    now = (await connection.execute(select(now_on(connection)))).scalar_one()
    gone = delete(nodes).where(
        nodes.c.seen_at < now - timedelta(seconds=FORGET_AFTER_S),
        nodes.c.node_id.not_in(select(reservations.c.node_id)),
    )
    return (await connection.execute(gone)).rowcount


async def hosted_elsewhere(database: Database, node_id: str) -> str | None:
    """The name of the machine on which another live control plane hosts the node; ``None`` when none does.

    A node id is copied together with its data directory, also to another place on the same machine. A fresh record may
    as well be of an earlier process of this directory that was killed; it is another's when it goes on being renewed,
    and that is waited for. One that was closed in good order keeps nobody waiting, see :meth:`FleetView.leave`.
    """
    row = first = await _record_of(database, node_id)
    while row is not None and row.now - row.seen_at < timedelta(seconds=2 * HEARTBEAT_S):
        if row.seen_at > first.seen_at:
            return str(row.report["name"])
        await asyncio.sleep(_LOOK_AGAIN_S)
        row = await _record_of(database, node_id)
    return None


async def _record_of(database: Database, node_id: str) -> Any:
    query = select(nodes.c.report, nodes.c.seen_at, database.now().label("now")).where(
        nodes.c.node_id == node_id
    )
    async with database.read() as connection:
        return (await connection.execute(query)).one_or_none()

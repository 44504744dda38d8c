"""Publishes proven endpoints: rows in the ``targets`` table become the gateway's in-memory route table.

A change made here is live at once; other replicas follow within :data:`REFRESH_S`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from wharfinger.access.secrets import InstallationSecret
from wharfinger.routing.targets import RouteTable, Target
from wharfinger.store.database import Database
from wharfinger.store.tables import targets

REFRESH_S = 1.0


class RoutePublisher:
    """The only writer of routes."""

    def __init__(
        self,
        database: Database,
        table: RouteTable,
        secret: InstallationSecret,
        node_ids: Collection[str],
    ) -> None:
        """``node_ids`` are the nodes whose endpoints this process can reach."""
        self._database = database
        self._node_ids = tuple(node_ids)
        self.table = table
        self._secret = secret
        self._published: frozenset[Target] | None = None

    async def register(self, connection: AsyncConnection, target: Target, node_id: str) -> None:
        """Write a proven endpoint of a node, replacing one of the same id; :meth:`refresh` after the commit."""
        await connection.execute(delete(targets).where(targets.c.target_id == target.target_id))
        await connection.execute(
            insert(targets).values(
                target_id=target.target_id,
                model_id=target.model_id,
                upstream_model=target.upstream_model,
                base_url=target.base_url,
                instance_id=target.instance_id,
                node_id=node_id,
                context_tokens=target.context_tokens,
                tasks=list(target.tasks),
                collects=target.collects,
                created_at=datetime.fromtimestamp(target.created_unix_s, UTC),
            )
        )

    async def withdraw(self, instance_id: str) -> None:
        """Stop routing to an instance; requests already running go on."""
        async with self._database.begin() as connection:
            await connection.execute(delete(targets).where(targets.c.instance_id == instance_id))
        await self.refresh()

    async def withdraw_all(self) -> None:
        """Stop routing to the nodes we reach: their runners are about to end with this process."""
        async with self._database.begin() as connection:
            await connection.execute(delete(targets).where(targets.c.node_id.in_(self._node_ids)))
        await self.refresh()

    async def refresh(self) -> None:
        """Publish what the table holds for the nodes we reach, when it differs from what is published.

        Runners listen on their machine's loopback, so another machine's address would lead to whatever listens
        there on ours.
        """
        query = select(targets).where(targets.c.node_id.in_(self._node_ids))
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        wanted = frozenset(self._target(row) for row in rows)
        if wanted != self._published:
            self.table.publish(wanted)
            self._published = wanted

    def _target(self, row: Any) -> Target:
        return Target(
            target_id=row.target_id,
            model_id=row.model_id,
            upstream_model=row.upstream_model,
            base_url=row.base_url,
            api_key=self._secret.runner_key(row.target_id),
            instance_id=row.instance_id,
            context_tokens=row.context_tokens,
            created_unix_s=int(row.created_at.timestamp()),
            tasks=tuple(row.tasks),
            collects=row.collects,
        )

"""``instances.prune``: deleted instances are kept as long as operations are, then dropped; so are nodes that left."""

from __future__ import annotations

from typing import Any

from wharfinger.operations.handler import OperationContext
from wharfinger.store.database import Database
from wharfinger.workflows.fleet_view import prune_nodes
from wharfinger.workflows.instances import prune_deleted


class InstanceRetention:
    """Drops instances that were deleted longer ago than they are kept, and nodes that have been lost for long."""

    KIND = "instances.prune"

    def __init__(self, database: Database, retention_s: float) -> None:
        self._database = database
        self._retention_s = retention_s

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Delete them in one transaction."""
        async with self._database.begin() as connection:
            return {
                "deleted": await prune_deleted(connection, self._retention_s),
                "nodes": await prune_nodes(connection),
            }

    async def cleanup(self, context: OperationContext) -> None:
        """Nothing to undo."""

"""Work that comes round again: sweeps, price refresh, retention.

Time is cut into periods of equal length by the database's clock. Whoever sees a new period first submits its operation
under the period's number as idempotency key, so several replicas make one operation, and one worker runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from wharfinger.operations.handler import OperationContext
from wharfinger.operations.model import Conflict, NewOperation, Operation
from wharfinger.operations.port import WorkStore
from wharfinger.store.errors import StoreUnavailable

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH = 1000
SCHEDULE = "schedule"
"""Resource type of every recurring operation."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Run an operation of ``kind`` once in each period of ``every_s`` seconds."""

    kind: str
    every_s: float
    request: dict[str, Any] = field(default_factory=dict)
    max_attempts: int = 3


class Schedule:
    """Submits recurring operations. Every replica may run one with the same recurrences."""

    def __init__(self, store: WorkStore, recurrences: Sequence[Recurrence], *, retry_s: float = 5.0) -> None:
        self._store = store
        self._recurrences = recurrences
        self._retry_s = retry_s

    async def run(self) -> None:
        """Submit until cancelled; the first period is the one under way, if nobody has had it yet."""
        async with asyncio.TaskGroup() as group:
            for recurrence in self._recurrences:
                group.create_task(self._repeat(recurrence))

    async def _repeat(self, recurrence: Recurrence) -> None:
        while True:
            try:
                now_s = (await self._store.now() - _EPOCH).total_seconds()
                period = int(now_s // recurrence.every_s)
                await self.submit(recurrence, period)
            except StoreUnavailable as error:
                _log.warning("store_unavailable", kind=recurrence.kind, error=str(error))
                await asyncio.sleep(self._retry_s)
                continue
            await asyncio.sleep((period + 1) * recurrence.every_s - now_s)

    async def submit(self, recurrence: Recurrence, period: int) -> Operation | None:
        """The operation of ``period``; None while an earlier one has not finished, which skips this period."""
        new = NewOperation(
            kind=recurrence.kind,
            resource_type=SCHEDULE,
            resource_name=recurrence.kind,
            request=recurrence.request,
            idempotency_key=f"period-{period}",
            max_attempts=recurrence.max_attempts,
        )
        try:
            operation, _ = await self._store.submit(new)
        except Conflict as conflict:
            _log.info("period_skipped", kind=recurrence.kind, period=period, because=str(conflict))
            return None
        return operation


class Retention:
    """Handler of ``operations.prune``: deletes operations that finished longer ago than they are kept."""

    KIND = "operations.prune"

    def __init__(self, store: WorkStore, retention_s: float) -> None:
        self._store = store
        self._retention_s = retention_s

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Delete in batches, so that no transaction is long."""
        deleted = 0
        while not context.cancelled:
            batch = await self._store.prune(self._retention_s, _BATCH)
            deleted += batch
            if batch < _BATCH:
                break
        return {"deleted": deleted}

    async def cleanup(self, context: OperationContext) -> None:
        """Nothing to undo."""

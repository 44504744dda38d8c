"""The three stores that one contract holds: memory, SQLite, PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from operations.memory_store import MemoryStore
from support.postgres import fresh_database_url
from wharfinger.operations.port import WorkStore
from wharfinger.operations.store import OperationStore
from wharfinger.store.database import Database
from wharfinger.store.tables import operations


class Harness:
    """A store, and a hand on its clock: what a lease would meet after some time."""

    def __init__(self, store: WorkStore) -> None:
        self.store = store

    async def let_pass(self, operation_id: str, seconds: float) -> None:
        """Move everything that is dated in the operation ``seconds`` into the past."""
        by = timedelta(seconds=seconds)
        operation = await self.store.get(operation_id)
        due_at = operation.lease_expires_at or operation.next_attempt_at
        since = operation.waiting_since
        moved = {
            "due_at": due_at - by if due_at else None,
            "waiting_since": since - by if since else None,
            "completed_at": operation.completed_at - by if operation.completed_at else None,
        }
        if isinstance(self.store, MemoryStore):
            leased = operation.lease_owner is not None
            due = moved.pop("due_at")
            moved |= {"lease_expires_at": due if leased else None, "next_attempt_at": None if leased else due}
            self.store.records[operation_id].operation = replace(operation, **moved)
            return
        assert isinstance(self.store, OperationStore)
        statement = update(operations).where(operations.c.operation_id == operation_id).values(**moved)
        async with self.store.database.begin() as connection:
            await connection.execute(statement)


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    opened = Database.open(await fresh_database_url(request.param, tmp_path))
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """Each store in turn."""
    if request.param == "memory":
        yield Harness(MemoryStore(lambda: datetime.now(UTC)))
        return
    opened = Database.open(await fresh_database_url(request.param, tmp_path))
    yield Harness(OperationStore(opened))
    await opened.close()


@pytest.fixture
def store(harness: Harness) -> WorkStore:
    """The store of the harness."""
    return harness.store

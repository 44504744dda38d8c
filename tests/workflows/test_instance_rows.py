"""Deleted instances are dropped after a while, and every time is the database's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from operations.polling import reached
from support.postgres import fresh_database_url
from wharfinger.operations.model import NewOperation
from wharfinger.store.database import Database
from wharfinger.store.tables import instances, reservations
from wharfinger.workflows import instances as rows
from wharfinger.workflows.instances import InstanceStatus
from wharfinger.workflows.retention import InstanceRetention
from workflows.conftest import Control, one_rank


async def test_only_what_was_deleted_long_ago_is_dropped(control: Control) -> None:
    for name in ("old", "young", "living"):
        await control.add("n1", instance_id=name)
    kept_s = control.settings.operation_retention_days * 86400
    async with control.database.begin() as connection:
        for name, age_s in (("old", kept_s + 60), ("young", kept_s - 60)):
            await rows.set_status(connection, name, InstanceStatus.DELETED)
            at = datetime.now(UTC) - timedelta(seconds=age_s)
            changed = update(instances).where(instances.c.instance_id == name).values(deleted_at=at)
            await connection.execute(changed)
    operation, _ = await control.operations.submit(NewOperation(InstanceRetention.KIND, "schedule", "prune"))
    async with control.working():
        assert (await reached(control.operations, operation.operation_id)).result == {
            "deleted": 1,
            "nodes": 0,
        }
    async with control.database.read() as connection:
        left = set((await connection.execute(select(instances.c.instance_id))).scalars())
        holding = set((await connection.execute(select(reservations.c.instance_id))).scalars())
    assert left == holding == {"young", "living"}


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(await fresh_database_url(request.param, tmp_path))
    yield opened
    await opened.close()


async def test_times_are_the_databases(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Skewed(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=365)

    for module in ("instances", "retention"):
        monkeypatch.setattr(f"wharfinger.workflows.{module}.datetime", Skewed, raising=False)
    model, placed = one_rank("n1")
    before = await database.current_time() - timedelta(milliseconds=1)  # SQLite counts in these
    async with database.begin() as connection:
        await rows.add_instance(connection, "a", model, {}, placed)
        await rows.set_status(connection, "a", InstanceStatus.READY)
        await rows.set_status(connection, "a", InstanceStatus.DELETED)
    async with database.read() as connection:
        row = (await connection.execute(select(instances))).one()
    after = await database.current_time() + timedelta(milliseconds=1)
    times = (row.created_at, row.updated_at, row.ready_at, row.deleted_at)
    assert [before <= at <= after for at in times] == [True] * 4
    async with database.begin() as connection:
        assert await rows.prune_deleted(connection, 3600) == 0
        assert await rows.prune_deleted(connection, -3600) == 1  # which drops the reservation as well

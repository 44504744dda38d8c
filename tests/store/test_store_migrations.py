"""Schema versions: each step climbs, the top equals the tables in code, and replicas that start together take turns."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    Integer,
    MetaData,
    inspect,
    text,
)

import wharfinger.store.migrate
from support.postgres import server
from wharfinger.store.database import Database
from wharfinger.store.errors import SchemaTooNew
from wharfinger.store.migrate import HEAD, current_version, known_versions, upgrade, upgrade_to
from wharfinger.store.tables import metadata

MIGRATIONS = Path(wharfinger.store.migrate.__file__).parent / "migrations"


@pytest.fixture(params=["sqlite", "postgres"])
async def empty(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A database with nothing in it."""
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path}/w.db"
    else:
        url = server().url(await server().create_database())
    database = Database.open(url)
    yield database
    await database.close()


def differences(connection: Connection) -> list[object]:
    """What Alembic would have to do to make the database equal to the tables in code."""
    options = {"compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def cascades(connection: Connection) -> set[tuple[str, str | None]]:
    """Tables with their foreign keys' action on delete, which Alembic does not compare on SQLite."""
    return {
        (table, key["options"].get("ondelete"))
        for table in inspect(connection).get_table_names()
        for key in inspect(connection).get_foreign_keys(table)
    }


async def test_every_version_is_climbed_in_turn_and_the_top_is_what_the_code_says(empty: Database) -> None:
    for version in known_versions():
        await empty.run(partial(upgrade_to, version=version))
        assert await empty.run(current_version) == version
    assert await empty.run(differences) == []
    expected = {
        (table.name, key.ondelete) for table in metadata.tables.values() for key in table.foreign_keys
    }
    assert await empty.run(cascades) == expected
    assert await empty.run(current_version) == HEAD


RELEASED = {
    "0001_first_schema.py": "664c2447c0a0c997af45344883e3c0ea0d468f0d8ac63e862a73fc9b1ddd2221",
    "0002_node_of_a_target.py": "f9ed00e12f1bd746bae0e73a5301eabe5a651272f0f1e415b982ce86ad8adb02",
    "0003_collecting_targets.py": "fa6dafddfa5010fc53d32ea65e4ecd14ce882e263dc9db6122ea395401221a9c",
    "0004_revoked_sessions.py": "359414425aea0f042f0fa63012ed1813aae04b13ce13287ea71df062b9901ae5",
}
"""SHA-256 of each version. Databases have climbed them, so a change goes into a new one."""


def test_released_versions_stay_as_they_are() -> None:
    files = sorted((MIGRATIONS / "versions").glob("0*.py"))
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == RELEASED


async def test_rows_of_every_table_climb_along(empty: Database) -> None:
    """All but the targets of before 0002, which named no node and are published again, and dropped tables."""
    await empty.run(partial(upgrade_to, version="0001"))
    await empty.run(fill)
    filled = await empty.run(row_counts)
    assert set(filled.values()) == {1}
    await upgrade(empty)
    added, dropped = {"revoked_sessions": 0}, {"installation"}
    expected = {name: rows for name, rows in (filled | {"targets": 0} | added).items() if name not in dropped}
    assert await empty.run(row_counts) == expected
    assert await empty.run(differences) == []


def fill(connection: Connection) -> None:
    """One row in each table, parents first."""
    tables = MetaData()
    tables.reflect(connection)
    for table in tables.sorted_tables:
        if table.name != "alembic_version":
            connection.execute(table.insert().values({c.name: sample(c) for c in table.columns}))


def sample(column: Column[Any]) -> object:
    """A value that the column takes; the same text everywhere, so that foreign keys meet."""
    kind = column.type
    if isinstance(kind, JSON):
        return {}
    if isinstance(kind, DateTime) or column.name == "at" or column.name.endswith("_at"):
        return datetime(2030, 1, 1, tzinfo=UTC)
    if isinstance(kind, Boolean):
        return True
    return 1 if isinstance(kind, (Integer, Float)) else "a"


def row_counts(connection: Connection) -> dict[str, int]:
    """Rows by table."""
    return {
        name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
        for name in inspect(connection).get_table_names()
        if name != "alembic_version"
    }


async def test_a_difference_would_be_seen(empty: Database) -> None:
    await upgrade(empty)
    await empty.run(
        lambda connection: connection.execute(text("ALTER TABLE operations ADD COLUMN stray INTEGER"))
    )
    assert len(await empty.run(differences)) == 1


def test_the_versions_are_one_line_to_the_head() -> None:
    script = ScriptDirectory(str(MIGRATIONS))
    assert script.get_heads() == [HEAD]
    climbed = [revision.revision for revision in script.walk_revisions()][::-1]
    assert climbed == known_versions() == [f"{number:04d}" for number in range(1, len(climbed) + 1)]


async def test_a_second_upgrade_changes_nothing(empty: Database) -> None:
    await upgrade(empty)
    await empty.run(
        lambda connection: connection.execute(text("INSERT INTO nodes VALUES ('a', '{}', '2030-01-01')"))
    )
    await upgrade(empty)
    assert await empty.run(lambda c: c.execute(text("SELECT count(*) FROM nodes")).scalar_one()) == 1


async def test_replicas_that_start_together_all_come_up(empty: Database) -> None:
    others = [Database.open(empty.engine.url) for _ in range(4)]
    await asyncio.gather(*(upgrade(database) for database in [empty, *others]))
    assert await empty.run(differences) == []
    for database in others:
        await database.close()


async def test_a_newer_schema_is_refused_and_left_alone(empty: Database) -> None:
    await upgrade(empty)
    await empty.run(
        lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    )
    with pytest.raises(
        SchemaTooNew, match=r"version '9999', which this release does not know .*newest is '\d+'"
    ):
        await upgrade(empty)
    assert await empty.run(current_version) == "9999"


async def test_a_failed_migration_leaves_nothing_behind(empty: Database) -> None:
    """Migrations are one transaction on both databases, so there is no half-migrated schema to repair."""

    def migrate_and_fail(connection: Connection) -> None:
        upgrade_to(connection, HEAD)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await empty.run(migrate_and_fail)
    assert await empty.run(lambda connection: inspect(connection).get_table_names()) == []


def test_a_start_at_the_head_does_not_import_alembic(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from wharfinger.store.database import Database
from wharfinger.store.migrate import upgrade
async def main():
    database = Database.open("sqlite+aiosqlite:///{tmp_path}/w.db")
    await upgrade(database)
    await database.close()
    print("alembic" in sys.modules)
asyncio.run(main())
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert runs == ["True", "False"]

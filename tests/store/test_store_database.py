"""The database itself: transactions, clocks, and errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, Insert, func, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import QueuePool

from support.postgres import fresh_database_url
from wharfinger.store.database import Database
from wharfinger.store.errors import StoreUnavailable
from wharfinger.store.tables import nodes

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(await fresh_database_url(request.param, tmp_path))
    yield opened
    await opened.close()


def put(key: str) -> Insert:
    return insert(nodes).values(node_id=key, report={"count": 0}, seen_at=NOW)


async def count(database: Database) -> int:
    async with database.read() as connection:
        return int((await connection.execute(select(func.count()).select_from(nodes))).scalar_one())


async def test_a_transaction_commits_at_its_end_and_rolls_back_on_an_error(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(put("a"))

    async def fail() -> None:
        async with database.begin() as connection:
            await connection.execute(put("b"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await count(database) == 1


async def test_work_in_one_hop_commits_and_rolls_back_alike(database: Database) -> None:
    def work(connection: Connection, fail: bool) -> int:
        connection.execute(put("a" if not fail else "b"))
        return 1 // (not fail)

    assert await database.run(lambda connection: work(connection, fail=False)) == 1
    with pytest.raises(ZeroDivisionError):
        await database.run(lambda connection: work(connection, fail=True))
    assert await count(database) == 1


async def test_read_then_write_loses_no_race(database: Database) -> None:
    """Twenty tasks count up by reading and writing; on PostgreSQL the row is locked, on SQLite the file."""
    async with database.begin() as connection:
        await connection.execute(put("n"))
    query = select(nodes.c.report).where(nodes.c.node_id == "n").with_for_update()

    def increment(connection: Connection) -> None:
        counted = connection.execute(query).scalar_one()["count"] + 1
        connection.execute(nodes.update().where(nodes.c.node_id == "n").values(report={"count": counted}))

    async def through_begin() -> None:
        async with database.begin() as connection:
            await connection.run_sync(increment)

    await asyncio.gather(*(work for _ in range(10) for work in (database.run(increment), through_begin())))
    async with database.read() as connection:
        assert (await connection.execute(query)).scalar_one() == {"count": 20}


async def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    async with database.begin() as connection, asyncio.timeout(30):
        await connection.execute(put("a"))
        assert await count(database) == 0
    assert await count(database) == 1


async def test_a_cancelled_writer_neither_hangs_nor_blocks_the_next(database: Database) -> None:
    def write(connection: Connection, key: str) -> None:
        connection.execute(put(key))

    waiting = [asyncio.create_task(database.run(partial(write, key=str(number)))) for number in range(5)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True, False, True, False, True]
    async with asyncio.timeout(30):
        await database.run(lambda connection: connection.execute(put("last")))
    async with database.read() as connection:
        written = set((await connection.execute(select(nodes.c.node_id))).scalars())
    assert written >= {"1", "3", "last"}  # the cancelled ones may have got through before


async def test_the_clock_is_the_databases_and_compares_with_stored_times(database: Database) -> None:
    before = datetime.now(UTC)
    now = await database.current_time()
    assert now.tzinfo is UTC
    assert abs(now - before) < timedelta(seconds=30)
    async with database.read() as connection:
        earlier = select(
            database.now() > now - timedelta(seconds=1), database.now() < now - timedelta(seconds=1)
        )
        assert tuple((await connection.execute(earlier)).one()) == (True, False)


async def test_sqlite_is_durable_and_keeps_foreign_keys(tmp_path: Path) -> None:
    database = Database.open(await fresh_database_url("sqlite", tmp_path))
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30000}

    def pragmas(connection: Connection) -> dict[str, object]:
        return {name: connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in expected}

    assert await database.run(pragmas) == expected
    async with database.begin() as connection:
        assert await connection.run_sync(pragmas) == expected
    await database.close()


async def test_a_url_without_a_file_is_refused() -> None:
    for url in ("sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:"):
        with pytest.raises(ValueError, match="names no file"):
            Database.open(url)


async def unavailable(database: Database) -> str:
    """The text that reading, writing and work in one hop all give."""
    texts: list[str] = []
    for attempt in (database.current_time(), _write(database), database.run(lambda c: c.execute(put("a")))):
        with pytest.raises(StoreUnavailable) as raised:
            await attempt
        texts.append(str(raised.value))
    await database.close()
    assert len(set(texts)) == 1
    return texts[0]


async def _write(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(put("a"))


async def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    text = await unavailable(Database.open(f"sqlite+aiosqlite:///{tmp_path}/none/w.db"))
    assert (
        f"the directory {tmp_path}/none does not exist. Create it, or choose another data directory." in text
    )


def test_a_directory_that_is_not_writable_is_said(tmp_path: Path) -> None:
    """In a process without root's rights, for which no directory is unwritable."""
    tmp_path.chmod(0o555)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    script = f"""
import asyncio, os
import aiosqlite
from wharfinger.store.database import Database
from wharfinger.store.errors import StoreUnavailable
async def main():
    database = Database.open("sqlite+aiosqlite:///{tmp_path}/w.db")
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        await database.current_time()
    except StoreUnavailable as error:
        print(error)
    await database.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    tmp_path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    user = os.geteuid() or 65534
    assert done.stdout.startswith(
        f"cannot use the database file {tmp_path}/w.db (OperationalError: unable to open"
    )
    assert f"the directory {tmp_path} is not writable for user id {user}" in done.stdout


async def test_an_unreachable_server_is_said_without_the_password() -> None:
    database = Database.open("postgresql+asyncpg://wharf:hunter2@127.0.0.1:1/prod")
    text = await unavailable(database)
    assert text.startswith(
        "PostgreSQL at 127.0.0.1, port 1, database 'prod', user 'wharf' did not take the call"
    )
    assert "Check that the server runs" in text
    assert "hunter2" not in text


async def test_a_missing_database_is_said(tmp_path: Path) -> None:
    url = await fresh_database_url("postgres", tmp_path)
    database = Database.open(url.rsplit("/", 1)[0] + "/no_such_database")
    text = await unavailable(database)
    assert "no_such_database" in text
    assert "does not exist" in text


async def test_a_programming_error_is_no_outage(database: Database) -> None:
    """Waiting mends an outage. It never mends a statement that is wrong, on SQLite the same class of error."""
    for statement in ("SELECT * FROM no_such_table", "SELEC 1", "SELECT no_such_column FROM nodes"):
        for attempt in (
            _statement(database, statement),
            database.run(partial(_execute, statement=statement)),
        ):
            with pytest.raises(DBAPIError):
                await attempt
    async with database.begin() as connection:
        await connection.execute(put("a"))
    with pytest.raises(IntegrityError):
        await database.run(lambda connection: connection.execute(put("a")))


def _execute(connection: Connection, statement: str) -> None:
    connection.execute(text(statement))


async def _statement(database: Database, statement: str) -> None:
    async with database.read() as connection:
        await connection.execute(text(statement))


async def test_a_pool_with_no_connection_left_is_an_outage(tmp_path: Path) -> None:
    database = Database.open(await fresh_database_url("postgres", tmp_path))
    pool = database.engine.sync_engine.pool
    assert isinstance(pool, QueuePool)
    pool._timeout = 0.05
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(24):
            await stack.enter_async_context(database.read())
        for attempt in (
            database.current_time(),
            database.run(lambda connection: connection.execute(put("a"))),
        ):
            with pytest.raises(StoreUnavailable, match="QueuePool limit"):
                await attempt
    await database.close()


def _write_impatiently(connection: Connection) -> None:
    connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
    connection.execute(put("a"))


async def test_a_lock_of_another_session_is_an_outage_after_a_while(tmp_path: Path) -> None:
    database = Database.open(await fresh_database_url("postgres", tmp_path))
    async with database.begin() as connection:
        await connection.execute(text("LOCK TABLE nodes IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await database.run(_write_impatiently)
    settings = {
        "idle_in_transaction_session_timeout": "10s",
        "lock_timeout": "10s",
        "tcp_keepalives_idle": "10",
    }
    async with database.read() as connection:
        for name, value in settings.items():
            assert (await connection.execute(text(f"SHOW {name}"))).scalar_one() == value
    await database.close()


@pytest.mark.parametrize("how", ["read", "begin", "run"])
async def test_a_server_that_hangs_in_a_statement_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The driver says ``TimeoutError`` then, which is an ``OSError`` like those of the caller's own files."""
    monkeypatch.setattr("wharfinger.store.database._COMMAND_TIMEOUT_S", 0.5)
    database = Database.open(await fresh_database_url("postgres", tmp_path))
    hang = "SELECT pg_sleep(600)"
    attempt = {
        "read": partial(_statement, database, hang),
        "begin": partial(_write_statement, database, hang),
        "run": partial(database.run, partial(_execute, statement=hang)),
    }[how]
    with pytest.raises(StoreUnavailable, match=r"did not take the call \(TimeoutError\)"):
        await attempt()
    await database.close()


async def _write_statement(database: Database, statement: str) -> None:
    async with database.begin() as connection:
        await connection.execute(text(statement))


async def test_a_callers_own_os_error_is_left_alone(database: Database, tmp_path: Path) -> None:
    async def open_missing() -> None:
        async with database.begin():
            (tmp_path / "missing").read_text()

    with pytest.raises(FileNotFoundError):
        await open_missing()


async def test_a_naive_time_is_refused(database: Database) -> None:
    with pytest.raises(Exception, match="naive datetime: pass an aware UTC time"):
        async with database.read() as connection:
            await connection.execute(select(database.now() > datetime(2030, 1, 1)))  # noqa: DTZ001 - the point

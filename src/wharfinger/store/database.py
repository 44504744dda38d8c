"""One database behind one interface: a SQLite file (WAL) or a PostgreSQL server.

The same SQLAlchemy Core statements run on both. Writing transactions on SQLite begin IMMEDIATE, so a transaction
that reads and then writes cannot lose a race it did not see, and the writers of one process take turns instead of
meeting in SQLite's busy loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import orjson
from sqlalchemy import ColumnElement, Connection, Engine, create_engine, event, func, literal_column, select
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from wharfinger.store.errors import StoreUnavailable, unavailable
from wharfinger.store.types import UtcDateTime

_T = TypeVar("_T")
_BUSY_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 10
_COMMAND_TIMEOUT_S = 60
_WAL_TRIES = 250
_POSTGRES_SESSION = {
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""A process that freezes or loses its network inside a transaction must not keep its row locks: the server ends the
session, and whoever waits for the row meanwhile gets ``StoreUnavailable`` and tries again."""
_READ_ONLY = "wharfinger_read_only"


class Database:
    """An open database. Build it with :meth:`open`; call :meth:`close` when done.

    All methods that talk to the database raise :class:`~wharfinger.store.errors.StoreUnavailable` when it does not
    take the call.
    """

    def __init__(self, engine: AsyncEngine, writer: Engine | None) -> None:
        self.engine = engine
        self._writer = writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer") if writer else None
        self._write_turn = asyncio.Lock()

    @classmethod
    def open(cls, url: str | URL) -> Database:
        """Open ``sqlite+aiosqlite:///FILE`` or ``postgresql+asyncpg://…``; nothing is created or migrated."""
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise ValueError(f"database URL {url!r} names no file; use sqlite+aiosqlite:///FILE")
        json = {"json_serializer": _dump_json, "json_deserializer": orjson.loads}
        if parsed.get_backend_name() != "sqlite":
            arguments = {
                "timeout": _CONNECT_TIMEOUT_S,
                "command_timeout": _COMMAND_TIMEOUT_S,
                "server_settings": _POSTGRES_SESSION,
            }
            engine = create_async_engine(parsed, pool_size=16, max_overflow=8, connect_args=arguments, **json)
            event.listen(engine.sync_engine.pool, "checkout", _drop_if_closed)
            event.listen(engine.sync_engine, "handle_error", partial(_outage_of_driver, url=parsed))
            return cls(engine, None)
        engine = create_async_engine(parsed, connect_args={"timeout": _BUSY_TIMEOUT_S}, **json)
        writer = create_engine(
            parsed.set(drivername="sqlite+pysqlite"),
            connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
            **json,
        )
        for sync_engine in (engine.sync_engine, writer):
            event.listen(sync_engine, "connect", _configure_sqlite)
            event.listen(sync_engine, "begin", _begin_sqlite)
        return cls(engine, writer)

    @property
    def is_sqlite(self) -> bool:
        """True on SQLite, where one writer at a time is the rule."""
        return self._writer is not None

    def now(self) -> ColumnElement[datetime]:
        """The database's own clock as an expression: the time its statement began."""
        return _clock(self.is_sqlite)

    async def current_time(self) -> datetime:
        """The database's clock, read once."""
        async with self.read() as connection:
            return (await connection.execute(select(self.now()))).scalar_one()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A read-write transaction; commits at the end, rolls back on an exception."""
        if not self.is_sqlite:
            async with self._transaction(self.engine) as connection:
                yield connection
            return
        async with self._write_turn, self._transaction(self.engine) as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads; on SQLite it neither waits for writers nor blocks them."""
        async with self._transaction(self.engine.execution_options(**{_READ_ONLY: True})) as connection:
            yield connection

    async def run(self, work: Callable[[Connection], _T]) -> _T:
        """Run ``work`` as one read-write transaction and return what it returns.

        ``work`` is a plain function: on SQLite it runs whole in the writer's thread, one hop instead of four for
        each statement. It must touch nothing but the connection.
        """
        if self._thread is None:
            async with self._transaction(self.engine) as connection:
                return await connection.run_sync(work)
        async with self._write_turn:
            # Shielded: a cancelled caller must not let the next writer start before this transaction has ended.
            job = asyncio.get_running_loop().run_in_executor(self._thread, self._run_sqlite, work)
            job.add_done_callback(_retrieve_exception)
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait([job])
                raise

    def _run_sqlite(self, work: Callable[[Connection], _T]) -> _T:
        assert self._writer is not None
        try:
            with self._writer.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            raise (unavailable(error, self.engine.url) or error) from error

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        entered = False
        try:
            async with engine.begin() as connection:
                entered = True
                yield connection
        except (DBAPIError, PoolTimeout) as error:
            raise (unavailable(error, self.engine.url) or error) from error
        except OSError as error:
            if (
                entered
            ):  # the caller's own file or socket: of the driver's, _outage_of_driver has made an outage
                raise
            raise (unavailable(error, self.engine.url) or error) from error

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()
        if self._thread is not None and self._writer is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.dispose)
            self._thread.shutdown()


def now_on(connection: AsyncConnection) -> ColumnElement[datetime]:
    """The clock of the database behind ``connection``; see :meth:`Database.now`."""
    return _clock(connection.dialect.name == "sqlite")


def _clock(is_sqlite: bool) -> ColumnElement[datetime]:
    if is_sqlite:
        # Milliseconds, written in the shape that UtcDateTime stores, so that texts compare like times.
        return func.strftime("%Y-%m-%d %H:%M:%f000", literal_column("'now'"), type_=UtcDateTime)
    return func.statement_timestamp(type_=UtcDateTime)


def _retrieve_exception(job: asyncio.Future[Any]) -> None:
    """A caller that was cancelled does not look at the outcome; asyncio must not complain that nobody did."""
    if not job.cancelled():
        job.exception()


def _dump_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _drop_if_closed(connection: Any, _record: object, _proxy: object) -> None:
    """Spares a round trip for each transaction: the driver knows by itself when the server has hung up."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


def _outage_of_driver(context: ExceptionContext, *, url: URL) -> StoreUnavailable | None:
    """A connection that broke, or a server that took too long, in the middle of a transaction: SQLAlchemy lets the
    driver's ``OSError`` (of which ``TimeoutError`` is one) pass as it is.
    """
    error = context.original_exception
    return unavailable(error, url) if isinstance(error, OSError) else None


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={_BUSY_TIMEOUT_S}000", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _use_wal(cursor)
    cursor.close()


def _use_wal(cursor: Any) -> None:
    """The mode is kept in the file. Only a new file changes it, and there SQLite does not wait for other openers."""
    for tries_left in reversed(range(_WAL_TRIES)):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except Exception as error:  # aiosqlite and sqlite3 raise different classes
            if "locked" not in str(error) or not tries_left:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

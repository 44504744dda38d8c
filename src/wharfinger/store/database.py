"""One database behind one interface: a SQLite file (WAL) or a PostgreSQL server.

The same SQLAlchemy Core statements run on both. Writing transactions on SQLite begin IMMEDIATE, so a transaction
that reads and then writes cannot lose a race it did not see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine


class Database:
    """An open database. Build it with :meth:`open`; call :meth:`close` when done."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Database:
        """Open ``sqlite+aiosqlite:///FILE`` or ``postgresql+asyncpg://…``; nothing is created or migrated."""
        if url.startswith("sqlite"):
            engine = create_async_engine(url, connect_args={"timeout": 30})
            event.listen(engine.sync_engine, "connect", _configure_sqlite)
            event.listen(engine.sync_engine, "begin", _begin_immediate)
        else:
            engine = create_async_engine(url, pool_size=8, max_overflow=8, pool_pre_ping=True)
        return cls(engine)

    @property
    def is_sqlite(self) -> bool:
        """True on SQLite, where one writer at a time is the rule."""
        return self.engine.dialect.name == "sqlite"

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A read-write transaction; commits at the end, rolls back on an exception."""
        async with self.engine.begin() as connection:
            yield connection

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")

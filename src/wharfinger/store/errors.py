"""What can be wrong with a database, said in one paragraph a person can act on. No text holds a password."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

_OUTAGE_SQLITE_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
_OUTAGE_SQLSTATES = ("08", "25P03", "28", "3D", "40", "53", "55P03", "57P", "58")
"""How they begin: connection, idle in a transaction for too long, login, no such database, rolled back, out of
resources, lock not to be had, shut down, system error."""


class StoreError(Exception):
    """Base of what the store raises about the database itself."""


class StoreUnavailable(StoreError):
    """The database did not take the call: unreachable, restarting, locked, full or not writable.

    Whether a write that was under way has been committed is unknown. Trying again later may help.
    """


class SchemaTooNew(StoreError):
    """The database was migrated by a newer release than this one; it was not touched."""


def unavailable(error: BaseException, url: URL) -> StoreUnavailable | None:
    """The error to raise in place of ``error``, or None when it is not about the database being unavailable."""
    if isinstance(error, DBAPIError):
        if not _is_outage(error):
            return None
        cause = f"{type(error.orig).__name__}: {str(error.orig).splitlines()[0] if str(error.orig) else ''}"
    elif isinstance(error, (OSError, TimeoutError, PoolTimeout)):
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    else:
        return None
    return StoreUnavailable(_sqlite_text(url, cause) if _is_sqlite(url) else _postgres_text(url, cause))


def _is_outage(error: DBAPIError) -> bool:
    """By the code and never by the class: ``no such table`` is an OperationalError too, and no retry mends it."""
    sqlite_code: int | None = getattr(error.orig, "sqlite_errorcode", None)
    if sqlite_code is not None:
        return sqlite_code & 0xFF in _OUTAGE_SQLITE_CODES  # the primary code of an extended one
    sqlstate = str(getattr(error.orig, "sqlstate", None) or "")
    return error.connection_invalidated or sqlstate.startswith(_OUTAGE_SQLSTATES)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _sqlite_text(url: URL, cause: str) -> str:
    file = Path(url.database or "")
    head = f"cannot use the database file {file} ({cause})"
    if not file.parent.is_dir():
        return f"{head}: the directory {file.parent} does not exist. Create it, or choose another data directory."
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return (
            f"{head}: the directory {file.parent} is not writable for user id {os.geteuid()}, and SQLite writes "
            "its journal there. Change its owner or mode, or choose another data directory."
        )
    if file.exists() and not os.access(file, os.W_OK):
        return f"{head}: the file is not writable for user id {os.geteuid()}. Change its owner or mode."
    if "full" in cause:
        return (
            f"{head}: there is no space left on {file.parent}. Free some; unfinished work resumes by itself."
        )
    return f"{head}."


def _postgres_text(url: URL, cause: str) -> str:
    host = url.host or url.query.get("host") or "the default socket"
    return (
        f"PostgreSQL at {host}, port {url.port or 5432}, database {url.database!r}, user {url.username!r} did not "
        f"take the call ({cause}). Check that the server runs, is reachable from here and accepts this user."
    )

"""Bring a database to the schema of this release. Forward only; several replicas may start at the same time."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from wharfinger.store.database import Database
from wharfinger.store.errors import SchemaTooNew

HEAD = "0004"
"""The newest schema version; a test holds it to the files. Known here so that a start need not import Alembic."""

_VERSION_TABLE = "alembic_version"
_ADVISORY_LOCK = 0x77686172  # "whar": any number that all replicas agree on


async def upgrade(database: Database) -> None:
    """Create or migrate the tables, in one transaction; at the newest version already, only look.

    Raises:
        SchemaTooNew: the database is at a version that this release does not know. It was not touched.
        StoreUnavailable: it cannot be reached or written; the text says what to do.
    """
    async with database.read() as connection:
        if await connection.run_sync(current_version) == HEAD:
            return
    await database.run(_upgrade)


def current_version(connection: Connection) -> str | None:
    """The schema version of the database; None when it has none yet."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()


def upgrade_to(connection: Connection, version: str) -> None:
    """Run the versions up to ``version`` in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SET LOCAL lock_timeout = 0")
        )  # another replica's migration may take its time
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    version = current_version(connection)  # another replica may have been first
    if version == HEAD:
        return
    if version is not None and version not in known_versions():
        raise SchemaTooNew(
            f"the database is at schema version {version!r}, which this release does not know (its newest is "
            f"{HEAD!r}). It was migrated by a newer release: run that one, or restore a backup from before the upgrade."
        )
    upgrade_to(connection, HEAD)


def known_versions() -> list[str]:
    """All versions of this release, oldest first."""
    return sorted(
        file.stem.split("_")[0] for file in (Path(__file__).parent / "migrations/versions").glob("0*.py")
    )

"""API keys: 256 random bits, shown once, stored as SHA-256, checked against an in-memory snapshot.

A fast hash is right here: the secret has 256 bits of entropy, so there is nothing to guess, and the check is on
every request's path.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert, select, update

from wharfinger.access.principals import Principal, Role
from wharfinger.access.secrets import write_private
from wharfinger.store.database import Database
from wharfinger.store.tables import api_keys

ADMIN_KEY_FILE = "admin.key"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as listed: everything but the secret."""

    key_id: str
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None


class KeyStore:
    """Makes, lists, revokes and checks API keys."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._by_hash: dict[str, Principal] = {}
        self._by_id: dict[str, Principal] = {}
        self._refreshing = asyncio.Lock()

    async def refresh(self) -> None:
        """Reload the snapshot, so that keys made or revoked by another replica take effect."""
        # In turn: a read that began before a revocation must not overwrite what that revocation has read.
        async with self._refreshing:
            live = [record for record in await self._records() if record[0].revoked_at is None]
            self._by_hash = {hashed: Principal(r.key_id, r.name, r.role) for r, hashed in live}
            self._by_id = {principal.key_id: principal for principal in self._by_hash.values()}

    def check(self, secret: str) -> Principal | None:
        """The principal a presented key belongs to; ``None`` when it is unknown or revoked."""
        return self._by_hash.get(_hash(secret))

    def by_id(self, key_id: str) -> Principal | None:
        """The principal of a live key id."""
        return self._by_id.get(key_id)

    async def create(self, name: str, role: Role) -> tuple[KeyRecord, str]:
        """Make a key; the second value is the secret, which can never be read again."""
        record, secret = _new_key(name, role)
        await self._add(record, secret)
        return record, secret

    async def _add(self, record: KeyRecord, secret: str) -> None:
        async with self._database.begin() as connection:
            await connection.execute(
                insert(api_keys).values(
                    key_id=record.key_id,
                    name=record.name,
                    role=record.role.name.lower(),
                    secret_hash=_hash(secret),
                    created_at=record.created_at,
                )
            )
        await self.refresh()

    async def revoke(self, key_id: str) -> bool:
        """Make a key useless from now on; False when there is no live key of that id."""
        async with self._database.begin() as connection:
            result = await connection.execute(
                update(api_keys)
                .where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
                .values(revoked_at=datetime.now(UTC))
            )
        await self.refresh()
        return result.rowcount == 1

    async def list(self) -> list[KeyRecord]:
        """All keys ever made, oldest first."""
        return [record for record, _ in await self._records()]

    async def ensure_admin(self, data_dir: Path) -> str | None:
        """Make the first admin key when no live admin exists; returns its secret then, and only then.

        The secret is also written to ``admin.key`` (0600) in the data directory, where the CLI finds it.
        """
        await self.refresh()
        if any(principal.role is Role.ADMIN for principal in self._by_hash.values()):
            return None
        record, secret = _new_key("first admin", Role.ADMIN)
        # The file first: a key in the database that nobody was told of would keep everybody out for good.
        write_private(data_dir / ADMIN_KEY_FILE, secret + "\n")
        await self._add(record, secret)
        return secret

    async def _records(self) -> list[tuple[KeyRecord, str]]:
        async with self._database.read() as connection:
            rows = (await connection.execute(select(api_keys).order_by(api_keys.c.created_at))).all()
        return [
            (KeyRecord(r.key_id, r.name, Role.parse(r.role), r.created_at, r.revoked_at), r.secret_hash)
            for r in rows
        ]


def _new_key(name: str, role: Role) -> tuple[KeyRecord, str]:
    key_id = secrets.token_hex(6)
    secret = f"wharf_{key_id}_{secrets.token_urlsafe(32)}"
    return KeyRecord(key_id, name, role, datetime.now(UTC), None), secret


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()

"""Dashboard sessions: a signed token in a cookie, good until it expires, somebody signs out, or its key is revoked.

Only the ids of sessions that were signed out of are stored, until they would have expired, and kept in memory: no
request waits for the database.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from datetime import UTC, datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from wharfinger.access.principals import Session
from wharfinger.access.secrets import InstallationSecret
from wharfinger.store.database import Database
from wharfinger.store.tables import revoked_sessions

SESSION_LIFETIME_S = 12 * 3600


class SessionStore:
    """Begins, recognises and ends sessions."""

    def __init__(self, database: Database, secret: InstallationSecret) -> None:
        self._database = database
        self._secret = secret
        self._revoked: frozenset[str] = frozenset()
        self._refreshing = asyncio.Lock()

    async def refresh(self) -> None:
        """Learn of sessions that were ended through another replica."""
        # In turn: a read that began before a sign-out must not overwrite what that sign-out has read.
        async with self._refreshing, self._database.read() as connection:
            rows = await connection.execute(select(revoked_sessions.c.session_id))
            self._revoked = frozenset(rows.scalars())

    def begin(self, key_id: str, now_s: float | None = None) -> str:
        """A token for the holder of ``key_id``: ``key_id.session_id.expiry.signature``."""
        expires_s = int(_now_s(now_s) + SESSION_LIFETIME_S)
        signed = f"{key_id}.{secrets.token_hex(8)}.{expires_s}"
        return f"{signed}.{self._signature(signed)}"

    def read(self, token: str, now_s: float | None = None) -> Session | None:
        """The live session of a token; ``None`` for anything else."""
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(signed).encode()):
            return None
        try:
            key_id, session_id, expires = signed.split(".")
            session = Session(session_id, key_id, int(expires))
        except ValueError:
            return None
        return session if self.is_live(session, now_s) else None

    def is_live(self, session: Session, now_s: float | None = None) -> bool:
        """Whether a session has neither expired nor been ended."""
        return session.expires_s > _now_s(now_s) and session.session_id not in self._revoked

    async def end(self, session: Session) -> None:
        """Sign out: the token is worth nothing from now on, and on other replicas after their next refresh."""
        dialect = sqlite if self._database.is_sqlite else postgresql
        revoke = dialect.insert(revoked_sessions).on_conflict_do_nothing()
        async with self._database.begin() as connection:
            await connection.execute(
                delete(revoked_sessions).where(revoked_sessions.c.expires_at <= datetime.now(UTC))
            )
            await connection.execute(
                revoke.values(
                    session_id=session.session_id, expires_at=datetime.fromtimestamp(session.expires_s, UTC)
                )
            )
        await self.refresh()

    def _signature(self, signed: str) -> str:
        return self._secret.sign(f"session:{signed}")


def _now_s(given: float | None) -> float:
    return time.time() if given is None else given

"""Dashboard sessions: what counts as one, and that signing out ends it on every replica."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from wharfinger.access.secrets import InstallationSecret
from wharfinger.access.sessions import SESSION_LIFETIME_S, SessionStore
from wharfinger.store.database import Database
from wharfinger.store.tables import revoked_sessions


async def test_a_token_is_good_for_its_lifetime(database: Database, secret: InstallationSecret) -> None:
    sessions = SessionStore(database, secret)
    token = sessions.begin("k1", now_s=1000)
    session = sessions.read(token, now_s=1000 + SESSION_LIFETIME_S - 1)
    assert session is not None
    assert (session.key_id, session.expires_s) == ("k1", 1000 + SESSION_LIFETIME_S)
    assert sessions.read(token, now_s=1000 + SESSION_LIFETIME_S) is None


@pytest.mark.parametrize(
    "token",
    ["", ".", "...", "a.1.\xe9", "k1.0123.99999999999.", "k1.x.y.z", "\xe9.\xe9.\xe9.\xe9", "9" * 5000],
)
async def test_anything_else_is_no_session(
    database: Database, secret: InstallationSecret, token: str
) -> None:
    assert SessionStore(database, secret).read(token) is None


async def test_no_part_of_a_token_can_be_changed(database: Database, secret: InstallationSecret) -> None:
    sessions = SessionStore(database, secret)
    parts = sessions.begin("k1").split(".")
    for place in range(len(parts)):
        changed = [part + "0" if index == place else part for index, part in enumerate(parts)]
        assert sessions.read(".".join(changed)) is None
    assert SessionStore(database, InstallationSecret(bytes(31) + b"1")).read(".".join(parts)) is None


async def test_signing_out_ends_one_session_on_every_replica(
    database: Database, secret: InstallationSecret
) -> None:
    here, elsewhere = SessionStore(database, secret), SessionStore(database, secret)
    token, other = here.begin("k1", now_s=None), here.begin("k1", now_s=None)
    session = here.read(token)
    assert session is not None
    assert elsewhere.read(token) == session
    await here.end(session)
    assert here.read(token) is None
    assert here.read(other) is not None
    await elsewhere.refresh()
    assert elsewhere.read(token) is None
    assert elsewhere.read(other) is not None


async def test_signing_out_twice_at_once_is_signing_out(
    database: Database, secret: InstallationSecret
) -> None:
    sessions = SessionStore(database, secret)
    session = sessions.read(sessions.begin("k1"))
    assert session is not None
    await asyncio.gather(*(sessions.end(session) for _ in range(4)))
    assert not sessions.is_live(session)


async def test_what_has_expired_is_not_kept(database: Database, secret: InstallationSecret) -> None:
    sessions = SessionStore(database, secret)
    old = sessions.read(sessions.begin("k1", now_s=1000), now_s=1000)
    new = sessions.read(sessions.begin("k1"))
    assert old is not None
    assert new is not None
    await sessions.end(old)
    await sessions.end(new)
    async with database.read() as connection:
        kept = (await connection.execute(select(revoked_sessions.c.session_id))).scalars().all()
    assert kept == [new.session_id]

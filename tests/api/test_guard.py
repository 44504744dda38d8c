"""The guard on its own: what reaches the application behind it."""

from __future__ import annotations

from typing import Any

import pytest

from support.postgres import fresh_database_url
from wharfinger.access.authenticator import Authenticator
from wharfinger.access.keys import KeyStore
from wharfinger.access.secrets import InstallationSecret
from wharfinger.access.sessions import SessionStore
from wharfinger.api.guard import Guard
from wharfinger.store.database import Database


@pytest.mark.parametrize(
    ("kind", "passed", "said"),
    [("lifespan", ["lifespan"], []), ("websocket", [], [{"type": "websocket.close", "code": 1008}])],
)
async def test_nothing_but_http_needs_no_key_only_the_servers_own_start_and_end(
    tmp_path: Any, kind: str, passed: list[str], said: list[dict[str, Any]]
) -> None:
    database = Database.open(await fresh_database_url("sqlite", tmp_path))
    seen: list[str] = []
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    sessions = SessionStore(database, InstallationSecret(bytes(32)))
    guard = Guard(behind, Authenticator(KeyStore(database), sessions))
    await guard({"type": kind, "path": "/", "headers": []}, receive, send)
    assert (seen, sent) == (passed, said)
    await database.close()

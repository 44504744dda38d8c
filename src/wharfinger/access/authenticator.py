"""Turns request headers into a principal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import cookie_parser

from wharfinger.access.keys import KeyStore
from wharfinger.access.principals import ANONYMOUS_ADMIN, Principal
from wharfinger.access.rules import Headers, bearer_key, is_local, same_origin, text_headers
from wharfinger.access.sessions import SessionStore

SESSION_COOKIE = "wharf_session"


class Authenticator:
    """Checks ``Authorization: Bearer KEY`` first, then the dashboard's session cookie."""

    def __init__(self, keys: KeyStore, sessions: SessionStore, *, disabled: bool = False) -> None:
        self.keys = keys
        self.sessions = sessions
        self.disabled = disabled

    async def refresh(self) -> None:
        """Learn what other replicas changed. Until the next time, every check is made in memory."""
        await asyncio.gather(self.keys.refresh(), self.sessions.refresh())

    def authenticate(self, headers: Headers) -> Principal | None:
        """The caller, or ``None``. A cookie is worth nothing in a request that another site's page made."""
        if self.disabled:
            return ANONYMOUS_ADMIN if is_local(headers) else None
        named = text_headers(headers)
        if "authorization" in named:
            key = bearer_key(headers)
            return None if key is None else self.keys.check(key)
        origin = named.get("origin")
        if "cookie" not in named or (origin is not None and not same_origin(origin, named.get("host"))):
            return None
        return self._from_cookie(named["cookie"])

    def still_valid(self, principal: Principal) -> bool:
        """Whether what let this caller in still would: for answers that go on for long. It makes no query."""
        if self.disabled:
            return True
        session = principal.session
        if session is not None and not self.sessions.is_live(session):
            return False
        return self.keys.by_id(principal.key_id) == replace(principal, session=None)

    def _from_cookie(self, cookies: str) -> Principal | None:
        # Not the standard library's SimpleCookie: it drops all that follows a cookie it cannot parse.
        token = cookie_parser(cookies).get(SESSION_COOKIE)
        session = self.sessions.read(token) if token else None
        principal = self.keys.by_id(session.key_id) if session else None
        return replace(principal, session=session) if principal else None

"""Refuses every request without a key, before any route sees it: open paths are listed, not the closed ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp

from wharfinger.access.authenticator import Authenticator
from wharfinger.access.principals import PRINCIPAL
from wharfinger.api.errors import ApiError, envelope

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN_PATHS = frozenset({"/livez", "/readyz", "/login"})
OPEN_PREFIX = "/static/"


class Guard:
    """ASGI wrapper that authenticates; people in a browser are sent to the login page instead."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path not in OPEN_PATHS and not path.startswith(OPEN_PREFIX):
            principal = self._authenticator.authenticate(scope["headers"])
            if principal is None:
                await self._refuse(scope)(scope, receive, send)
                return
            scope[PRINCIPAL] = principal
        await self._app(scope, receive, send)

    def _refuse(self, scope: Scope) -> ASGIApp:
        accept = dict(scope["headers"]).get(b"accept", b"")
        if scope["method"] == "GET" and b"text/html" in accept:
            return RedirectResponse("/login", status_code=303)
        error = ApiError(
            401,
            "unauthorized",
            "this route wants an API key: send `Authorization: Bearer KEY` (the first admin key lies in admin.key "
            "in the data directory)",
        )
        return JSONResponse(envelope(error), status_code=401, headers={"WWW-Authenticate": "Bearer"})

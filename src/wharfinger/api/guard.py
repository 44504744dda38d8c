"""Refuses every request without a key, before any route sees it: open paths are listed, not the closed ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp

from wharfinger.access.authenticator import Authenticator
from wharfinger.access.principals import PRINCIPAL
from wharfinger.access.rules import Forbidden, bearer_key, require_same_origin
from wharfinger.api.errors import ApiError, forbidden, respond

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN_PATHS = frozenset({"/livez", "/readyz", "/login"})
OPEN_PREFIX = "/static/"


class Guard:
    """ASGI wrapper that authenticates; people in a browser are sent to the login page instead.

    What other sites' pages make a browser send is refused here as well, on the open paths too.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # nothing here speaks it
            return
        try:
            require_same_origin(scope["method"], scope["headers"])
        except Forbidden as refusal:
            await forbidden(refusal)(scope, receive, send)
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
        if self._authenticator.disabled:
            return _unauthorized(
                "authentication is off, so only requests sent straight to this machine's loopback address are let in: "
                "none that passed a proxy, and none of another site's page"
            )
        accept = dict(scope["headers"]).get(b"accept", b"")
        if b"text/html" in accept:
            return RedirectResponse("/login", status_code=303)
        if bearer_key(scope["headers"]) is not None:
            return _unauthorized("this API key is unknown or revoked")
        return _unauthorized(
            "this route wants an API key: send `Authorization: Bearer KEY` (the first admin key lies in admin.key in "
            "the data directory)"
        )


def _unauthorized(message: str) -> ASGIApp:
    return respond(ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": "Bearer"}))

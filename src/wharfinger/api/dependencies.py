"""What every route can ask for: the control plane, and a caller of sufficient role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Header, Request

from wharfinger.access.authenticator import same_origin
from wharfinger.access.keys import KeyStore
from wharfinger.access.principals import PRINCIPAL, Principal, Role
from wharfinger.api.errors import ApiError
from wharfinger.workflows.control import ControlPlane

MAX_IDEMPOTENCY_KEY_CHARACTERS = 200


def control_plane(request: Request) -> ControlPlane:
    """The control plane this application serves."""
    return request.app.state.control


def key_store(request: Request) -> KeyStore:
    """The API keys."""
    return request.app.state.authenticator.keys


def _caller(request: Request) -> Principal:
    """The caller the guard let in."""
    _same_origin(request)
    return request.scope[PRINCIPAL]


def _same_origin(request: Request) -> None:
    """Refuse a state-changing browser request that another site made with our session cookie."""
    if request.method in ("GET", "HEAD") or "authorization" in request.headers:
        return
    origin = request.headers.get("origin")
    if origin is None and "cookie" not in request.headers:
        return  # no browser: with authentication off, nothing else is asked of it
    if not same_origin(origin, request.headers.get("host")):
        shown = origin or "an unknown origin"
        raise ApiError(403, "foreign_origin", f"requests from {shown} are not accepted here without a key")


def _require(role: Role) -> Callable[[Principal], Principal]:
    def check(principal: Annotated[Principal, Depends(_caller)]) -> Principal:
        if principal.role < role:
            raise ApiError(
                403,
                "forbidden",
                f"this needs the role {role.name.lower()}; the key {principal.key_id} is {principal.role.name.lower()}",
            )
        return principal

    return check


def _idempotency_key(idempotency_key: Annotated[str | None, Header()] = None) -> str | None:
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARACTERS:
        raise ApiError(
            400,
            "invalid_idempotency_key",
            f"Idempotency-Key must have 1 to {MAX_IDEMPOTENCY_KEY_CHARACTERS} characters",
            param="Idempotency-Key",
        )
    return idempotency_key


Control = Annotated[ControlPlane, Depends(control_plane)]
Keys = Annotated[KeyStore, Depends(key_store)]
Viewer = Annotated[Principal, Depends(_require(Role.VIEWER))]
Operator = Annotated[Principal, Depends(_require(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(_require(Role.ADMIN))]
IdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]

"""What every route can ask for: the control plane, and a caller of sufficient role."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from wharfinger.access.authenticator import Authenticator
from wharfinger.access.callers import Admin, Operator, Viewer
from wharfinger.access.keys import KeyStore
from wharfinger.api.errors import ApiError
from wharfinger.workflows.control import ControlPlane

__all__ = ["Admin", "Auth", "Control", "IdempotencyKey", "Keys", "Operator", "Viewer"]

MAX_IDEMPOTENCY_KEY_CHARACTERS = 200


def control_plane(request: Request) -> ControlPlane:
    """The control plane this application serves."""
    return request.app.state.control


def authenticator(request: Request) -> Authenticator:
    """Who may come in, and whether they still may."""
    return request.app.state.authenticator


def key_store(request: Request) -> KeyStore:
    """The API keys."""
    return authenticator(request).keys


def _idempotency_key(caller: Operator, idempotency_key: Annotated[str | None, Header()] = None) -> str | None:
    """The key within the caller's own, so that nobody meets another caller's work by chance or by guessing."""
    if idempotency_key is None:
        return None
    if not 1 <= len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARACTERS:
        raise ApiError(
            400,
            "invalid_idempotency_key",
            f"Idempotency-Key must have 1 to {MAX_IDEMPOTENCY_KEY_CHARACTERS} characters",
            param="Idempotency-Key",
        )
    return f"{caller.key_id}:{idempotency_key}"


Control = Annotated[ControlPlane, Depends(control_plane)]
Auth = Annotated[Authenticator, Depends(authenticator)]
Keys = Annotated[KeyStore, Depends(key_store)]
IdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]

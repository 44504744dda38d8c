"""What routes of the API can ask for beside the control plane and a caller: the keys, and an idempotency key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header

from wharfinger.access.callers import Auth, Operator
from wharfinger.access.keys import KeyStore
from wharfinger.api.errors import ApiError

MAX_IDEMPOTENCY_KEY_CHARACTERS = 200


def _key_store(authenticator: Auth) -> KeyStore:
    return authenticator.keys


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


Keys = Annotated[KeyStore, Depends(_key_store)]
"""The API keys."""
IdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]

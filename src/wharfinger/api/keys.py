"""API keys: made, listed and revoked by admins; and who the caller is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from wharfinger.access.callers import Admin, Viewer
from wharfinger.access.keys import KeyRecord
from wharfinger.access.principals import Role
from wharfinger.api.answers import answers
from wharfinger.api.bodies import RequestBody
from wharfinger.api.dependencies import Keys
from wharfinger.api.errors import ApiError
from wharfinger.api.schemas_own import KeyList, KeyRevoked, NewKey, WhoAmI
from wharfinger.api.text import Name

router = APIRouter(prefix="/api/v1", tags=["Access"])


class NewKeyBody(RequestBody):
    """A key to make."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=128)]
    role: Annotated[str, Field(pattern="^(viewer|operator|admin)$")] = "viewer"


@router.get("/whoami", **answers(WhoAmI))
async def who_am_i(principal: Viewer) -> dict[str, Any]:
    """The caller's key and role."""
    return {"key_id": principal.key_id, "name": principal.name, "role": principal.role.name.lower()}


@router.get("/keys", **answers(KeyList))
async def list_keys(keys: Keys, _: Admin) -> dict[str, Any]:
    """All keys, without their secrets."""
    return {"keys": [_key(record) for record in await keys.list()]}


@router.post("/keys", **answers(NewKey, 413, 415, status=201))
async def create_key(keys: Keys, _: Admin, body: NewKeyBody) -> dict[str, Any]:
    """Make a key. The answer shows its secret once; only a hash is kept."""
    record, secret = await keys.create(body.name, Role.parse(body.role))
    return _key(record) | {"key": secret}


@router.delete("/keys/{key_id}", **answers(KeyRevoked, 404, 409))
async def revoke_key(keys: Keys, caller: Admin, key_id: Name) -> dict[str, Any]:
    """Revoke a key: it stops working at once."""
    if key_id == caller.key_id:
        raise ApiError(409, "own_key", "a key cannot revoke itself; use another admin key", param="key_id")
    if not await keys.revoke(key_id):
        raise ApiError(404, "key_not_found", f"no live key {key_id!r}", param="key_id")
    return {"message": "revoked", "key_id": key_id}


def _key(record: KeyRecord) -> dict[str, Any]:
    return {
        "key_id": record.key_id,
        "name": record.name,
        "role": record.role.name.lower(),
        "created_at": record.created_at.isoformat(),
        "revoked_at": None if record.revoked_at is None else record.revoked_at.isoformat(),
    }

"""The few ASGI types the gateway speaks, and the caller's side of its contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import orjson

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
RawHeaders: TypeAlias = list[tuple[bytes, bytes]]
"""ASGI's headers: lower-case names, raw values."""

Authenticate: TypeAlias = Callable[[RawHeaders], object | None]
"""The caller's identity, or ``None`` for a missing or wrong credential. Runs on every request: no I/O."""


async def send_json(send: Send, status: int, body: object, headers: RawHeaders) -> None:
    """Answer with one JSON document."""
    await send_bytes(send, status, orjson.dumps(body), [(b"content-type", b"application/json"), *headers])


async def send_bytes(send: Send, status: int, body: bytes, headers: RawHeaders) -> None:
    """Answer with a body whose length is known."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

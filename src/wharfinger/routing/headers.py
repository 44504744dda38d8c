"""Which headers cross the gateway.

Towards the endpoint only a short list passes, so a credential in a header nobody thought of stays here. Towards the
client everything passes but what belongs to one connection or to the endpoint's private life.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from wharfinger.routing.asgi import RawHeaders
from wharfinger.routing.targets import Target

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")

_KEPT_BACK = frozenset(
    (
        # RFC 9110 §7.6.1: meant for the next hop only.
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        # Set anew for this answer.
        *(b"content-length", b"x-request-id", b"date"),
        # The endpoint's own business.
        *(b"server", b"set-cookie", b"www-authenticate", b"authorization"),
    )
)


class Identity(NamedTuple):
    """How one request is known in logs and traces."""

    request_id: str
    traceparent: str | None
    tracestate: str | None


def identify(headers: RawHeaders) -> Identity:
    """Keep the client's request id and trace when they are well formed; make an id when there is none."""
    request_id = traceparent = tracestate = None
    for name, value in headers:
        if name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                request_id = value.decode("ascii")
        elif name == b"traceparent":
            if _TRACEPARENT.fullmatch(value):
                traceparent = value.decode("ascii")
        elif name == b"tracestate" and _TRACESTATE.fullmatch(value):
            tracestate = value.decode("ascii")
    return Identity(request_id or secrets.token_hex(16), traceparent, tracestate if traceparent else None)


def towards_upstream(target: Target, identity: Identity) -> dict[str, str]:
    """The headers of the request to the endpoint. Nothing of the client's but its request id and trace."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "*/*",
        # Events are looked at on their way, and a compressed body could not be.
        "Accept-Encoding": "identity",
        "User-Agent": "wharfinger",
        "X-Request-ID": identity.request_id,
    }
    if target.api_key is not None:
        headers["Authorization"] = "Bearer " + target.api_key
    if identity.traceparent is not None:
        headers["traceparent"] = identity.traceparent
    if identity.tracestate is not None:
        headers["tracestate"] = identity.tracestate
    return headers


def towards_client(raw: Iterable[tuple[bytes, bytes]], target: Target, request_id: str) -> RawHeaders:
    """The endpoint's headers the client may see, and the request id. The body's length is not among them."""
    kept: RawHeaders = [(b"x-request-id", request_id.encode("ascii"))]
    private: set[bytes] = set()
    secret = target.api_key.encode() if target.api_key else None
    for name, value in raw:
        lower = name.lower()
        if lower == b"connection":
            private.update(token.strip().lower() for token in value.split(b","))
        elif lower not in _KEPT_BACK and (secret is None or secret not in value):
            kept.append((lower, value))
    return [pair for pair in kept if pair[0] not in private] if private else kept

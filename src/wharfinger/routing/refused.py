"""What an endpoint refused, in OpenAI's envelope: engines agree neither on the envelope nor on the type of a code."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from wharfinger.routing import errors
from wharfinger.routing.asgi import RawHeaders
from wharfinger.routing.errors import GatewayError

UPSTREAM_STATUS = "upstream_status"
"""The code where the endpoint gave none of its own."""
CONTEXT_EXCEEDED = "context_length_exceeded"
_TEXT_CHARACTERS = 500
_CONTEXT_TYPE = "exceed_context_size_error"
_CONTEXT_WORDS = re.compile(r"maximum context length|maximum model length")
"""vLLM's, which has neither a type nor a code of its own for it."""
_CONTEXT_STATUSES = (400, 413, 422)


class _Words(NamedTuple):
    """What the endpoint said, as far as it said it."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


def from_body(model: str, status: int, body: bytes, headers: RawHeaders) -> GatewayError:
    """The error for an answer of ``status`` (400 to 599) with whatever body."""
    words = _read(body)
    if words is None:
        text = body[:_TEXT_CHARACTERS].decode("utf-8", "replace").strip()
        reason = f": {text}" if text else " without a reason."
        message = f"The endpoint of {model!r} answered {status}{reason}"
        return GatewayError(status, UPSTREAM_STATUS, message, error_type=errors.UPSTREAM, headers=headers)
    return _wrapped(words, status, headers)


def _read(body: bytes) -> _Words | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict):
        return None
    error = document.get("error", document)
    return _fields(error if isinstance(error, dict) else {"message": error})


def _fields(error: dict[str, Any]) -> _Words | None:
    message = error.get("message")
    if not isinstance(message, str) or not message:
        return None
    code = _text(error.get("code"))
    return _Words(
        message,
        _text(error.get("type")),
        _text(error.get("param")),
        None if code is None or code.isdigit() else code,  # a number is the status again
    )


def _wrapped(words: _Words, status: int, headers: RawHeaders) -> GatewayError:
    if (
        words.type == _CONTEXT_TYPE
        or words.code == CONTEXT_EXCEEDED
        or (status in _CONTEXT_STATUSES and _CONTEXT_WORDS.search(words.message))
    ):
        message = f"{CONTEXT_EXCEEDED}: {words.message.removeprefix(CONTEXT_EXCEEDED + ': ')}"
        return GatewayError(400, CONTEXT_EXCEEDED, message, param=words.param, headers=headers)
    return GatewayError(
        status,
        words.code or UPSTREAM_STATUS,
        words.message,
        error_type=words.type or (errors.INVALID if status < 500 else errors.UPSTREAM),
        param=words.param,
        headers=headers,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

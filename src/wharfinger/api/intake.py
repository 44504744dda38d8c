"""What a request must be before any route reads it: of a bounded size, and text that can be stored and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wharfinger.access.rules import text_headers
from wharfinger.api.errors import ApiError, respond
from wharfinger.api.guard import OPEN_PATHS

MAX_BODY_BYTES = 4 << 20
"""An exact placement over many nodes, with the card in each shard, is far below."""
MAX_OPEN_BODY_BYTES = 4096
"""Of routes that want no key. The one that takes a body is the login: a key and nothing else."""

_SUSPECT = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
_FORM = "application/x-www-form-urlencoded"


class Intake:
    """ASGI wrapper that reads the body of a request that has one, and refuses what nobody can work with.

    JSON can say half of a surrogate pair, which no encoding can write, and PostgreSQL stores no NUL.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400, 413 or 415."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
                raise _unusable("the address")
            if scope["method"] not in ("GET", "HEAD"):
                receive = await _checked(scope, receive)
        except ApiError as error:
            await respond(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _checked(scope: Scope, receive: Receive) -> Receive:
    headers = text_headers(scope["headers"])
    kind = headers.get("content-type", "").lower()
    if kind.startswith("multipart/"):  # none of our pages sends it, and it may name any encoding of Python's
        wanted = f"send JSON, or what a page's form sends: {_FORM}"
        raise ApiError(415, "unsupported_media_type", f"{kind[:100]!r} is not taken; {wanted}")
    limit = MAX_OPEN_BODY_BYTES if scope["path"] in OPEN_PATHS else MAX_BODY_BYTES
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if message["type"] != "http.request" or not message.get("more_body", False):
            break  # complete, or the client has left, which the route is told next
    if b"\x00" in body or (kind.startswith(_FORM) and b"%00" in body) or not _is_text(bytes(body)):
        raise _unusable("the body")
    whole = [{**message, "body": bytes(body)} if message["type"] == "http.request" else message]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()

    return replay


def _is_text(body: bytes) -> bool:
    """Whether a body, should it be JSON, holds only strings that can be written."""
    try:
        body.decode()
        if not _SUSPECT.search(body):
            return True
        document = json.loads(body)
    except UnicodeDecodeError:
        return False
    except (ValueError, RecursionError):
        return True  # no JSON: the route says what it wants
    try:
        return not any(b"\x00" in text.encode() for text in _texts(document))
    except UnicodeEncodeError:
        return False


def _texts(document: object) -> Iterator[str]:
    ahead = [document]
    while ahead:
        value = ahead.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            ahead += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            ahead += value


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body of this request has at most {limit} bytes")


def _unusable(where: str) -> ApiError:
    return ApiError(
        400,
        "invalid_text",
        f"{where} holds what is no text: bytes that are not UTF-8, half of a surrogate pair, or NUL",
    )

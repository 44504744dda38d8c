"""Server-sent events as bytes: where whole events end, and the event that ends an OpenAI stream."""

from __future__ import annotations

import re

import orjson

HELD_LIMIT_BYTES = 1 << 20
"""An unfinished event longer than this is passed on as it is, so memory stays bounded."""

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


def split_events(data: bytes) -> tuple[bytes, bytes]:
    """``data`` cut behind its last whole event: what may be passed on, and what must wait for more.

    A reader cannot take back half an event, so a stream that breaks in the middle of one could not be followed by a
    readable error if the half had been passed on.
    """
    lf, crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    end = max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
    if len(data) - end > HELD_LIMIT_BYTES:
        return data, b""
    return data[:end], data[end:]


def ends_stream(events: bytes) -> bool:
    """Whether whole events hold the ``data: [DONE]`` that ends an OpenAI stream."""
    return b"[DONE]" in events and _DONE.search(events) is not None


def event(body: object) -> bytes:
    """One event with a JSON document as its data."""
    return b"data: " + orjson.dumps(body) + b"\n\n"

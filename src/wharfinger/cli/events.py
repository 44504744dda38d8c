"""An operation's events as they happen, over connections that may break."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.output import CliError, Exit

LOST_FOR_S = 60.0
SILENCE_S = 45.0
"""The control plane says every 15 s that it is still there."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0

_PASSING = (429, 500, 502, 504)
"""What a proxy or an overloaded control plane answers for a while is no refusal of the request; nor is 503."""

Event = tuple[str, dict[str, Any]]


def operation_events(client: Client, operation_id: str, *, lost_for_s: float = LOST_FOR_S) -> Iterator[Event]:
    """Events as ``(name, data)`` to the operation's end; after a lost connection, from the last one seen.

    The last item is ``("end", operation)``. Interrupting it never touches the operation.

    Raises:
        CliError: refused, or the control plane stayed away for ``lost_for_s`` seconds.
    """
    last = 0
    lost_since: float | None = None
    pause_s = _FIRST_PAUSE_S
    while True:
        why: Exception | None = None
        try:
            for name, sequence, data in _connection(client, operation_id, last):
                lost_since, pause_s = None, _FIRST_PAUSE_S
                last = sequence or last
                if data is not None:
                    yield name, data
                if name == "end":
                    return
        except (httpx.TransportError, CliError) as error:
            if isinstance(error, CliError) and not _passes(error):
                raise
            why = error
        now = time.monotonic()
        lost_since = lost_since or now
        if now - lost_since >= lost_for_s:
            raise CliError(
                f"lost the control plane for {lost_for_s:.0f} s{_told(why)}; the work goes on. "
                f"Watch it again with: wharf ops watch {operation_id}",
                Exit.UNREACHABLE,
            ) from why
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _passes(error: CliError) -> bool:
    return error.code is Exit.UNREACHABLE or error.status in _PASSING


def _told(why: Exception | None) -> str:
    return "" if why is None else f" ({str(why) or type(why).__name__})"


def _connection(
    client: Client, operation_id: str, last: int
) -> Iterator[tuple[str, int | None, dict[str, Any] | None]]:
    """``(name, sequence, data)`` of each event; a sign of life has no data."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
    path = f"/api/v1/operations/{path_of(operation_id)}/events"
    with client.stream("GET", path, read_s=SILENCE_S, headers=headers) as response:
        name, sequence = "message", None
        for line in response.iter_lines():
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "id":
                sequence = int(value)
            elif key == "data":
                yield name, sequence, json.loads(value)
                name, sequence = "message", None
            elif line.startswith(":"):
                yield "alive", None, None

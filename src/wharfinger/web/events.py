"""``/ui/events``: the panels that changed, rendered again and pushed as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from wharfinger.access.callers import Auth, Viewer
from wharfinger.access.principals import Principal, Role
from wharfinger.store.errors import StoreUnavailable
from wharfinger.web.board import Board, read_board
from wharfinger.web.rendering import render
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.serving import Control

LOOK_EVERY_S = 1.0
KEEP_ALIVE_S = 15.0
"""A comment at least this often, so that a connection that is gone is noticed on both ends."""
PANELS = {
    "nodes": "_nodes.html",
    "instances": "_instances.html",
    "operations": "_operations.html",
    "chat-models": "_chat_models.html",
}
_FIELDS = {panel: panel.replace("-", "_") for panel in PANELS}
PLACEMENT = "placement"
"""Event without a panel: what is free has changed, so an open preview is to be asked for again."""

router = APIRouter(include_in_schema=False)


@router.get("/ui/events")
async def events(control: Control, auth: Auth, viewer: Viewer) -> StreamingResponse:
    """Follow the board. A key that is revoked, or a session that expires or is signed out of, ends the stream."""

    return StreamingResponse(
        _follow(control, viewer, lambda: auth.still_valid(viewer)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _follow(
    control: ControlPlane, viewer: Principal, allowed: Callable[[], bool]
) -> AsyncIterator[str]:
    shown: Board | None = None
    silent_s = 0.0
    while allowed() and not control.stopping.is_set():
        try:
            board = await read_board(control)
        except StoreUnavailable:
            board = shown  # the page keeps what it has; the next look may find the database again
        messages = [] if board is None else changes(shown, board, viewer)
        for message in messages:
            yield message
        silent_s = 0.0 if messages else silent_s + LOOK_EVERY_S
        if silent_s >= KEEP_ALIVE_S:
            yield ": still here\n\n"
            silent_s = 0.0
        shown = board
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await control.stopping.wait()


def changes(shown: Board | None, board: Board, viewer: Principal) -> list[str]:
    """The messages that bring a page from ``shown`` (``None``: unknown) to ``board``."""
    messages = [
        message(panel, render(template, panel_values(board, viewer)))
        for panel, template in PANELS.items()
        if shown is None or getattr(shown, _FIELDS[panel]) != getattr(board, _FIELDS[panel])
    ]
    if shown is not None and (shown.ledger != board.ledger or len(shown.nodes) != len(board.nodes)):
        messages.append(message(PLACEMENT, ""))
    return messages


def panel_values(board: Board, viewer: Principal) -> Mapping[str, Any]:
    """What the panels' templates use."""
    return {"board": board, "may_operate": viewer.role >= Role.OPERATOR}


def message(event: str, data: str) -> str:
    """One server-sent event; each line of ``data`` becomes a line of its own."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines()) or "data:\n"
    return f"event: {event}\n{lines}\n"

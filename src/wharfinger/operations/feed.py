"""An operation's events as they come, for server-sent events and for ``wharf ops watch``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from wharfinger.operations.model import OperationEvent
from wharfinger.operations.port import WorkStore
from wharfinger.operations.signals import events_of, wait_for

_PAGE = 100


async def follow(
    store: WorkStore,
    operation_id: str,
    after_sequence: int = 0,
    *,
    poll_s: float = 1.0,
    keepalive_s: float | None = None,
) -> AsyncGenerator[OperationEvent | None]:
    """Yield the events after ``after_sequence`` in order, each once, and end after those of a finished operation.

    Commits of this process are seen at once, those of others within ``poll_s`` seconds. With ``keepalive_s``, None is
    yielded whenever so many seconds passed without an event, so that a stream can show that it is alive.

    Raises UnknownOperation.
    """
    loop = asyncio.get_running_loop()
    spoke_at = loop.time()
    with store.signals.listen(events_of(operation_id)) as committed:
        while True:
            # Read before the events: what a finished operation had to say is then already there.
            finished = (await store.get(operation_id)).state.terminal
            events = await store.events(operation_id, after_sequence, _PAGE)
            for event in events:
                after_sequence = event.sequence
                spoke_at = loop.time()
                yield event
            if len(events) == _PAGE:
                continue
            if finished:
                return
            await wait_for(committed, poll_s)
            if keepalive_s is not None and loop.time() - spoke_at >= keepalive_s:
                spoke_at = loop.time()
                yield None

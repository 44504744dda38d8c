"""Wake-ups inside one process, so that nobody has to wait for the next poll to see a local commit."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

WORK = "work"
"""Topic: something may be claimable now."""


def events_of(operation_id: str) -> str:
    """Topic: the operation has new events."""
    return f"events:{operation_id}"


def cancel_of(operation_id: str) -> str:
    """Topic: somebody asked to cancel the operation."""
    return f"cancel:{operation_id}"


class Signals:
    """Topics and who listens to them. A wake-up is a hint: listeners look at the store, and poll as well."""

    def __init__(self) -> None:
        self._listeners: dict[str, dict[asyncio.Event, None]] = {}  # ordered, so that runs can be repeated

    def notify(self, topic: str) -> None:
        """Wake everyone who listens to ``topic``."""
        for event in self._listeners.get(topic, ()):
            event.set()

    @contextmanager
    def listen(self, topic: str) -> Generator[asyncio.Event]:
        """An event that each :meth:`notify` sets; the listener clears it."""
        event = asyncio.Event()
        self._listeners.setdefault(topic, {})[event] = None
        try:
            yield event
        finally:
            listeners = self._listeners[topic]
            del listeners[event]
            if not listeners:
                del self._listeners[topic]


async def wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until ``event`` is set, and clear it; False after ``timeout_s`` seconds without it."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True

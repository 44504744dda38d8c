"""Notices, while a request waits for its endpoint, that the client has gone or the endpoint has fallen silent.

A request that is answered at once pays for one timer. Only one that lasts longer than :data:`LISTEN_AFTER_S` gets a
task that listens for ``http.disconnect``, so a client that leaves is noticed well within a second in every phase.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from wharfinger.routing.asgi import Receive, Send

LISTEN_AFTER_S = 0.05
HEARTBEAT = b": keep-alive\n\n"
"""A comment in an event stream: readers skip it, proxies in between see that the connection lives."""


class Cause(StrEnum):
    """Why a request was interrupted."""

    CLIENT_GONE = "client_gone"
    SILENCE = "silence"


class Watch:
    """Guards the current task: cancels it with a :class:`Cause`. Made and stopped by the task it guards."""

    __slots__ = (
        "_beat",
        "_heartbeat_s",
        "_listener",
        "_loop",
        "_next_beat_s",
        "_receive",
        "_send",
        "_task",
        "_tick",
        "_timer",
        "at_boundary",
        "cause",
        "last_byte_s",
        "silence_limit_s",
    )

    def __init__(self, receive: Receive, send: Send, silence_limit_s: float | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = loop = task.get_loop()
        self._receive = receive
        self._send = send
        self._listener: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._heartbeat_s: float | None = None
        self._next_beat_s = 0.0
        self.cause: Cause | None = None
        self.silence_limit_s = silence_limit_s
        self.last_byte_s = loop.time()
        self.at_boundary = False
        """True while the guarded task waits for the endpoint and the client holds whole events only."""
        self._timer = loop.call_later(LISTEN_AFTER_S, self._start)

    def now_s(self) -> float:
        """The clock :attr:`last_byte_s` is set by."""
        return self._loop.time()

    def body_begins(self, silence_limit_s: float | None, heartbeat_s: float | None = None) -> None:
        """The endpoint has begun to answer: from now on these limits hold."""
        self.last_byte_s = self._loop.time()
        self.silence_limit_s = silence_limit_s
        self._heartbeat_s = heartbeat_s
        if self._listener is not None:
            self._schedule()

    def stop(self) -> None:
        """End the guard; after this the task is not cancelled by it any more."""
        self._timer.cancel()
        for handle in (self._listener, self._beat, self._tick):
            if handle is not None:
                handle.cancel()

    def _start(self) -> None:
        self._listener = self._loop.create_task(self._listen())
        self._schedule()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._interrupt(Cause.CLIENT_GONE)

    def _interrupt(self, cause: Cause) -> None:
        if self.cause is None:
            self.cause = cause
            self._task.cancel()

    def _schedule(self) -> None:
        """Wake up when the next of silence limit and heartbeat is due."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        due_s: list[float] = []
        if self.silence_limit_s is not None:
            due_s.append(self.last_byte_s + self.silence_limit_s)
        if self._heartbeat_s is not None:
            self._next_beat_s = max(self._next_beat_s, self.last_byte_s + self._heartbeat_s)
            due_s.append(self._next_beat_s)
        if due_s:
            self._tick = self._loop.call_at(min(due_s), self._on_tick)

    def _on_tick(self) -> None:
        now_s = self._loop.time()
        if self.silence_limit_s is not None and now_s >= self.last_byte_s + self.silence_limit_s:
            self._interrupt(Cause.SILENCE)
            return
        if self._heartbeat_s is not None and now_s >= max(
            self._next_beat_s, self.last_byte_s + self._heartbeat_s
        ):
            self._next_beat_s = now_s + self._heartbeat_s
            if self.at_boundary and (self._beat is None or self._beat.done()):
                self._beat = self._loop.create_task(self._send_heartbeat())
        self._schedule()

    async def _send_heartbeat(self) -> None:
        await self._send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})

"""Blocking calls that may hang for ever: a driver that does not answer, a disk that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class OneAtATime(Generic[T]):
    """Runs calls in daemon threads, one at a time and each with a deadline. Belongs to one event loop.

    A call that hangs keeps its one thread and its place: later calls wait for it, until their own deadlines, and are
    not started on top. Its thread is none of the event loop's pool, which others need, and does not keep the process
    from ending.
    """

    def __init__(self, name: str, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[[], T]) -> T:
        """What ``call`` returns or raises.

        Raises:
            TimeoutError: after the deadline, the wait for an earlier call included.
        """
        async with asyncio.timeout(self._deadline_s):
            await self._turn.acquire()
            # From here on the end of the thread gives the turn back, whether or not somebody still waits for it.
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[T] = loop.create_future()
            thread = threading.Thread(
                target=self._work, args=(call, loop, answer), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                self._turn.release()
                raise
            return await answer

    def _work(
        self, call: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]
    ) -> None:
        try:
            settle = partial(answer.set_result, call())
        except BaseException as error:
            settle = partial(answer.set_exception, error)
        # The loop may be closed by now: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._settle, answer, settle)

    def _settle(self, answer: asyncio.Future[T], settle: Callable[[], None]) -> None:
        self._turn.release()
        if not answer.done():
            settle()

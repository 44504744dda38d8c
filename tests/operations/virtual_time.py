"""An event loop whose clock jumps to the next timer: hours take no time, and equal input gives equal runs."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Deadlock(Exception):
    """Every task waits for something that nothing will bring about."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for I/O, which there is none of, moves the loop's clock by the whole wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now


def run_virtually(main: Coroutine[Any, Any, _T]) -> _T:
    """Run ``main`` to its end on a fresh loop of virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)

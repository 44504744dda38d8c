"""Which engines this node has: looked for when it starts, and again while it has none.

A driver that was slow once, or an engine that is installed later, must not leave a node without engines until its next
start.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

from wharfinger.engines.detect import detect_engines
from wharfinger.fleet.agent import EngineReport

_AGAIN_AFTER_S: Final = 60.0
"""From the end of a search that found nothing to the next one."""
_Found = tuple[tuple[EngineReport, ...], dict[str, str]]


class EngineSearch:
    """Searches for engines and keeps what the last search found. One thread at a time may ask it."""

    def __init__(self) -> None:
        self._first = threading.Lock()
        self._found: _Found | None = None
        self._thread: threading.Thread | None = None
        self._again_at_s = 0.0

    def find(self) -> None:
        """Search, unless that was done before. Blocks: for about 0.1 s, and for a minute where a driver hangs."""
        with self._first:
            if self._found is None:
                self._search()

    def answer(self) -> _Found:
        """The engines, and for each other one the reason by its fact ``engines.NAME``.

        While there are no engines another search begins beside the caller, who does not wait for it: a minute after the
        last, and never two at a time.
        """
        self.find()
        assert self._found is not None
        engines, missing = self._found
        searching = self._thread is not None and self._thread.is_alive()
        if not engines and not searching and time.monotonic() >= self._again_at_s:
            self._again_at_s = time.monotonic() + _AGAIN_AFTER_S
            self._thread = threading.Thread(target=self._search, name="engine-search", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread is left: the next time, then
                self._thread.start()
        return engines, missing

    def _search(self) -> None:
        found, missing = detect_engines()
        self._again_at_s = time.monotonic() + _AGAIN_AFTER_S
        self._found = (
            tuple(
                EngineReport(engine=e.engine, backends=e.backends, version=e.version, build=e.build)
                for e in found
            ),
            {f"engines.{name}": reason for name, reason in missing.items()},
        )

"""A runner's log on disk: written by one pump thread, rotated, read by absolute byte offset.

``log`` is the part being written. A full part is renamed ``log.<offset of its first byte>``, so the place of
every part in the whole log can be read from the file names, also after a restart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PART_BYTES: Final = 8 * 1024 * 1024
"""Size at which a part is rotated."""
PARTS: Final = 3
"""Parts kept, the current one included."""
RETRY_S: Final = 3.0
"""How often a disk that refused is tried again."""
TAIL_LINES: Final = 40
_TAIL_BYTES: Final = 32 * 1024
_READ_BYTES: Final = 64 * 1024
_CURRENT: Final = "log"


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Bytes ``start`` to ``start + len(data)`` of a log that now is ``size_bytes`` long."""

    start: int
    data: bytes
    size_bytes: int

    @property
    def next_offset(self) -> int:
        """Where to go on reading."""
        return self.start + len(self.data)


class RunnerLog:
    """The log in one directory. Methods block on the disk and may be called from any thread."""

    def __init__(self, directory: Path, *, part_bytes: int = PART_BYTES, parts: int = PARTS) -> None:
        self._directory = directory
        self._part_bytes = part_bytes
        self._parts = parts
        self._lock = threading.Lock()

    def append(self, data: bytes) -> None:
        """Write at the end; rotates first when the current part is full."""
        with self._lock:
            current = self._directory / _CURRENT
            try:
                size_bytes = current.stat().st_size
            except FileNotFoundError:
                size_bytes = 0
            if size_bytes >= self._part_bytes:
                self._rotate()
            with current.open("ab", buffering=0) as file:
                # A disk that fills up takes a part first and refuses the rest.
                while data:
                    data = data[file.write(data) :]

    def read(self, offset: int, limit_bytes: int) -> LogSlice:
        """Up to ``limit_bytes`` from ``offset``; negative counts from the end. What rotation dropped is skipped."""
        with self._lock:
            parts = self._listed()
            end = parts[-1][0] + parts[-1][1].stat().st_size if parts else 0
            start = max(0, end + offset) if offset < 0 else min(offset, end)
            start = max(start, parts[0][0]) if parts else 0
            found: list[bytes] = []
            left = limit_bytes
            at = start
            for base, path in parts:
                size_bytes = path.stat().st_size
                if left <= 0 or at >= base + size_bytes:
                    continue
                with path.open("rb") as file:
                    file.seek(at - base)
                    found.append(file.read(left))
                left -= len(found[-1])
                at += len(found[-1])
        return LogSlice(start, b"".join(found), end)

    def tail(self, lines: int = TAIL_LINES) -> tuple[str, ...]:
        """The last lines, without line ends; a torn first line is left out."""
        piece = self.read(-_TAIL_BYTES, _TAIL_BYTES)
        text = piece.data.decode(errors="replace").splitlines()
        if piece.start > 0 and len(text) > 1:
            text = text[1:]
        return tuple(text[-lines:])

    def _listed(self) -> list[tuple[int, Path]]:
        """Parts in order, each with the offset of its first byte."""
        rotated = sorted(
            (int(path.suffix[1:]), path)
            for path in self._directory.glob(f"{_CURRENT}.*")
            if path.suffix[1:].isdigit()
        )
        current = self._directory / _CURRENT
        if current.exists():
            base = rotated[-1][0] + rotated[-1][1].stat().st_size if rotated else 0
            rotated.append((base, current))
        return rotated

    def _rotate(self) -> None:
        base, current = self._listed()[-1]
        current.rename(self._directory / f"{_CURRENT}.{base:016d}")
        for _, path in self._listed()[: -(self._parts - 1)]:
            path.unlink()


class LogPump:
    """A thread that moves a pipe into a log, so that no slow disk ever blocks the event loop."""

    def __init__(
        self, read_fd: int, log: RunnerLog, on_end: Callable[[], None], *, retry_s: float = RETRY_S
    ) -> None:
        """Start pumping. ``on_end`` is called in the thread once every holder of the pipe's other end is gone."""
        self._retry_s = retry_s
        self._read_fd = read_fd
        self._log = log
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="runner-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        lost_bytes, reason, retry_at = 0, "", 0.0
        try:
            while data := os.read(self._read_fd, _READ_BYTES):
                # A full or read-only disk must not stop the runner: go on emptying the pipe, without a log for a while.
                if lost_bytes and time.monotonic() < retry_at:
                    lost_bytes += len(data)
                    continue
                try:
                    if lost_bytes:
                        self._log.append(_gap(lost_bytes, reason))
                        lost_bytes = 0
                    self._log.append(data)
                except OSError as error:
                    lost_bytes += len(data)
                    reason = error.strerror or type(error).__name__
                    retry_at = time.monotonic() + self._retry_s
            if lost_bytes:
                with contextlib.suppress(OSError):
                    self._log.append(_gap(lost_bytes, reason))
        finally:
            os.close(self._read_fd)
            self._on_end()


def _gap(lost_bytes: int, reason: str) -> bytes:
    return f"\n[up to {lost_bytes} bytes of this log could not be written: {reason}]\n".encode()

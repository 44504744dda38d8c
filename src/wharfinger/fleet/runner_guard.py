"""The guard: a small process beside the engine that ends it when the control plane is gone.

An engine may hold the interpreter lock for the whole load, so no thread of the engine's own process can be trusted
to notice anything. The runner therefore forks this guard before it imports an engine. The guard lives in the
runner's process group, holds nothing but two pipes, and ends the whole group when

* its standard input ends: the control plane holds the other end and is gone, however it died;
* the control plane's process ends (Linux: a pidfd), should a stray child of it still hold that pipe;
* the engine's process ends, should it leave helpers behind.

Standard library only: the runner imports it before anything else.
"""

from __future__ import annotations

import json
import os
import select
import signal
from typing import Final

ASK: Final = b"q"
"""What the guard hands on to the engine's process when the control plane asks for an orderly end."""
_POLL_MS: Final = 250
_READABLE: Final = select.POLLIN | select.POLLHUP | select.POLLERR


def fork_guard(control_plane_pid: int) -> int:
    """Fork the guard of this process and return the pipe on which requests to end arrive.

    Must be called while this process has one thread. The returned descriptor gives :data:`ASK`, or ends when the
    guard is gone; both mean: stop serving and exit.
    """
    runner_pid = os.getpid()
    requests_read, requests_write = os.pipe()
    if os.fork() == 0:
        os.close(requests_read)
        _guard(control_plane_pid, runner_pid, requests_write)
    os.close(requests_write)
    return requests_read


def _guard(control_plane_pid: int, runner_pid: int, requests_write: int) -> None:
    """Watch until something ends, then end the group, this process included."""
    try:
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        _watch(control_plane_pid, runner_pid, requests_write)
    finally:
        # The group is the runner's: it was started as a session leader, and this process was forked from it.
        os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)


def _watch(control_plane_pid: int, runner_pid: int, requests_write: int) -> None:
    poll = select.poll()
    poll.register(0, _READABLE)
    pidfds = [fd for fd in (_pidfd(control_plane_pid), _pidfd(runner_pid)) if fd is not None]
    for fd in pidfds:
        poll.register(fd, _READABLE)
    timeout_ms = None if len(pidfds) == 2 else _POLL_MS
    pending = b""
    while os.getppid() == runner_pid:
        for fd, _ in poll.poll(timeout_ms):
            if fd != 0:
                return
            data = os.read(0, 4096)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            if any(json.loads(line).get("command") == "shutdown" for line in lines):
                os.write(requests_write, ASK)


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once ``pid`` has ended; ``None`` where the kernel has none to give."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None

"""Processes by identity: a pid together with the moment its process was created.

A pid alone is no identity (the kernel uses numbers again), and a name never is (two agents may share a host).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
from pydantic import BaseModel, ConfigDict

_CLOCK_TOLERANCE_S = 1.0
"""Creation times are derived from the boot time, which moves a little when the clock is set."""


class ProcessIdentity(BaseModel):
    """A process that led a session, as it was recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    created_unix_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Identity of a live process; ``None`` when it is gone."""
        try:
            return cls(pid=pid, created_unix_s=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    def is_ours(self, process: psutil.Process) -> bool:
        """Whether ``process`` is the recorded one and not another under its number."""
        return abs(process.create_time() - self.created_unix_s) <= _CLOCK_TOLERANCE_S


def group_members(leader: ProcessIdentity) -> list[psutil.Process]:
    """Live processes of the session that ``leader`` led.

    Empty when another process has the leader's number now. With the leader gone and members left, the kernel keeps
    the number from being used again, so the members are the leader's own.
    """
    try:
        process = psutil.Process(leader.pid)
        if process.status() != psutil.STATUS_ZOMBIE and not leader.is_ours(process):
            return []
    except (psutil.Error, OSError):
        pass  # psutil lets a plain OSError through when the process ends while its files are read
    return list(_session(leader))


def _session(leader: ProcessIdentity) -> Iterator[psutil.Process]:
    earliest = leader.created_unix_s - _CLOCK_TOLERANCE_S
    for pid in psutil.pids():
        try:
            if os.getsid(pid) != leader.pid:
                continue
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and process.create_time() >= earliest:
                yield process
        except (OSError, psutil.Error):
            continue  # it ended while it was looked at, or belongs to somebody else


def signal_group(group_id: int, number: signal.Signals) -> bool:
    """Signal every process of a group; false when none is left that may be signalled (macOS counts zombies as such)."""
    try:
        os.killpg(group_id, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap_group(group_id: int) -> None:
    """Take the exit statuses of a group's ended processes that became children of this one.

    Whoever is process 1 of its container inherits every orphan, and an orphan nobody waits for stays a zombie. The
    group's leader must have been waited for already.
    """
    try:
        while os.waitpid(-group_id, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return  # none of them is ours: the usual case

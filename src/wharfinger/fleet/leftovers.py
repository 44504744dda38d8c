"""Removing what an earlier control plane of the same data directory left behind.

Runners end themselves when their control plane dies, so normally nothing is found. What is found is ended only when
its pid *and* its creation time are those recorded: another agent's runners on this host are never touched.
"""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Final

import psutil
import structlog
from pydantic import ValidationError

from wharfinger.fleet.process_group import ProcessIdentity, group_members
from wharfinger.fleet.supervisor import IDENTITY_FILE

KEPT_DIRECTORIES: Final = 20
"""Logs of forgotten runners kept, newest first."""
_END_S: Final = 5.0
_POLL_S: Final = 0.02
_log = structlog.get_logger(__name__)


def sweep(runners: Path) -> tuple[str, ...]:
    """End every leftover process below ``runners`` and drop all but the newest logs; returns the runner ids ended.

    Blocks for as long as the processes take to end, five seconds at most for each runner. Must only be called while
    no live agent uses the directory.
    """
    ended: list[str] = []
    for record in sorted(runners.glob(f"*/{IDENTITY_FILE}")):
        try:
            leader = ProcessIdentity.model_validate_json(record.read_bytes())
        except (ValidationError, OSError) as error:
            # Written in one go but perhaps cut by a power loss, after which no process is left either.
            _log.warning("runner_record_unreadable", path=str(record), error=str(error))
            record.unlink(missing_ok=True)
            continue
        if _end_group(leader):
            ended.append(record.parent.name)
            _log.info("leftover_runner_ended", runner_id=record.parent.name, pid=leader.pid)
        record.unlink(missing_ok=True)
    drop_old_logs(runners, frozenset())
    return tuple(ended)


def _end_group(leader: ProcessIdentity) -> bool:
    deadline = time.monotonic() + _END_S
    found = False
    while members := group_members(leader):
        found = True
        for process in members:
            # psutil compares the creation time once more right before it signals.
            _kill(process)
        if time.monotonic() > deadline:
            _log.error("leftover_runner_survives", pid=leader.pid, processes=[p.pid for p in members])
            break
        time.sleep(_POLL_S)
    return found


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return


def drop_old_logs(runners: Path, known: frozenset[str]) -> None:
    """Delete all but the newest directories below ``runners``; those of the ``known`` runner ids stay and do not count.

    A directory that cannot be listed is logged and tried again the next time.
    """
    try:
        directories = sorted(
            (d for d in runners.iterdir() if d.name not in known and d.is_dir()),
            key=lambda d: d.stat().st_mtime_ns,
            reverse=True,
        )
    except OSError as error:
        _log.warning("old_logs_not_dropped", path=str(runners), reason=error.strerror)
        return
    for directory in directories[KEPT_DIRECTORIES:]:
        shutil.rmtree(directory, ignore_errors=True)

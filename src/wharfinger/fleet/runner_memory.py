"""What runners hold of this node's RAM, measured from outside."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from wharfinger.fleet.agent import RunnerReport

_PROC: Final = Path("/proc")
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class ModelProcess:
    """The process of a living runner, and the model file it maps."""

    pid: int
    model_path: str


def mapped_model_bytes(
    processes: Iterable[ModelProcess], proc: Path = _PROC
) -> tuple[int | None, str | None]:
    """Resident bytes of files that ``processes`` have mapped, or ``None`` and the reason.

    The kernel counts them as page cache, so as memory it could give away, while an engine that maps its model reads
    all of them for every token. From ``RssFile`` of ``/proc/PID/status``: one small read without any lock of the
    process, however large the model. Processes that map the same model share its pages, so each model counts once,
    by the process that has most of it in memory.
    """
    if sys.platform != "linux":
        return None, "only Linux shows what a process has mapped of files"
    by_model: dict[str, int] = {}
    for process in processes:
        try:
            status = (proc / str(process.pid) / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            return None, f"process {process.pid} cannot be looked at: {error.strerror}"
        resident = _field_bytes(status, "RssFile")
        if resident is None and _field_bytes(status, "VmSize") is not None:
            return None, "this kernel does not show RssFile in /proc/PID/status"
        by_model[process.model_path] = max(by_model.get(process.model_path, 0), resident or 0)
    return sum(by_model.values()), None


def with_resident_bytes(reports: Iterable[RunnerReport]) -> tuple[RunnerReport, ...]:
    """The reports, those of living runners with their resident memory."""
    return tuple(
        r
        if r.pid is None or r.state.ended
        else r.model_copy(update={"resident_bytes": _resident_bytes(r.pid)})
        for r in reports
    )


def _field_bytes(status: str, name: str) -> int | None:
    """A size out of a status file; ``None`` when it is not there, as for a process that has ended."""
    for line in status.splitlines():
        field, _, value = line.partition(":")
        if field == name:
            return int(value.split()[0]) * _KIB
    return None


def _resident_bytes(pid: int) -> int | None:
    """Resident bytes of a runner's process and its descendants; pages they share count once for each."""
    try:
        leader = psutil.Process(pid)
        members = [leader, *leader.children(recursive=True)]
    except (
        psutil.Error,
        OSError,
    ):  # psutil lets a plain OSError through when a process ends while it is read
        return None
    total = 0
    for member in members:
        with contextlib.suppress(psutil.Error, OSError):
            total += member.memory_info().rss
    return total

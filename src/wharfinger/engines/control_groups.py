"""Control groups (versions 1 and 2): what a container or a service manager allows the processes of this node.

They are read from the innermost group outwards, because every group on the way sets a limit of its own. In a container
the path of a group may be the host's, which does not exist here; the mount itself is then the container's own group.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

MOUNT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")
PROCESSORS: Final = Path("/sys/devices/system/cpu")
"""Where Linux tells which processors are threads of one core."""


def group_directories(
    controller: str, mount: Path = MOUNT, membership: Path = MEMBERSHIP
) -> tuple[Path, ...]:
    """Directories of the groups this process is in that may limit ``controller`` (``memory``, ``cpu``), outwards.

    Empty where there are no control groups.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return ()
    found: list[Path] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            found += _outwards(mount, group)
        elif controller in controllers.split(","):
            found += _outwards(mount / controller, group)
    return tuple(found)


def cpu_quota(groups: Iterable[Path]) -> float | None:
    """Processors' worth of time that the tightest of ``groups`` allows; ``None`` when none sets a limit."""
    quotas = [quota for quota in map(_cpu_quota, groups) if quota is not None]
    return min(quotas, default=None)


def usable_cpus() -> int:
    """Processors that this process may keep busy, at least one: by its affinity and its control groups.

    Part of a processor does not count, because the threads of an engine wait for each other: one that is held back
    holds back all.
    """
    return _within_quota(len(_affinity()))


def usable_cores() -> int:
    """Physical cores that this process may keep busy, at least one: processors that are threads of one core count once.

    A second thread on a core gains an engine nothing: the arithmetic units are those of the first.
    """
    return _within_quota(len({_siblings(cpu) for cpu in _affinity()}))


def _affinity() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _siblings(cpu: int) -> str:
    """All processors of the core of ``cpu``, as the kernel writes them; a name of its own where that is not told."""
    try:
        return (PROCESSORS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return f"cpu{cpu}"


def _within_quota(count: int) -> int:
    quota = cpu_quota(group_directories("cpu"))
    return count if quota is None else max(1, min(count, int(quota)))


def _outwards(mount: Path, group: str) -> list[Path]:
    parts = [part for part in group.split("/") if part]
    if ".." in parts:  # a group outside of what is mounted here
        parts = []
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _cpu_quota(group: Path) -> float | None:
    """Quota of one group; the root group has no such file."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max" is no number

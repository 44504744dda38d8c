"""How much RAM this node has, and how much of it a new process could take."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_VM_STAT_LINE: Final = re.compile(r'^"?(?P<name>[^":]+)"?:\s+(?P<pages>\d+)\.', re.MULTILINE)
_PAGE_SIZE: Final = re.compile(r"page size of (\d+) bytes")


def measure_ram(mapped_bytes: int) -> tuple[int, int]:
    """Total and available bytes of RAM, never more than this process's control groups allow.

    ``mapped_bytes`` of file pages are in use by runners, so they are not available although the kernel could drop them.

    Linux: the kernel's own estimate of what can be had without swapping. macOS: total less wired, anonymous and
    compressor pages, so that the file cache counts as free.
    """
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    if sys.platform == "darwin":
        text = subprocess.run(
            ["/usr/bin/vm_stat"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
        return total, available_from_vm_stat(text, total) or available
    available = max(0, available - mapped_bytes)
    for limit, used in _cgroup_limits(mapped_bytes):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return total, available


def available_from_vm_stat(text: str, total_bytes: int) -> int | None:
    """Available bytes by one ``vm_stat`` snapshot; ``None`` when it lacks one of the figures."""
    size = _PAGE_SIZE.search(text)
    pages = {match["name"].strip(): int(match["pages"]) for match in _VM_STAT_LINE.finditer(text)}
    names = ("Pages wired down", "Anonymous pages", "Pages occupied by compressor")
    if size is None or any(name not in pages for name in names):
        return None
    return max(0, total_bytes - sum(pages[name] for name in names) * int(size[1]))


def _cgroup_limits(mapped_bytes: int) -> list[tuple[int, int]]:
    """Limit and irreclaimable use of each control group (version 2) that this process is in and that has a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return cgroup_limits(_CGROUP_ROOT, groups[0], mapped_bytes) if groups else []


def cgroup_limits(root: Path, group: str, mapped_bytes: int) -> list[tuple[int, int]]:
    """As :func:`measure_ram` needs it, for the control group ``group`` (``/a/b``) mounted at ``root``, outwards."""
    found: list[tuple[int, int]] = []
    at = root / group.lstrip("/")
    while True:
        try:
            limit = (at / "memory.max").read_text().strip()
            if limit != "max":
                used = int((at / "memory.current").read_text())
                # Mapped pages that were moved to the active list are in use by the kernel's own count.
                found.append((int(limit), used - max(0, _file_cache(at) - mapped_bytes)))
        except (OSError, ValueError):
            pass  # the root group has no such file, and version 1 has none at all
        if at in (root, at.parent):
            return found
        at = at.parent


def _file_cache(group: Path) -> int:
    """Bytes of file cache the kernel would give back first."""
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0

"""How much RAM this node has, and how much of it a new process could take."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from wharfinger.engines.control_groups import group_directories

_NO_LIMIT_BYTES: Final = 1 << 60
"""Version 1 of control groups writes a limit beyond all memory when there is none."""
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
    for limit, used in memory_limits(group_directories("memory"), mapped_bytes):
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


def memory_limits(groups: Iterable[Path], mapped_bytes: int) -> list[tuple[int, int]]:
    """Limit and irreclaimable use in bytes of each of ``groups`` that has a limit, for :func:`measure_ram`."""
    return [found for group in groups if (found := _memory_limit(group, mapped_bytes)) is not None]


def _memory_limit(group: Path, mapped_bytes: int) -> tuple[int, int] | None:
    version_2 = (group / "memory.max").exists()
    limit_file, used_file, cache = (
        ("memory.max", "memory.current", "inactive_file")
        if version_2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    try:
        limit = int((group / limit_file).read_text())
        used = int((group / used_file).read_text())
        if limit >= _NO_LIMIT_BYTES:
            return None
        # Mapped pages that were moved to the active list are in use by the kernel's own count.
        return limit, used - max(0, _file_cache(group, cache) - mapped_bytes)
    except (OSError, ValueError):
        return None  # "max" is no number, and a root group has no such file


def _file_cache(group: Path, field: str) -> int:
    """Bytes of file cache the kernel would give back first."""
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == field:
            return int(value)
    return 0

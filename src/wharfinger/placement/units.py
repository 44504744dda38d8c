"""Byte counts for people."""

from __future__ import annotations


def gib(size_bytes: int) -> str:
    """A size in GiB with one decimal, in MiB when it is small, or in bytes when that would read as nothing."""
    if 0 < abs(size_bytes) < 1024**2 // 10:
        return f"{size_bytes} byte{'' if abs(size_bytes) == 1 else 's'}"
    if abs(size_bytes) < 1024**3 // 10:
        return f"{size_bytes / 1024**2:.1f} MiB"
    return f"{size_bytes / 1024**3:.1f} GiB"

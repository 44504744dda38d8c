"""Byte counts for people."""

from __future__ import annotations

from typing import Final

_MIB: Final = 1024**2
_GIB: Final = 1024**3


def gib(size_bytes: int) -> str:
    """A size in GiB, below 1 GiB in MiB, of three significant digits; in bytes when that would read as nothing."""
    if abs(size_bytes) < _MIB // 10:
        return f"{size_bytes} byte{'' if abs(size_bytes) == 1 else 's'}"
    # What would be rounded to 1024 MiB is a GiB.
    unit_bytes, unit = (_MIB, "MiB") if abs(size_bytes) < _GIB - _MIB // 2 else (_GIB, "GiB")
    value = size_bytes / unit_bytes
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"

"""Sizes as people write them: the one rule for settings, ``fleet.yaml`` and what-if machines."""

from __future__ import annotations

import re
from typing import Final

NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
"""A plain number. More digits are no size of anything, and would not be kept exactly."""
_SIZE: Final = re.compile(rf"({NUMBER})\s*([KMGT](?:[iI]?B)?|[kmgt](?:i?b)?)")
_BYTES: Final = re.compile(r"[0-9]{1,18}")
MOST_BYTES: Final = 10**9 * 1024**4
"""Above every size that can be written."""
_UNITS: Final = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def size_of(text: str) -> int | None:
    """Bytes of a size such as ``64GiB``; ``None`` when it is not one.

    K, M, G and T, alone or with ``B`` or ``iB``, are powers of 1024, as memory is sold; lower case is the same. A whole
    number alone is bytes. ``64Gb`` is bits, and no size.
    """
    text = text.strip()
    match = _SIZE.fullmatch(text)
    if match is not None:
        return int(float(match[1]) * _UNITS[match[2][0].lower()])
    return int(text) if _BYTES.fullmatch(text) else None

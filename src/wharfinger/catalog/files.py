"""Opening what should be a file of a model."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading: a pipe would be waited for without end, and a device may do anything.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder the system says so itself
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.open("rb")

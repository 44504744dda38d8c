"""Hash a model file without holding it in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 8 << 20


def sha256_of(path: Path, progress: Callable[[int, int], None] | None = None) -> str:
    """SHA-256 of a file as 64 hex digits.

    Args:
        path: The file to read.
        progress: Called with bytes done and bytes in all, after every 8 MiB.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    done_bytes = 0
    with path.open("rb") as file:
        total_bytes = file.seek(0, 2)
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done_bytes += len(chunk)
            if progress is not None:
                progress(done_bytes, total_bytes)
    return digest.hexdigest()

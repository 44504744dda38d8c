"""Cheap checks of a GGUF file before an engine is asked to load it."""

from __future__ import annotations

import os
import struct
from typing import Final

from wharfinger.engines.base import EngineError

_MAGIC: Final = b"GGUF"
_HEADER: Final = struct.Struct("<4sIQQ")
"""Magic, version, tensor count, metadata count: the fixed start of a GGUF file."""
_VERSIONS: Final = (2, 3)
_GET_AGAIN: Final = "get the file again and check its size and SHA-256"


def check_gguf(path: str) -> int:
    """Size in bytes of the GGUF at ``path``.

    Raises:
        EngineError: ``file_missing`` when there is no readable file, ``load_failed`` when it is no GGUF.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
            size_bytes = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise EngineError(
            "file_missing",
            f"the model file {path} does not exist on this node; put it back or add the model again",
        ) from None
    except OSError as error:
        raise EngineError("file_missing", f"the model file {path} cannot be read: {error.strerror}") from None
    if not head:
        raise EngineError("load_failed", f"the model file {path} is empty; {_GET_AGAIN}")
    if head[:4] != _MAGIC[: len(head)]:
        raise EngineError(
            "load_failed",
            f"{path} is no GGUF file: it starts with {head[:4]!r}, a GGUF starts with {_MAGIC!r}; "
            "give the path of a model in GGUF format",
        )
    if len(head) < _HEADER.size:
        raise EngineError(
            "load_failed",
            f"{path} is truncated: {size_bytes} bytes are shorter than a GGUF header; {_GET_AGAIN}",
        )
    version = _HEADER.unpack(head)[1]
    if version not in _VERSIONS:
        raise EngineError(
            "load_failed",
            f"{path} has GGUF version {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} can be loaded",
        )
    return size_bytes

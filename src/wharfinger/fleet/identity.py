"""The node's stable id: made once, kept in the data directory, the same after every restart."""

from __future__ import annotations

import base64
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Final

from wharfinger.fleet.agent import AgentError

FILE_NAME: Final = "node_id"
_PATTERN: Final = re.compile(r"node_[a-z2-7]{26}")
_RANDOM_BYTES: Final = 16


def node_id(data_dir: Path) -> str:
    """Read the id in ``data_dir``, or make one: ``node_`` and 128 random bits in 26 base32 characters.

    Raises:
        AgentError: ``data_dir_unusable`` when the file cannot be read or written, ``node_id_damaged`` when it holds
            something else; a new id is never made over a damaged one, because plans and logs name the old one.
    """
    path = data_dir / FILE_NAME
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        try:
            found = path.read_text().strip()
        except FileNotFoundError:
            return _make(path)
    except OSError as error:
        raise AgentError(
            "data_dir_unusable",
            f"the node id cannot be kept in {path}: {error.strerror}; give a data directory that can be written",
        ) from error
    if not _PATTERN.fullmatch(found):
        raise AgentError(
            "node_id_damaged",
            f"{path} holds {found[:40]!r}, not a node id; put the right id back, or delete it to make this a new node",
        )
    return found


def _make(path: Path) -> str:
    """Write a new id under another name and link it in place, so that it appears whole or not at all."""
    made = "node_" + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode().rstrip("=").lower()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE_NAME}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(made + "\n")
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return path.read_text().strip()  # another process was first; its id is the node's
    finally:
        os.unlink(temporary)
    return made

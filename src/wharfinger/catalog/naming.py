"""Names for models, made from what a file says about itself."""

from __future__ import annotations

import re

_UNUSABLE = re.compile(r"[^A-Za-z0-9._:-]+")
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)?")
_LONGEST = 200


def model_id_from(*candidates: str) -> str:
    """The first candidate that leaves something usable: ``Gemma 3 270m`` → ``Gemma-3-270m``."""
    for candidate in candidates:
        name = _UNUSABLE.sub("-", candidate.strip()).strip("-._:")[:_LONGEST]
        if name:
            return name
    return "model"


def valid_model_id(model_id: str) -> bool:
    """Whether the catalog accepts ``model_id`` as a name (the card's own rule, and not too long to store)."""
    return len(model_id) <= _LONGEST and _VALID.fullmatch(model_id) is not None

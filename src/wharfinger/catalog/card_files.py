"""A card from whatever a person names: a GGUF file, or a folder with safetensors and their configuration."""

from __future__ import annotations

import stat
from pathlib import Path

from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.errors import ArtifactError
from wharfinger.catalog.gguf_card import gguf_card
from wharfinger.catalog.hf_card import hf_card
from wharfinger.catalog.naming import valid_model_id


def card_of(path: Path, model_id: str | None = None) -> ModelCard:
    """Read the headers at ``path`` and describe the model, as a custom card.

    Raises:
        ArtifactError: no usable model is there, or ``model_id`` cannot be a name. The message says what to do.
    """
    if model_id is not None and not valid_model_id(model_id):
        raise ArtifactError(
            f"{model_id!r} cannot be a model id: use letters, digits and . _ : - with at most one / in the middle, "
            "beginning with a letter or digit, at most 200 characters."
        )
    try:
        if _is_folder(path):
            return hf_card(path, model_id)
        if path.suffix == ".gguf":
            return gguf_card(path, model_id)
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    # Not even its first bytes are told: whoever may add models need not be allowed to read every file here.
    raise ArtifactError(
        f"{str(path)!r} is neither a .gguf file nor a folder with safetensors and config.json."
    )


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return False

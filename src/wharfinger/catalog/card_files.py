"""A card from whatever a person names: a GGUF file, or a folder with safetensors and their configuration."""

from __future__ import annotations

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
    if path.is_dir():
        return hf_card(path, model_id)
    return gguf_card(path, model_id)

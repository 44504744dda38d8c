"""A card from whatever a person names: a GGUF file, or a folder with safetensors and their configuration."""

from __future__ import annotations

import os
from pathlib import Path

from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.errors import ArtifactError, CatalogError
from wharfinger.catalog.gguf_card import gguf_card
from wharfinger.catalog.gguf_split import read_gguf_model
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


def link_into(models_dir: Path, path: Path) -> Path:
    """Give every file of a GGUF model a second name in ``models_dir`` and return the first one's.

    A hard link where both are on one file system, else a symbolic one. A name that already is this very file is
    left as it is.

    Raises:
        CatalogError: the name is taken by another file, or the folder cannot be written.
    """
    if path.is_dir():
        raise CatalogError(f"{path} is a folder; only GGUF files can be linked. Add it without a link.")
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        for source in read_gguf_model(path).paths:
            _link(source, models_dir / source.name)
    except OSError as error:
        raise CatalogError(f"Cannot link {path} into {models_dir}: {error.strerror}.") from error
    return models_dir / path.name


def _link(source: Path, target: Path) -> None:
    if target.exists():
        if target.samefile(source):
            return
        raise CatalogError(f"Cannot link {source}: {target} is another file. Rename one of them.")
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without hard links
        target.symlink_to(source.resolve())

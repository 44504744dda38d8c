"""What a person may name as a model: files and folders, and nothing that is waited for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from catalog.checkpoints import LLAMA, LLAMA_TENSORS, write_checkpoint
from catalog.gguf_files import tiny_llama
from wharfinger.catalog.card_files import card_of
from wharfinger.catalog.errors import ArtifactError
from wharfinger.catalog.safetensors import INDEX_NAME, SINGLE_NAME


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ArtifactError, match=r"model\.gguf cannot be read: it is no regular file"):
        card_of(pipe)


def test_a_device_is_not_opened() -> None:
    with pytest.raises(ArtifactError, match=r"/dev/zero' is neither a \.gguf file nor a folder"):
        card_of(Path("/dev/zero"))


@pytest.mark.parametrize("name", [SINGLE_NAME, "config.json", INDEX_NAME, "part.safetensors"])
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, LLAMA, LLAMA_TENSORS)
    if name == "part.safetensors":
        save_file({"a": np.zeros(1, np.float16)}, tmp_path / "other.safetensors")
        parts = {"a": "other.safetensors", "b": name}
        (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": parts}))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ArtifactError, match=rf"{name} cannot be read: it is no regular file"):
        card_of(tmp_path)


def test_paths_that_lead_nowhere_are_said(tmp_path: Path) -> None:
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    for name, words in (
        ("a" * 300, "File name too long"),
        ("a" * 300 + ".gguf", "File name too long"),
        ("loop.gguf", "Too many levels of symbolic links"),
    ):
        with pytest.raises(ArtifactError, match=rf"cannot be read: {words}"):
            card_of(tmp_path / name)
    with pytest.raises(ArtifactError, match=r"There is no file .*none\.gguf"):
        card_of(tmp_path / "none.gguf")
    with pytest.raises(ArtifactError, match=r"none' is neither a \.gguf file nor a folder"):
        card_of(tmp_path / "none")


def test_a_file_of_another_name_is_not_looked_into(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "model.bin")
    with pytest.raises(ArtifactError, match=r"model\.bin' is neither a \.gguf file nor a folder"):
        card_of(tmp_path / "model.bin")

"""Our safetensors header reader against the ``safetensors`` package, and damaged files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from wharfinger.catalog.errors import SafetensorsError
from wharfinger.catalog.safetensors import INDEX_NAME, SINGLE_NAME, read_checkpoint, read_safetensors

_DTYPES = [np.float32, np.float16, np.int64, np.uint8, np.bool_]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text("abcdefg.0123", min_size=1, max_size=12),
        st.tuples(st.sampled_from(_DTYPES), st.lists(st.integers(0, 5), max_size=4)),
        min_size=1,
        max_size=8,
    )
)
def test_names_types_shapes_and_sizes_agree_with_the_package(tmp_path: Path, wanted: dict[str, Any]) -> None:
    path = tmp_path / "random.safetensors"
    save_file(
        {name: np.zeros(shape, dtype) for name, (dtype, shape) in wanted.items()}, path, {"format": "np"}
    )
    ours = {
        tensor.name: (tensor.dtype, list(tensor.shape), tensor.size_bytes)
        for tensor in read_safetensors(path)
    }
    with safe_open(path, framework="np") as file:
        theirs = {}
        for name in file.keys():  # noqa: SIM118 (not a dictionary)
            piece = file.get_slice(name)
            theirs[name] = (piece.get_dtype(), piece.get_shape(), file.get_tensor(name).nbytes)
    assert ours == theirs


def _file(tmp_path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "made.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _row(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("dtype", "shape", "size"), [("F4", [3, 2], 3), ("F6_E2M3", [4], 3), ("F8_E4M3", [5], 5)]
)
def test_small_floats_are_packed(tmp_path: Path, dtype: str, shape: list[int], size: int) -> None:
    (tensor,) = read_safetensors(_file(tmp_path, {"t": _row(dtype, shape, [0, size])}, bytes(size)))
    assert tensor.size_bytes == size


@pytest.mark.parametrize(
    ("header", "data_bytes", "words"),
    [
        (b"{nonsense", 0, "not valid JSON"),
        (b"[1, 2]", 0, "a JSON object was expected"),
        (b"[" * 100_000, 0, "not valid JSON"),
        ({"t": 3}, 0, "'t' has no description"),
        ({"t": _row("F99")}, 8, "unknown dtype 'F99'"),
        ({"t": _row(shape=[-2])}, 8, "impossible shape or position"),
        ({"t": _row(shape=[True])}, 8, "impossible shape or position"),
        ({"t": _row(offsets=[0])}, 8, "impossible shape or position"),
        ({"t": _row(offsets=[0, 12])}, 12, "takes 12 bytes, but F32"),
        ({"t": _row(offsets=[4, 12])}, 12, "begins at 4 where 0 was expected"),
        ({"t": _row()}, 5, "is truncated: its tensors take 8 bytes but only 5 are there, so 3 are missing"),
        ({"t": _row()}, 9, "1 bytes at its end belong to no tensor"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: object, data_bytes: int, words: str) -> None:
    path = _file(tmp_path, header, bytes(data_bytes))
    with pytest.raises(SafetensorsError, match=words) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has 0 bytes"),
        (b"GGUF\x03\0\0\0" + bytes(64), "claims a header of"),
        ((1000).to_bytes(8, "little") + b"{}", "ends inside its header"),
    ],
)
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(SafetensorsError, match=words):
        read_safetensors(path)


def test_cut_and_flipped_files_give_tensors_or_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float16)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SafetensorsError):
            read_safetensors(path)
    source = random.Random(20261103)
    for _ in range(1000):
        data = bytearray(whole)
        data[source.randrange(len(data) - 32)] = source.randrange(256)
        path.write_bytes(data)
        try:
            read_safetensors(path)
        except SafetensorsError:
            continue


def _shards(folder: Path) -> None:
    save_file({"a": np.zeros(2, np.float32)}, folder / "model-1.safetensors")
    save_file({"b": np.zeros(3, np.float32)}, folder / "model-2.safetensors")
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 20}, "weight_map": names}))


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    _shards(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert {tensor.name: tensor.size_bytes for tensor in checkpoint.tensors} == {"a": 8, "b": 12}
    assert [file.name for file in checkpoint.files] == ["model-1.safetensors", "model-2.safetensors"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(SafetensorsError, match=r"lacks 1 of the 2 files .* model-2\.safetensors"):
        read_checkpoint(tmp_path)


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    _shards(tmp_path)
    save_file({"c": np.zeros(3, np.float32)}, tmp_path / "model-2.safetensors")
    with pytest.raises(SafetensorsError, match=r"names 1 tensors that no file holds, e\.g\. 'b'"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", ".hidden", "sub\\model"])
def test_an_index_may_not_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(SafetensorsError, match="not a file in the same folder"):
        read_checkpoint(tmp_path)


def test_a_folder_without_a_checkpoint_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsError, match=rf"holds neither {SINGLE_NAME} nor {INDEX_NAME}"):
        read_checkpoint(tmp_path)

"""Our header reader against the ``gguf`` package, and what it says about files that are none."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.gguf_files import LLAMA, tiny_llama, write_gguf
from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.ggml_types import FILE_TYPES, GGML_TYPES
from wharfinger.catalog.gguf import KEPT_ARRAY_ELEMENTS, LongArray, read_gguf


def test_type_tables_agree_with_the_gguf_package() -> None:
    ours = {code: (kind.name, kind.block_elements, kind.block_bytes) for code, kind in GGML_TYPES.items()}
    theirs = {int(code): (code.name, *sizes) for code, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert ours == theirs
    labels = {
        int(kind): kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in gguf.LlamaFileType
    }
    labels[gguf.LlamaFileType.MOSTLY_MXFP4_MOE] = "MXFP4"
    del labels[gguf.LlamaFileType.GUESSED]
    assert labels == FILE_TYPES


def test_tensor_table_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    ours = read_gguf(path)
    theirs = gguf.GGUFReader(path)
    assert [
        (
            tensor.name,
            list(tensor.dims),
            tensor.type_name,
            ours.data_offset + tensor.offset,
            tensor.size_bytes,
        )
        for tensor in ours.tensors
    ] == [
        (
            tensor.name,
            [int(n) for n in tensor.shape],
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in theirs.tensors
    ]
    assert ours.version == 3
    assert ours.file_bytes == path.stat().st_size


@pytest.mark.parametrize(
    "kind", [kind for kind in gguf.GGMLQuantizationType if kind.name in ("Q4_K", "Q8_0", "MXFP4")]
)
def test_quantised_tensors_have_the_size_of_their_blocks(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("w", np.zeros((3, 2 * block_bytes), dtype=np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = read_gguf(tmp_path / "q.gguf").tensors
    assert tensor.dims == (2 * block_elements, 3)
    assert tensor.size_bytes == 6 * block_bytes


_texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)  # the writer leaves empty texts out
_scalars = st.one_of(st.integers(0, 2**32 - 1), st.booleans(), _texts, st.floats(width=32, allow_nan=False))
_lists = st.one_of(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20),
    st.lists(_texts, min_size=1, max_size=20),
    st.lists(st.booleans(), min_size=1, max_size=20),
)
_names = st.text("abcdefghijklmnop._0123456789", min_size=1, max_size=30)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metadata=st.dictionaries(_names, st.one_of(_scalars, _lists), max_size=12),
    tensors=st.dictionaries(
        _names, st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6
    ),
)
def test_what_the_writer_wrote_is_read_back(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, list[int]]
) -> None:
    path = write_gguf(tmp_path / "random.gguf", "x", metadata, tensors)
    header = read_gguf(path)
    expected = {
        f"x.{key}": tuple(value) if isinstance(value, list) else value for key, value in metadata.items()
    }
    assert header.metadata == {"general.architecture": "x", **expected}
    assert {tensor.name: list(reversed(tensor.dims)) for tensor in header.tensors} == tensors


def test_long_arrays_are_stepped_over_and_what_follows_is_read(tmp_path: Path) -> None:
    count = KEPT_ARRAY_ELEMENTS + 1
    path = write_gguf(
        tmp_path / "long.gguf",
        "llama",
        LLAMA,
        tokenizer__tokens=[f"token {n}" for n in range(count)],
        tokenizer__scores=[float(n) for n in range(count)],
        tokenizer__kept=[1] * KEPT_ARRAY_ELEMENTS,
        after=7,
    )
    metadata = read_gguf(path).metadata
    assert metadata["tokenizer.tokens"] == LongArray(count)
    assert metadata["tokenizer.scores"] == LongArray(count)
    assert metadata["tokenizer.kept"] == (1,) * KEPT_ARRAY_ELEMENTS
    assert metadata["after"] == 7


def test_a_header_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "big.gguf", "llama", LLAMA, words=["x" * 9000] * 1100, after=7)
    assert path.stat().st_size > 9_000_000
    assert read_gguf(path).metadata["after"] == 7


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "v2.gguf")
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert read_gguf(path).version == 2


def _rejected(tmp_path: Path, data: bytes, words: str) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=words) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"GG", "begins with b'GG'"),
        (b"GGUF", "ends inside its header"),
        (b"GGUF\x03\0\0\0", "ends inside its header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html></html>", "web page"),
        (b"tjgg\x01\0\0\0" + bytes(64), "before GGUF"),
        (b"\x10\0\0\0\0\0\0\0{}" + bytes(64), "looks like a safetensors file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1; versions 2 and 3 are supported"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(64), "version 4.*newer"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 1,152,921,504,606,846,976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + bytes(64), "bytes of text"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 13) + bytes(64),
            "unknown type 13",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
            "unsupported type 9",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQQ", 3, 0, 1, 1)
            + b"k"
            + struct.pack("<IIQ", 9, 4, 1 << 50)
            + bytes(64),
            "array elements",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQQ", 3, 0, 1, 1)
            + b"k"
            + struct.pack("<IIQQ", 9, 8, 1025, 1 << 63)
            + bytes(8300),
            "longer than the file",
        ),
    ],
)
def test_what_is_no_gguf_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    _rejected(tmp_path, data, words)


def test_big_endian_files_of_the_gguf_package_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(GgufError, match="big-endian"):
        read_gguf(tmp_path / "big.gguf")


def test_missing_data_is_counted(tmp_path: Path) -> None:
    whole = tiny_llama(tmp_path / "whole.gguf").read_bytes()
    last_tensor_end = read_gguf(tmp_path / "whole.gguf").data_offset
    message = _rejected(tmp_path, whole[: last_tensor_end + 10], "is truncated: its tensors end at byte")
    assert f"the file has {last_tensor_end + 10} bytes" in message.replace(",", "")


def test_paths_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"There is no file .*none\.gguf"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(GgufError, match="is a folder"):
        read_gguf(tmp_path)


@pytest.mark.parametrize(
    ("name", "dims", "type_code", "offset", "words"),
    [
        (b"t", (32,), 99, 0, "tensor type 99, which this version does not know"),
        (b"t", (31,), 2, 0, r"dimensions \(31,\), impossible for type Q4_0"),
        (b"t", (0,), 0, 0, "impossible for type F32"),
        (b"t", (1 << 62, 1 << 62), 0, 0, "claims"),
        (b"t", (4,), 0, 64, "begins at 64, but the tensors before it end at 0"),
        (b"t", (1,) * 5, 0, 0, "has 5 dimensions"),
        (b"t", (), 0, 0, "has 0 dimensions"),
        (b"\xff", (4,), 0, 0, "not valid UTF-8"),
    ],
)
def test_impossible_tensors_are_named(
    tmp_path: Path, name: bytes, dims: tuple[int, ...], type_code: int, offset: int, words: str
) -> None:
    row = (
        struct.pack("<Q", len(name))
        + name
        + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_code, offset)
    )
    _rejected(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + row + bytes(256), words)


def test_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    entry = struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1)
    _rejected(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2, "key 'k' occurs twice")
    rows = b"".join(struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 8, 0, offset) for offset in (0, 32))
    _rejected(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + rows + bytes(256), "tensor 't' occurs twice")


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_alignment_must_be_a_power_of_two(tmp_path: Path, alignment: int) -> None:
    key = b"general.alignment"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, alignment)
    _rejected(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry, f"general.alignment is {alignment}")

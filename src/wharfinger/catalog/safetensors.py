"""Read safetensors headers: which tensors there are and how large, never their data.

A file is an 8-byte little-endian length, that many bytes of JSON, and the tensors. A checkpoint is one such file
or several with ``model.safetensors.index.json``. Checked in tests against the ``safetensors`` package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from wharfinger.catalog.errors import SafetensorsError
from wharfinger.catalog.files import open_regular

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_MAX_INDEX_BYTES = 64 << 20
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model and the files they are in."""

    folder: Path
    files: tuple[Path, ...]
    tensors: tuple[StoredTensor, ...]
    file_bytes: int
    """Bytes on disk, all files together."""


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of every safetensors file of the model in ``folder``.

    Raises:
        SafetensorsError: no checkpoint there, a shard missing, or a file damaged or truncated.
    """
    index = folder / INDEX_NAME
    if index.exists():
        files, names = _indexed_files(index)
    elif (folder / SINGLE_NAME).exists():
        files, names = (folder / SINGLE_NAME,), None
    else:
        raise SafetensorsError(
            f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}. Name a folder with a whole model in "
            "safetensors format, or a .gguf file."
        )
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise SafetensorsError(
            f"{folder} lacks {len(missing)} of the {len(files)} files that {INDEX_NAME} names: "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}. Download them again."
        )
    tensors = tuple(tensor for file in files for tensor in read_safetensors(file))
    _check_names(folder, tensors, names)
    return Checkpoint(folder, files, tensors, sum(file.stat().st_size for file in files))


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    """The tensor table of one file, in the order of the data.

    Raises:
        SafetensorsError: not readable, no safetensors file, damaged or truncated.
    """
    header, data_bytes = _read_header(path)
    spans: list[tuple[int, int, StoredTensor]] = []
    for name, entry in header.items():
        if name != "__metadata__":
            spans.append(_tensor(path, name, entry))
    spans.sort(key=lambda span: span[:2])
    position = 0
    for begin, end, tensor in spans:
        if begin != position:
            raise _damaged(
                path, f"tensor {tensor.name!r} begins at {begin:,} where {position:,} was expected"
            )
        position = end
    if position > data_bytes:
        raise SafetensorsError(
            f"{path} is truncated: its tensors take {position:,} bytes but only {data_bytes:,} are there, so "
            f"{position - data_bytes:,} are missing. Download or copy it again."
        )
    if position < data_bytes:
        raise _damaged(path, f"{data_bytes - position:,} bytes at its end belong to no tensor")
    return tuple(tensor for _, _, tensor in spans)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The parsed header and the number of bytes after it."""
    try:
        with open_regular(path) as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or length > MAX_HEADER_BYTES or length < 2:
                raise SafetensorsError(
                    f"{path} is no safetensors file: it has {file_bytes:,} bytes and claims a header of "
                    f"{length:,}. Name a model's .safetensors file, or download it again."
                )
            if 8 + length > file_bytes:
                raise SafetensorsError(
                    f"{path} is truncated: it has {file_bytes:,} bytes and ends inside its header. "
                    "Download or copy it again."
                )
            text = file.read(length)
    except OSError as error:
        raise SafetensorsError(
            f"{path} cannot be read: {error.strerror}. Check the path and permissions."
        ) from error
    header = _json_object(path, text)
    return header, file_bytes - 8 - length


def _json_object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged(path, "it is not valid JSON where JSON was expected") from None
    if not isinstance(value, dict):
        raise _damaged(path, "a JSON object was expected")
    return value


def _tensor(path: Path, name: str, entry: object) -> tuple[int, int, StoredTensor]:
    if not isinstance(entry, dict):
        raise _damaged(path, f"tensor {name!r} has no description")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2 or len(shape) > 32:
        raise _damaged(path, f"tensor {name!r} has an impossible shape or position")
    begin, end = offsets
    bits = prod(shape) * _BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        raise _damaged(
            path, f"tensor {name!r} takes {end - begin:,} bytes, but {dtype} × {shape} is {bits // 8:,}"
        )
    return begin, end, StoredTensor(name, dtype, tuple(shape), end - begin)


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _indexed_files(index: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise _damaged(index, f"it is larger than {_MAX_INDEX_BYTES >> 20} MiB")
        with open_regular(index) as opened:
            text = opened.read()
    except OSError as error:
        raise SafetensorsError(f"{index} cannot be read: {error.strerror}. Check its permissions.") from error
    names = _json_object(index, text).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise _damaged(index, "it has no weight_map")
    files = sorted({str(value) for value in names.values()})
    for file in files:
        if "/" in file or "\\" in file or file.startswith("."):
            raise _damaged(index, f"it names {file!r}, which is not a file in the same folder")
    return tuple(index.with_name(file) for file in files), names


def _check_names(folder: Path, tensors: tuple[StoredTensor, ...], names: dict[str, str] | None) -> None:
    found = {tensor.name for tensor in tensors}
    if len(found) != len(tensors):
        raise SafetensorsError(f"{folder}: some tensor is in two files. The files are of different models.")
    absent = sorted(set(names or ()) - found)
    if absent:
        raise SafetensorsError(
            f"{folder}: {INDEX_NAME} names {len(absent)} tensors that no file holds, e.g. {absent[0]!r}. "
            "The files are of different models; download all of them again."
        )


def _damaged(path: Path, found: str) -> SafetensorsError:
    return SafetensorsError(f"{path} is damaged: {found}. Download or copy it again.")

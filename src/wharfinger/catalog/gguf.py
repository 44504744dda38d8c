"""Read a GGUF header: metadata and tensor table, never the tensor data.

Versions 2 and 3, little endian. Long arrays (vocabularies, merges, scores) are skipped and only their length is
kept, which is what makes a vocabulary of 262,144 entries cost tens of milliseconds. Nothing in the file is
believed: every length is checked against the file's size before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, NoReturn

from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.files import open_regular
from wharfinger.catalog.ggml_types import GGML_TYPES

KEPT_ARRAY_ELEMENTS = 1024
"""Arrays up to this length are kept as tuples (per-layer settings); longer ones only as their length."""
MAX_HEADER_BYTES = 512 << 20
MAX_STRING_BYTES = 16 << 20
MAX_METADATA_ENTRIES = 65_536
MAX_TENSORS = 100_000
MAX_ARRAY_ELEMENTS = 1 << 25
_READ_STEPS_BYTES = (8 << 20, 64 << 20, MAX_HEADER_BYTES)

_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS = {code: struct.Struct("<" + form) for code, form in _SCALAR_FORMATS.items()}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array that was skipped; only its length is known."""

    length: int


GgufScalar = int | float | bool | str
GgufValue = GgufScalar | tuple[GgufScalar, ...] | LongArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table."""

    name: str
    dims: tuple[int, ...]
    """ggml order: the fastest-running dimension first."""
    type_name: str
    offset: int
    """Bytes from the start of the tensor data."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What one GGUF file says about itself."""

    path: Path
    version: int
    metadata: Mapping[str, GgufValue]
    tensors: tuple[GgufTensor, ...]
    data_offset: int
    """Where tensor data begins in the file."""
    file_bytes: int


def read_gguf(path: Path) -> GgufHeader:
    """Read the header of one GGUF file and check that all its tensor data is there.

    Raises:
        GgufError: not there, not readable, not a GGUF, damaged, truncated, or of a version or tensor type that
            is not known here. The message names the file, what was found and what to do.
    """
    try:
        with open_regular(path) as file:
            return _read(path, file)
    except FileNotFoundError:
        raise GgufError(f"There is no file {path}. Check the path.") from None
    except IsADirectoryError:
        raise GgufError(f"{path} is a folder; a GGUF file was expected. Name the .gguf file in it.") from None
    except OSError as error:
        raise GgufError(
            f"{path} cannot be read: {error.strerror}. Check its permissions and the disk."
        ) from error


def _read(path: Path, file: BinaryIO) -> GgufHeader:
    file_bytes = file.seek(0, 2)
    for step in _READ_STEPS_BYTES:
        file.seek(0)
        cursor = _Cursor(path, file.read(min(step, file_bytes)), file_bytes)
        try:
            return _parse(cursor)
        except _BufferEnd:
            if len(cursor.data) >= file_bytes:
                raise GgufError(
                    f"{path} is truncated: the file has {file_bytes:,} bytes and ends inside its header. "
                    "Download or copy it again."
                ) from None
    raise GgufError(
        f"{path} has a header longer than {MAX_HEADER_BYTES >> 20} MiB, which no real model has; it is "
        "probably damaged. Download or copy it again."
    )


class _BufferEnd(Exception):
    """The bytes read so far end before the header does."""


class _Cursor:
    """Reads values in order from the first bytes of a file."""

    def __init__(self, path: Path, data: bytes, file_bytes: int) -> None:
        self.path = path
        self.data = data
        self.file_bytes = file_bytes
        self.position = 0

    def fail(self, found: str) -> NoReturn:
        """Refuse the file because of ``found``."""
        raise GgufError(
            f"{self.path} is no usable GGUF file: {found} (at byte {self.position:,} of {self.file_bytes:,}). "
            "It is probably damaged; download or copy it again."
        )

    def scalar(self, kind: struct.Struct) -> int | float | bool:
        try:
            (value,) = kind.unpack_from(self.data, self.position)
        except struct.error:
            raise _BufferEnd from None
        self.position += kind.size
        return value

    def u32(self) -> int:
        return int(self.scalar(_U32))

    def count(self, what: str, limit: int, least_bytes: int) -> int:
        """A 64-bit count that must be within ``limit`` and could still fit in the file."""
        value = int(self.scalar(_U64))
        left = self.file_bytes - self.position
        if value > limit or value * least_bytes > left:
            self.fail(
                f"it claims {value:,} {what}, more than {limit:,} or than the rest of the file can hold"
            )
        return value

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise _BufferEnd
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def skip(self, size: int) -> None:
        if self.position + size > len(self.data):
            raise _BufferEnd
        self.position += size

    def string(self) -> str:
        length = self.count("bytes of text in one string", MAX_STRING_BYTES, 1)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            self.fail("a text is not valid UTF-8")

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` strings: only their lengths are looked at."""
        unpack, data, position = _U64.unpack_from, self.data, self.position
        try:
            for _ in range(count):
                (length,) = unpack(data, position)
                position += 8 + length
        except (struct.error, OverflowError):
            if position > self.file_bytes:
                self.fail("a text in an array is longer than the file")
            raise _BufferEnd from None
        self.skip(position - self.position)

    def value(self, kind: int) -> GgufValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            self.fail(f"a metadata value has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> GgufValue:
        kind = self.u32()
        if kind != _STRING and kind not in _SCALARS:
            self.fail(f"an array has elements of the unsupported type {kind}")
        element_bytes = 8 if kind == _STRING else _SCALARS[kind].size
        length = self.count("array elements", MAX_ARRAY_ELEMENTS, element_bytes)
        if length <= KEPT_ARRAY_ELEMENTS:
            if kind == _STRING:
                return tuple(self.string() for _ in range(length))
            return tuple(self.scalar(_SCALARS[kind]) for _ in range(length))
        if kind == _STRING:
            self.skip_strings(length)
        else:
            self.skip(length * element_bytes)
        return LongArray(length)


def _parse(cursor: _Cursor) -> GgufHeader:
    version = _check_preamble(cursor)
    tensor_count = cursor.count("tensors", MAX_TENSORS, 24)
    metadata_count = cursor.count("metadata entries", MAX_METADATA_ENTRIES, 12)
    metadata: dict[str, GgufValue] = {}
    for _ in range(metadata_count):
        key = cursor.string()
        if key in metadata:
            cursor.fail(f"the metadata key {key!r} occurs twice")
        metadata[key] = cursor.value(cursor.u32())
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}; a power of two was expected")
    tensors = _tensor_table(cursor, tensor_count, alignment)
    data_offset = _aligned(cursor.position, alignment)
    _check_complete(cursor, tensors, data_offset)
    return GgufHeader(cursor.path, version, metadata, tensors, data_offset, cursor.file_bytes)


def _check_preamble(cursor: _Cursor) -> int:
    if cursor.file_bytes == 0:
        raise GgufError(f"{cursor.path} is empty (0 bytes). Download or copy it again.")
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise GgufError(
            f"{cursor.path} is no GGUF file: {_what_is_it(cursor.data)}. Name a .gguf model file."
        )
    cursor.position = 4
    version = cursor.u32()
    if version & 0xFFFF == 0 and version:
        raise GgufError(
            f"{cursor.path} is a big-endian GGUF file, which engines on this kind of machine cannot load. "
            "Get the little-endian file, or convert it with `gguf-convert-endian FILE little`."
        )
    if version not in (2, 3):
        raise GgufError(
            f"{cursor.path} is a GGUF file of version {version}; versions 2 and 3 are supported. "
            + ("Convert the original model again." if version < 2 else "A newer Wharfinger may read it.")
        )
    return version


def _what_is_it(data: bytes) -> str:
    """Name the usual things people mistake for a GGUF file."""
    start = data[:256].lstrip()
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the real file was never fetched (`git lfs pull` fetches it)"
    if start[:1] == b"<":
        return "it is a web page, so the download got a page in place of the file"
    if data[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        return "it is a GGML file from before GGUF; convert the original model again"
    if data[8:9] == b"{" and len(data) > 8:
        return "it looks like a safetensors file; add the folder that holds it and its config.json"
    return f"it begins with {data[:4]!r}, not b'GGUF'"


def _tensor_table(cursor: _Cursor, count: int, alignment: int) -> tuple[GgufTensor, ...]:
    tensors: list[GgufTensor] = []
    names: set[str] = set()
    expected_offset = 0
    for _ in range(count):
        tensor = _tensor_row(cursor)
        if tensor.name in names:
            cursor.fail(f"the tensor {tensor.name!r} occurs twice")
        if tensor.offset != expected_offset:
            cursor.fail(
                f"tensor {tensor.name!r} begins at {tensor.offset:,}, but the tensors before it end at "
                f"{expected_offset:,}"
            )
        names.add(tensor.name)
        tensors.append(tensor)
        expected_offset += _aligned(tensor.size_bytes, alignment)
    return tuple(tensors)


def _tensor_row(cursor: _Cursor) -> GgufTensor:
    name = cursor.string()
    n_dims = cursor.u32()
    if not 1 <= n_dims <= 4:
        cursor.fail(f"tensor {name!r} has {n_dims} dimensions; 1 to 4 were expected")
    dims = tuple(int(cursor.scalar(_U64)) for _ in range(n_dims))
    type_code = cursor.u32()
    offset = int(cursor.scalar(_U64))
    kind = GGML_TYPES.get(type_code)
    if kind is None:
        raise GgufError(
            f"{cursor.path}: tensor {name!r} has the tensor type {type_code}, which this version does not know. "
            "A newer Wharfinger may read it; otherwise take another quantisation of the model."
        )
    if 0 in dims or dims[0] % kind.block_elements:
        cursor.fail(f"tensor {name!r} has dimensions {dims}, impossible for type {kind.name}")
    size_bytes = prod(dims) // kind.block_elements * kind.block_bytes
    if size_bytes >= 1 << 63:
        cursor.fail(f"tensor {name!r} claims {size_bytes:,} bytes")
    return GgufTensor(name, dims, kind.name, offset, size_bytes)


def _check_complete(cursor: _Cursor, tensors: tuple[GgufTensor, ...], data_offset: int) -> None:
    if not tensors:
        return
    end = data_offset + tensors[-1].offset + tensors[-1].size_bytes
    if end > cursor.file_bytes:
        raise GgufError(
            f"{cursor.path} is truncated: its tensors end at byte {end:,} but the file has {cursor.file_bytes:,} "
            f"bytes, so {end - cursor.file_bytes:,} are missing. Download or copy it again."
        )


def _aligned(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment

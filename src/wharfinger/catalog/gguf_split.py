"""A GGUF model in one file or in several parts (``NAME-00001-of-00003.gguf``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.gguf import GgufHeader, GgufTensor, GgufValue, read_gguf

_PART_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The header of a whole model: metadata of the first part, tensors of all parts."""

    paths: tuple[Path, ...]
    """Every file, in order; the first is the one engines are given."""
    metadata: Mapping[str, GgufValue]
    tensors: tuple[GgufTensor, ...]
    file_bytes: int
    """Bytes on disk, all parts together."""

    @property
    def path(self) -> Path:
        """The file engines are given."""
        return self.paths[0]


def stem_of(path: Path) -> str:
    """The file's name without ``.gguf`` and without the part number."""
    match = _PART_NAME.match(path.name)
    return match["stem"] if match else path.name.removesuffix(".gguf")


def read_gguf_model(path: Path) -> GgufModel:
    """Read a model's header from its only file, or from the first of its parts.

    Raises:
        GgufError: as :func:`~wharfinger.catalog.gguf.read_gguf`; also a part that is missing, does not belong
            to the others, or is not the first.
    """
    first = read_gguf(path)
    count = _split_number(first, "split.count", 1)
    match = _PART_NAME.match(path.name)
    if count <= 1:
        return GgufModel((path,), first.metadata, first.tensors, first.file_bytes)
    if match is None or int(match["count"]) != count:
        raise GgufError(
            f"{path} says it is one of {count} parts, so its name must end in -00001-of-{count:05d}.gguf. "
            "Give the parts their original names."
        )
    if int(match["number"]) != 1:
        raise GgufError(
            f"{path} is part {int(match['number'])} of {count}. Name the first part, "
            f"{match['stem']}-00001-of-{count:05d}.gguf; the others are found beside it."
        )
    parts = [first, *(_read_part(path, match["stem"], number, count) for number in range(2, count + 1))]
    return _joined(parts)


def _read_part(first_path: Path, stem: str, number: int, count: int) -> GgufHeader:
    path = first_path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")
    if not path.exists():
        raise GgufError(
            f"{first_path} is the first of {count} parts, but part {number} is missing: {path.name} was expected "
            "in the same folder. Fetch all parts."
        )
    part = read_gguf(path)
    if _split_number(part, "split.no", -1) != number - 1 or _split_number(part, "split.count", -1) != count:
        raise GgufError(f"{path} is not part {number} of {count} of this model. Fetch it again.")
    return part


def _joined(parts: list[GgufHeader]) -> GgufModel:
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    expected = _split_number(parts[0], "split.tensors.count", len(tensors))
    if len({tensor.name for tensor in tensors}) != len(tensors) or len(tensors) != expected:
        raise GgufError(
            f"{parts[0].path} and its parts hold {len(tensors)} tensors where {expected} different ones were "
            "expected: the parts are of different models. Fetch all parts again."
        )
    return GgufModel(
        tuple(part.path for part in parts), parts[0].metadata, tensors, sum(part.file_bytes for part in parts)
    )


def _split_number(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if not isinstance(value, int) or not -1 <= value <= 99_999:
        raise GgufError(
            f"{header.path}: {key} is {value!r}; a number of parts was expected. The file is damaged."
        )
    return value

"""Models in several parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catalog.gguf_files import LLAMA, write_gguf
from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.gguf_card import gguf_card
from wharfinger.catalog.gguf_split import read_gguf_model


def part_path(folder: Path, number: int, count: int = 3) -> Path:
    return folder / f"tiny-{number:05d}-of-{count:05d}.gguf"


def write_parts(folder: Path) -> Path:
    """Three parts with two tensors each; only the first has the model's settings."""
    names = [
        "token_embd.weight",
        "blk.0.a.weight",
        "blk.0.b.weight",
        "blk.1.a.weight",
        "blk.1.b.weight",
        "output.weight",
    ]
    for number in (1, 2, 3):
        write_gguf(
            part_path(folder, number),
            "llama",
            LLAMA if number == 1 else {},
            dict.fromkeys(names[2 * number - 2 : 2 * number], (4, 4)),
            split__no=number - 1,
            split__count=3,
            split__tensors__count=6,
        )
    return part_path(folder, 1)


def test_the_first_part_finds_the_others(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    model = read_gguf_model(first)
    assert model.paths == tuple(part_path(tmp_path, number) for number in (1, 2, 3))
    assert len(model.tensors) == 6
    card = gguf_card(first)
    assert card.weights is not None
    assert card.weights.layer_bytes == (128, 128)
    assert card.weights.total_bytes == 6 * 64
    assert card.model_id == "tiny"
    assert card.gguf_file == first.name
    assert card.artifact is not None
    assert card.artifact.size_bytes == sum(path.stat().st_size for path in model.paths)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    part_path(tmp_path, 2).unlink()
    with pytest.raises(GgufError, match=r"part 2 is missing: tiny-00002-of-00003\.gguf was expected"):
        read_gguf_model(first)


def test_a_later_part_points_to_the_first(tmp_path: Path) -> None:
    write_parts(tmp_path)
    with pytest.raises(GgufError, match=r"is part 2 of 3\. Name the first part, tiny-00001-of-00003\.gguf"):
        read_gguf_model(part_path(tmp_path, 2))


def test_a_renamed_part_says_how_it_must_be_called(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    first.rename(tmp_path / "model.gguf")
    with pytest.raises(GgufError, match=r"one of 3 parts, so its name must end in -00001-of-00003\.gguf"):
        read_gguf_model(tmp_path / "model.gguf")


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    shutil.copy(part_path(tmp_path, 3), part_path(tmp_path, 2))
    with pytest.raises(GgufError, match="is not part 2 of 3 of this model"):
        read_gguf_model(first)


def test_parts_with_a_wrong_number_of_tensors_are_refused(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    write_gguf(part_path(tmp_path, 3), "llama", {}, {"output.weight": (4, 4)}, split__no=2, split__count=3)
    with pytest.raises(GgufError, match="hold 5 tensors where 6 different ones were expected"):
        read_gguf_model(first)


def test_a_truncated_part_is_refused(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    last = part_path(tmp_path, 3)
    last.write_bytes(last.read_bytes()[:-40])
    with pytest.raises(GgufError, match=r"tiny-00003-of-00003\.gguf is truncated"):
        read_gguf_model(first)


@pytest.mark.parametrize("count", ["three", 100_000])
def test_an_impossible_number_of_parts_is_refused(tmp_path: Path, count: object) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llama", LLAMA, split__count=count)
    with pytest.raises(GgufError, match=r"split\.count is"):
        read_gguf_model(path)

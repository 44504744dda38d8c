"""Damaged files: always a :class:`GgufError` or a card, and never a large allocation."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from catalog.gguf_files import tiny_llama, write_gguf
from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.gguf import read_gguf
from wharfinger.catalog.gguf_card import gguf_card

FLIPS = 1500
MOST_BYTES = 8 << 20


def _hybrid(path: Path) -> Path:
    settings = {
        "block_count": 4,
        "embedding_length": 8,
        "attention.head_count": 2,
        "attention.head_count_kv": [0, 1, 0, 1],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 16,
        "ssm.state_size": 8,
    }
    tensors = {f"blk.{index}.w.weight": (8, 8) for index in range(4)}
    return write_gguf(path, "jamba", settings, tensors, general__file_type=0, tokens=["a", "b"])


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = tiny_llama(tmp_path / "whole.gguf", general__name="Tiny").read_bytes()
    header = read_gguf(tmp_path / "whole.gguf")
    last = header.tensors[-1]
    needed = header.data_offset + last.offset + last.size_bytes
    path = tmp_path / "cut.gguf"
    for length in range(needed):
        path.write_bytes(whole[:length])
        with pytest.raises(GgufError):
            gguf_card(path)
    path.write_bytes(whole[:needed])
    assert gguf_card(path).n_layers == 2


@pytest.mark.parametrize("make", [tiny_llama, _hybrid])
def test_flipped_bytes_give_a_card_or_a_refusal_in_little_memory(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    whole = make(tmp_path / "whole.gguf").read_bytes()
    header_bytes = read_gguf(tmp_path / "whole.gguf").data_offset
    random_source = random.Random(20261103)
    path = tmp_path / "flipped.gguf"
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(FLIPS):
            data = bytearray(whole)
            for _ in range(random_source.randint(1, 3)):
                data[random_source.randrange(header_bytes)] = random_source.randrange(256)
            path.write_bytes(data)
            try:
                gguf_card(path)
            except GgufError:
                refused += 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > FLIPS // 4
    assert peak_bytes < MOST_BYTES

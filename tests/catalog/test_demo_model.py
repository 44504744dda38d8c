"""The real demo model: its recorded facts, how it is put together and kept."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from wharfinger.catalog import demo
from wharfinger.catalog.card import LayerKind
from wharfinger.catalog.demo import (
    DEMO_FILE_BYTES,
    DEMO_FILE_NAME,
    DEMO_SHA256,
    demo_available,
    demo_card,
    ensure_demo_model,
)
from wharfinger.catalog.errors import DemoUnavailableError
from wharfinger.catalog.gguf import LongArray, read_gguf


def test_the_header_says_what_the_gguf_package_says(demo_model: Path) -> None:
    """Facts recorded once from ``gguf.GGUFReader``, which takes 15 s for this file."""
    header = read_gguf(demo_model)
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray(262_144)
    assert len(header.tensors) == 236
    assert sum(tensor.size_bytes for tensor in header.tensors) == 246_587_904


def test_the_card_has_the_weights_of_every_layer_to_the_byte(demo_model: Path) -> None:
    card = demo_card(demo_model)
    assert card.weights is not None
    assert card.weights.embedding_bytes == 178_257_920
    assert card.weights.output_bytes == card.weights.output_norm_bytes == 2_560
    assert card.weights.tied_output is True
    larger = {0, 1, 4, 7, 10, 13, 15, 16, 17}
    assert card.weights.layer_bytes == tuple(3_995_648 if n in larger else 3_596_288 for n in range(18))
    assert card.storage_size.in_bytes == card.weights.total_bytes == 246_587_904


def test_the_card_describes_gemma_3_270m(demo_model: Path) -> None:
    card = demo_card(demo_model)
    assert card.model_id == "gemma-3-270m"
    assert card.is_custom is False
    assert (card.architecture, card.quantization, card.context_length) == ("gemma3", "Q4_K_M", 32_768)
    assert (card.hidden_size, card.num_attention_heads, card.num_key_value_heads, card.head_dim) == (
        640,
        4,
        1,
        256,
    )
    assert card.vocab_size == 262_144
    assert card.layers is not None
    full = [index for index, layer in enumerate(card.layers) if layer.kind is LayerKind.FULL]
    assert full == [5, 11, 17]
    assert {layer.window_tokens for layer in card.layers if layer.kind is LayerKind.SLIDING} == {512}
    assert card.artifact is not None
    assert (card.artifact.file_name, card.artifact.size_bytes, card.artifact.sha256) == (
        DEMO_FILE_NAME,
        DEMO_FILE_BYTES,
        DEMO_SHA256,
    )


def test_the_file_has_the_recorded_digest(demo_model: Path) -> None:
    with demo_model.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == DEMO_SHA256


def test_it_is_made_once_and_then_found(demo_model: Path) -> None:
    said: list[str] = []
    before = demo_model.stat()
    assert ensure_demo_model(demo_model.parent, said.append) == demo_model
    assert said == []
    assert demo_model.stat().st_mtime_ns == before.st_mtime_ns
    assert list(demo_model.parent.iterdir()) == [demo_model]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def interrupted(path: Path) -> None:
        assert path.stat().st_size == DEMO_FILE_BYTES
        raise interruption

    monkeypatch.setattr(demo, "_sync", interrupted)
    expected = DemoUnavailableError if interruption is OSError else KeyboardInterrupt
    with pytest.raises(expected):
        ensure_demo_model(tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_half_file_under_the_name_is_replaced(tmp_path: Path) -> None:
    (tmp_path / DEMO_FILE_NAME).write_bytes(b"GGUF half")
    (tmp_path / f".{DEMO_FILE_NAME}.part").write_bytes(b"left by a killed process")
    said: list[str] = []
    path = ensure_demo_model(tmp_path, said.append)
    assert path.stat().st_size == DEMO_FILE_BYTES
    assert len(said) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_without_the_extra_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo_available() is True
    monkeypatch.setattr(demo, "_PACKAGE", "a_package_that_is_not_there")
    assert demo_available() is False
    with pytest.raises(DemoUnavailableError, match=r"pip install 'wharfinger\[demo\]'"):
        ensure_demo_model(tmp_path / "models", lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file, not a folder")
    with pytest.raises(DemoUnavailableError, match="could not be put together in"):
        ensure_demo_model(tmp_path / "models", lambda _: None)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_FILE_BYTES", 1 << 60)
    with pytest.raises(DemoUnavailableError, match="MiB free, but the demo model needs"):
        ensure_demo_model(tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []

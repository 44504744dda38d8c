"""Checks before a load. What each refusal says is tested through a real runner in tests/fleet/test_failures.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny_gguf import write_tiny_gguf
from wharfinger.engines.base import EngineError
from wharfinger.engines.model_file import check_gguf


def test_a_real_model_passes_with_its_size(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path, "llama").path
    assert check_gguf(str(model)) == model.stat().st_size


@pytest.mark.parametrize("name", ["missing.gguf", "file.gguf/below", "folder"])
def test_what_is_no_readable_file_is_missing(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    with pytest.raises(EngineError) as caught:
        check_gguf(str(tmp_path / name))
    assert caught.value.code == "file_missing"
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"G", b"GGU", b"GGUF", b"GGUF\x03\0\0\0" + b"\0" * 15, b"GGML" + b"\0" * 40]
)
def test_what_is_no_gguf_fails_to_load(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError) as caught:
        check_gguf(str(path))
    assert caught.value.code == "load_failed"

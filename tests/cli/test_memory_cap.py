"""``WHARF_NODE_MEMORY_CAP``: models never take more of a node than its owner allows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from support.server import DEMO_MODEL_ID, Server, wharf
from wharfinger.settings import Settings

CAP_BYTES = 300 * 1024**2


@pytest.fixture
def capped(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", environment={"WHARF_NODE_MEMORY_CAP": "300MiB"}).start()
    server.add_demo_model()
    yield server
    server.kill()


def test_a_model_that_needs_more_than_the_cap_is_refused(capped: Server) -> None:
    (node,) = json.loads(capped.wharf("nodes", "-o", "json").stdout)["nodes"]
    assert node["memory_cap_bytes"] == CAP_BYTES
    assert "0 B reserved by instances, of at most 300 MiB" in capped.wharf("nodes").stdout
    refused = capped.wharf("plan", DEMO_MODEL_ID, "-o", "json")
    assert refused.returncode == 5, refused.stderr
    (out,) = json.loads(refused.stdout)["nodes"]
    assert (out["code"], out["usable_bytes"]) == ("memory_short", CAP_BYTES)
    assert out["counted"][0]["figures"]["memory_cap_bytes"] == CAP_BYTES
    assert capped.wharf("launch", DEMO_MODEL_ID).returncode == 5


@pytest.mark.parametrize(
    ("value", "cap_bytes"),
    [
        ("48GB", 48 * 1024**3),
        ("48GiB", 48 * 1024**3),
        ("48g", 48 * 1024**3),
        ("512K", 512 * 1024),
        ("4096", 4096),
    ],
)
def test_a_cap_is_a_size_like_any_other(monkeypatch: pytest.MonkeyPatch, value: str, cap_bytes: int) -> None:
    """Decimal here and binary in a fleet.yaml, the same machine had two sizes."""
    monkeypatch.setenv("WHARF_NODE_MEMORY_CAP", value)
    assert Settings().node_memory_cap == cap_bytes


def test_a_cap_in_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHARF_NODE_MEMORY_CAP", "48Gb")
    with pytest.raises(ValidationError, match="accepted: a size above 0 such as 48GiB, in bytes, not bits"):
        Settings()


@pytest.mark.parametrize("value", ["0", "-1", "much", "1 parsec"])
def test_a_cap_that_is_no_size_is_one_line(tmp_path: Path, value: str) -> None:
    environment = {**os.environ, "WHARF_DATA_DIR": str(tmp_path), "WHARF_NODE_MEMORY_CAP": value}
    refused = wharf("up", "--port", "0", environment=environment)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: WHARF_NODE_MEMORY_CAP: ")
    assert repr(value) in refused.stderr

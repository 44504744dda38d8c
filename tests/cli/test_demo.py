"""A demo that breaks ends, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import wharf

BREAK = """
import sys
from wharfinger.cli import demo, main
def broken(*_):
    raise {error}
demo.print_previews = broken
sys.argv = ["wharf", "demo", "--exit", "--port", "0"]
main.main()
"""


@pytest.mark.parametrize("error", ["KeyError('surprise')", "RuntimeError('surprise')"])
def test_an_unexpected_error_ends_the_demo_with_exit_code_1(tmp_path: Path, error: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", BREAK.format(error=error)],
        env={**os.environ, "WHARF_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert "surprise" in result.stderr
    assert "everything is down" not in result.stdout


def test_a_step_that_fails_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").write_text("no directory")
    environment = {**os.environ, "WHARF_DATA_DIR": str(tmp_path / "data"), "WHARF_URL": "http://127.0.0.1:1"}
    result = wharf("demo", "--exit", "--port", "0", environment=environment)
    assert result.returncode == 1, result.stdout
    assert "models" in result.stderr
    assert "everything is down" not in result.stdout


def test_the_demo_in_a_named_directory_whatever_the_cli_is_pointed_at(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "WHARF_DATA_DIR": str(tmp_path / "data"),
        "WHARF_URL": "http://127.0.0.1:1",
        "WHARF_API_KEY": "wharf_another",
    }
    result = wharf("demo", "--exit", "--port", "0", environment=environment)
    assert result.returncode == 0, result.stderr
    assert "everything is down; nothing is left running" in result.stdout
    assert (tmp_path / "data" / "wharfinger.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]

"""Wrong settings end every command with one line and exit code 2; the demo's data directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.server import wharf
from wharfinger.cli.demo import demo_settings


@pytest.mark.parametrize("command", [("status",), ("ps",), ("doctor",), ("up",), ("demo", "--exit")])
def test_a_wrong_port_is_one_line_everywhere(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = wharf(*command, environment={**os.environ, "WHARF_DATA_DIR": str(tmp_path), "WHARF_PORT": "abc"})
    assert result.returncode == 2
    assert result.stderr.startswith("error: WHARF_PORT: ")
    assert "'abc'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_wrong_port_offline(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes:\n  - name: lab-1\n    ram: 64GB\n    backends: [llama_cpp-cpu]\n")
    result = wharf("plan", "none", "--fleet", str(fleet), environment={**os.environ, "WHARF_PORT": "abc"})
    assert result.returncode == 2
    assert "WHARF_PORT" in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WHARF_URL", "foo", "'foo' is not an address; accepted: http://HOST:PORT"),
        ("WHARF_URL", "ftp://127.0.0.1:1", "is not an address"),
        ("WHARF_URL", "http://127.0.0.1:99999", "is not an address"),
        ("WHARF_URL", "http://", "is not an address"),
        ("WHARF_URL", "http://me:canary@127.0.0.1:1", "must not hold a user or password"),
        ("WHARF_API_KEY", "schlüssel-canary", "WHARF_API_KEY holds no API key"),
        ("WHARF_API_KEY", "two canary", "WHARF_API_KEY holds no API key"),
    ],
)
def test_a_wrong_address_or_key(tmp_path: Path, name: str, value: str, said: str) -> None:
    environment = {
        **os.environ,
        "WHARF_DATA_DIR": str(tmp_path),
        "WHARF_URL": "http://127.0.0.1:1",
        name: value,
    }
    for command in ("status", "doctor"):
        result = wharf(command, environment=environment)
        assert result.returncode == 2, result.stderr
        assert said in result.stderr
        assert "canary" not in result.stderr
        assert "Traceback" not in result.stderr


def test_the_demo_has_a_data_directory_of_its_own_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHARF_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert demo_settings(None, 0).data_dir == tmp_path / "wharfinger-demo"


def test_the_demo_uses_a_named_data_directory_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHARF_DATA_DIR", str(tmp_path / "named"))
    assert demo_settings(None, None).data_dir == tmp_path / "named"
    assert demo_settings(tmp_path / "option", None).data_dir == tmp_path / "option"


@pytest.mark.parametrize("empty", [{"WHARF_HOST": ""}, {}])
def test_no_host_at_all_is_not_every_address(tmp_path: Path, empty: dict[str, str]) -> None:
    options = () if empty else ("--host", "")
    environment = {**os.environ, "WHARF_DATA_DIR": str(tmp_path), "WHARF_PORT": "0", **empty}
    result = wharf("up", *options, environment=environment)
    assert result.returncode == 2
    assert result.stderr.startswith("error: WHARF_HOST: ")
    assert len(result.stderr.splitlines()) == 1

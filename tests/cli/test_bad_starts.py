"""What keeps the control plane from starting: one paragraph that says what to do, exit code 1, nothing half-started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import Server, wharf


def environment(data_dir: Path) -> dict[str, str]:
    return {**os.environ, "WHARF_DATA_DIR": str(data_dir)}


def one_paragraph(text: str) -> str:
    assert text.startswith("error:"), text
    assert "Traceback" not in text
    assert "\n\n" not in text.strip()
    return text


def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = wharf("up", "--port", str(port), environment=environment(tmp_path / "data"))
    assert result.returncode == 1
    text = one_paragraph(result.stderr)
    assert f"127.0.0.1:{port}" in text
    assert "--port" in text


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines(tmp_path: Path, host: str) -> None:
    result = wharf("up", "--host", host, "--port", "0", environment=environment(tmp_path / "data"))
    assert result.returncode == 1
    text = one_paragraph(result.stderr)
    assert f"{host}:0" in text
    assert "--host must name an address of this machine" in text
    assert "Stop what uses the port" not in text


def test_another_control_plane_on_the_same_data_directory(server: Server) -> None:
    result = wharf("up", "--port", "0", environment=environment(server.data_dir))
    assert result.returncode == 1
    text = one_paragraph(result.stderr)
    assert f"process {server.pid}" in text
    assert "--data-dir" in text


def test_data_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    result = wharf("up", "--port", "0", environment=environment(tmp_path / "data"))
    assert result.returncode == 1
    assert "WHARF_DATA_DIR" in one_paragraph(result.stderr)


def test_data_directory_is_not_writable(tmp_path: Path) -> None:
    """As an ordinary user: root may write everywhere."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    command = [
        sys.executable,
        "-m",
        "wharfinger.cli",
        "up",
        "--port",
        "0",
        "--data-dir",
        str(closed / "data"),
    ]
    if os.geteuid() == 0:
        for parent in (tmp_path, *tmp_path.parents):
            if parent.stat().st_mode & 0o005 != 0o005 and str(parent).startswith("/tmp/"):
                parent.chmod(0o755)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    else:
        closed.chmod(0o555)
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": "/nonexistent"},
        check=False,
    )
    assert result.returncode == 1, result.stderr
    text = one_paragraph(result.stderr)
    assert "cannot be written" in text
    assert str(closed / "data") in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [("WHARF_PORT", "seventy", "valid integer"), ("WHARF_LOG_LEVEL", "loud", "debug, info, warning, error")],
)
def test_wrong_setting_names_the_variable_and_what_is_accepted(
    tmp_path: Path, name: str, value: str, accepted: str
) -> None:
    result = wharf("up", environment={**environment(tmp_path), name: value})
    assert result.returncode == 2
    assert name in result.stderr
    assert value in result.stderr
    assert accepted in result.stderr


def test_unreachable_database_names_no_password(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://wharf:canary-password@127.0.0.1:1/none"
    result = wharf("up", "--port", "0", environment={**environment(tmp_path), "WHARF_DATABASE_URL": url})
    assert result.returncode == 1
    text = one_paragraph(result.stderr)
    assert "127.0.0.1" in text
    assert "canary-password" not in text

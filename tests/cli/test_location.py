"""The endpoint file counts only while a control plane holds the data directory: nobody else is sent the key."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from support.server import Server, wharf


def left_behind(data_dir: Path, port: int) -> dict[str, str]:
    """A data directory as a killed control plane leaves it."""
    (data_dir / "lock").write_text("1")
    (data_dir / "endpoint").write_text(f"http://127.0.0.1:{port}\n")
    (data_dir / "admin.key").write_text("wharf_canary\n")
    return {"WHARF_DATA_DIR": str(data_dir), "PATH": "/usr/bin:/bin"}


def test_whoever_took_the_port_is_not_asked(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        stranger.setblocking(False)
        environment = left_behind(tmp_path, stranger.getsockname()[1])
        for command in (("ps",), ("chat", "m", "-m", "hello"), ("ops", "watch", "op_1"), ("status",)):
            result = wharf(*command, environment=environment)
            assert result.returncode == 3, result.stderr
            assert "no control plane answers" in result.stderr
            assert str(tmp_path) in result.stderr
        try:
            stranger.accept()
        except BlockingIOError:
            return
        raise AssertionError("the CLI connected to a stranger")


def test_no_data_directory_at_all(tmp_path: Path) -> None:
    result = wharf("ps", environment={"WHARF_DATA_DIR": str(tmp_path / "none"), "PATH": "/usr/bin:/bin"})
    assert result.returncode == 3
    assert "wharf up" in result.stderr


def test_a_named_address_is_used_without_a_lock(server: Server, tmp_path: Path) -> None:
    environment = {"WHARF_DATA_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "WHARF_URL": server.url + "/"}
    assert wharf("ps", environment=environment).returncode == 7
    wrong = wharf("ps", environment=environment | {"WHARF_API_KEY": "wharf_wrong"})
    assert wrong.returncode == 7
    assert "this API key is unknown or revoked. The CLI sends WHARF_API_KEY;" in " ".join(
        wrong.stderr.split()
    )
    assert wharf("ps", environment=environment | {"WHARF_API_KEY": server.key}).returncode == 0


class Listener(BaseHTTPRequestHandler):
    """Answers everything, and keeps what it was sent."""

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]
        self.send_response(401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of what it overrides
        """Say nothing."""


def test_a_named_address_is_not_sent_the_key_of_the_data_directory(server: Server) -> None:
    """Not even while a control plane runs there."""
    seen: list[str | None] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as stranger:
        stranger.seen = seen  # type: ignore[attr-defined]
        Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://localhost:{stranger.server_port}"
        environment = {"WHARF_DATA_DIR": str(server.data_dir), "PATH": "/usr/bin:/bin", "WHARF_URL": url}
        refused = wharf("models", "list", environment=environment)
        wharf("models", "list", environment=environment | {"WHARF_API_KEY": "wharf_mine"})
        stranger.shutdown()
    assert refused.returncode == 7
    assert "WHARF_API_KEY" in refused.stderr
    assert seen == [None, "Bearer wharf_mine"]


def test_a_killed_control_plane_does_not_answer(fresh: Server) -> None:
    fresh.start()
    assert fresh.wharf("ps").returncode == 0
    fresh.kill()
    assert (fresh.data_dir / "endpoint").exists()
    result = fresh.wharf("ps")
    assert result.returncode == 3
    assert str(fresh.data_dir) in result.stderr

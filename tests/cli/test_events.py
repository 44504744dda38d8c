"""Following an operation over connections that break, against a small server that breaks them on purpose."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from wharfinger.cli import events
from wharfinger.cli.client import Client
from wharfinger.cli.events import operation_events
from wharfinger.cli.output import CliError, Exit

END = 'event: end\ndata: {"state": "succeeded"}\n\n'


def event(sequence: int) -> str:
    return f"id: {sequence}\nevent: step\ndata: {json.dumps({'sequence': sequence})}\n\n"


@contextmanager
def streams(*answers: str | int) -> Iterator[tuple[str, list[str | None]]]:
    """A server whose n-th answer is the n-th of ``answers`` (the last again and again), each closed cleanly.

    A number is an answer of that status without any JSON, as a proxy makes it.
    """
    resumed_from: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            resumed_from.append(self.headers["Last-Event-ID"])
            answer = answers[min(len(resumed_from), len(answers)) - 1]
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"<html>" if isinstance(answer, int) else answer.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", resumed_from
    finally:
        server.shutdown()
        server.server_close()


def test_a_clean_close_without_an_end_is_resumed_from_the_last_event(tmp_path: Path) -> None:
    with streams(event(1), ": still here\n\n", event(2) + END) as (url, resumed_from):
        seen = list(operation_events(Client(tmp_path, url=url), "op_1"))
    assert [name for name, _ in seen] == ["step", "step", "end"]
    assert resumed_from == ["0", "1", "1"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_reconnect_outlives_what_a_proxy_says_meanwhile(tmp_path: Path, status: int) -> None:
    with streams(event(1), status, event(2) + END) as (url, resumed_from):
        seen = list(operation_events(Client(tmp_path, url=url), "op_1"))
    assert [name for name, _ in seen] == ["step", "step", "end"]
    assert resumed_from == ["0", "1", "1"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, Exit.UNAUTHORIZED),
        (404, Exit.NOT_FOUND),
        (405, Exit.FAILED),
        (410, Exit.FAILED),
        (422, Exit.USAGE),
        (501, Exit.FAILED),
    ],
)
def test_a_reconnect_that_is_refused_ends_at_once(tmp_path: Path, status: int, code: Exit) -> None:
    with streams(event(1), status) as (url, resumed_from), pytest.raises(CliError) as refused:
        list(operation_events(Client(tmp_path, url=url), "op_1"))
    assert refused.value.code is code
    assert resumed_from == ["0", "1"]


def test_a_server_that_only_closes_is_lost_in_the_end(tmp_path: Path) -> None:
    with streams("") as (url, resumed_from), pytest.raises(CliError, match="lost the control plane") as lost:
        list(operation_events(Client(tmp_path, url=url), "op_1", lost_for_s=1.0))
    assert lost.value.code is Exit.UNREACHABLE
    assert "wharf ops watch op_1" in str(lost.value)
    assert 2 <= len(resumed_from) <= 4, "it pauses longer each time"


def test_what_was_answered_to_the_end_is_said(tmp_path: Path) -> None:
    with streams(500) as (url, _), pytest.raises(CliError) as lost:
        list(operation_events(Client(tmp_path, url=url), "op_1", lost_for_s=0.0))
    assert lost.value.code is Exit.UNREACHABLE
    assert str(lost.value) == (
        "lost the control plane for 0 s (HTTP 500 from /api/v1/operations/op_1/events); the work goes on. "
        "Watch it again with: wharf ops watch op_1"
    )


def test_a_silent_connection_counts_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert events.SILENCE_S == 45.0, "three times the control plane's keep-alive"
    monkeypatch.setattr(events, "SILENCE_S", 0.2)
    silent = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            silent.wait(30)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        client = Client(tmp_path, url=f"http://127.0.0.1:{server.server_address[1]}")
        with pytest.raises(CliError, match="lost the control plane"):
            list(operation_events(client, "op_1", lost_for_s=0.1))
    finally:
        silent.set()
        server.shutdown()
        server.server_close()

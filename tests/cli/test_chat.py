"""Talking to a model: how long an answer may be, and what Ctrl-C ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from support.server import DEMO_MODEL_ID, Server
from wharfinger.cli.chat import default_max_tokens
from wharfinger.cli.client import Client

LONG = "Count from 1 to 500, one number a line."


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[Server]:
    """The demo model with a window of 1024 tokens."""
    launched = server.launch(1024)
    server.wait_status(launched["instance_id"], "ready")
    yield server
    assert server.wharf("stop", launched["instance_id"]).returncode == 0


def test_the_default_leaves_half_of_a_small_window(running: Server) -> None:
    client = Client(running.data_dir)
    assert default_max_tokens(client, DEMO_MODEL_ID) == 512
    assert default_max_tokens(client, "unknown") == 512
    small = running.launch(512)
    running.wait_status(small["instance_id"], "ready")
    assert default_max_tokens(client, DEMO_MODEL_ID) == 256
    assert running.wharf("stop", small["instance_id"]).returncode == 0


def test_an_answer_that_was_cut_off_says_so(running: Server) -> None:
    chat = running.wharf("chat", DEMO_MODEL_ID, "-m", LONG, "--max-tokens", "5")
    assert chat.returncode == 0, chat.stderr
    assert "cut off" in chat.stderr
    assert "5 tokens (--max-tokens)" in chat.stderr


def test_more_than_the_window_is_refused_as_a_wrong_value(running: Server) -> None:
    chat = running.wharf("chat", DEMO_MODEL_ID, "-m", "Hello", "--max-tokens", "1024")
    assert chat.returncode == 2
    assert "context_length_exceeded" in chat.stderr


def test_a_model_that_does_not_run(running: Server) -> None:
    chat = running.wharf("chat", "nobody", "-m", "Hello")
    assert chat.returncode == 4
    assert DEMO_MODEL_ID in chat.stderr


def start(server: Server, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "wharfinger.cli", "chat", DEMO_MODEL_ID, *arguments],
        env={**os.environ, "WHARF_DATA_DIR": str(server.data_dir), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=0,
    )


def read_until(stream: IO[str], wanted: str) -> str:
    text = ""
    while wanted not in text:
        character = stream.read(1)
        assert character, f"ended before {wanted!r}: {text}"
        text += character
    return text


def test_ctrl_c_during_the_only_answer_exits_130(running: Server) -> None:
    chat = start(running, "-m", LONG)
    assert chat.stdout
    read_until(chat.stdout, "1")
    chat.send_signal(signal.SIGINT)
    _, errors = chat.communicate(timeout=30)
    assert chat.returncode == 130
    assert "Traceback" not in errors


def test_ctrl_c_ends_the_answer_and_keeps_the_conversation(running: Server) -> None:
    chat = start(running, "--max-tokens", "60")
    assert chat.stdin
    assert chat.stdout
    read_until(chat.stdout, "> ")
    chat.stdin.write(LONG + "\n")
    chat.stdin.flush()
    read_until(chat.stdout, "1")
    chat.send_signal(signal.SIGINT)
    read_until(chat.stdout, "\n> ")
    answer, errors = chat.communicate("Say hello.\n", timeout=120)
    assert chat.returncode == 0, errors
    assert "interrupted" in errors
    assert errors.count("tokens/s") == 1, "only the second answer came to its end"
    assert answer.strip(" >\n")


def test_nothing_is_asked_of_a_stopped_control_plane(tmp_path: Path) -> None:
    chat = Server(tmp_path / "none").wharf("chat", DEMO_MODEL_ID, "-m", "Hello")
    assert chat.returncode == 3

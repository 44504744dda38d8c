"""Talking to a model: how long an answer may be, and what Ctrl-C ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from support.server import DEMO_MODEL_ID, Server
from support.upstream import Upstream
from wharfinger.cli.chat import default_max_tokens
from wharfinger.cli.client import Client
from wharfinger.cli.model_names import same_but_for_case


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[Server]:
    """The demo model with a window of 1024 tokens."""
    launched = server.launch(1024)
    server.wait_status(launched["instance_id"], "ready")
    yield server
    assert server.wharf("stop", launched["instance_id"]).returncode == 0


def test_the_default_leaves_half_of_a_small_window(running: Server) -> None:
    client = Client(running.data_dir)
    described = f"/v1/models/{DEMO_MODEL_ID}"
    assert default_max_tokens(client.get(described)) == 512
    assert default_max_tokens({"id": "of unknown window"}) == 512
    small = running.launch(512)
    running.wait_status(small["instance_id"], "ready")
    assert default_max_tokens(client.get(described)) == 256
    assert running.wharf("stop", small["instance_id"]).returncode == 0


def test_more_than_the_window_is_refused_as_a_wrong_value(running: Server) -> None:
    chat = running.wharf("chat", DEMO_MODEL_ID, "-m", "Hello", "--max-tokens", "1024")
    assert chat.returncode == 2
    assert "context_length_exceeded" in chat.stderr


@pytest.mark.parametrize("arguments", [(), ("-m", "Hello")])
def test_a_model_that_does_not_run(running: Server, arguments: tuple[str, ...]) -> None:
    chat = running.wharf("chat", "nobody", *arguments)
    assert chat.returncode == 4
    assert DEMO_MODEL_ID in chat.stderr
    assert "talking to" not in chat.stderr


@pytest.mark.parametrize(
    ("given", "known", "taken"),
    [
        ("a", ["a", "A"], "a"),
        ("B", ["a", "b"], "b"),
        ("Ab", ["aB", "AB"], "Ab"),
        ("c", ["a"], "c"),
    ],
)
def test_only_the_one_match_is_taken(given: str, known: list[str], taken: str) -> None:
    assert same_but_for_case(given, known) == taken


@pytest.fixture
def endless() -> Iterator[Upstream]:
    """An endpoint whose answers never end: how long a real model's answer is, its sampler decides."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    upstream = Upstream("drip")
    asyncio.run_coroutine_threadsafe(upstream.start(), loop).result(10)
    yield upstream
    asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def start(upstream: Upstream, tmp_path: Path, *arguments: str, model: str = "m") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "wharfinger.cli", "chat", model, "--max-tokens", "60", *arguments],
        env={
            **os.environ,
            "WHARF_URL": upstream.url,
            "WHARF_API_KEY": "of-no-use-here",
            "WHARF_DATA_DIR": str(tmp_path / "none"),
            "PYTHONUNBUFFERED": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=0,
    )


def test_an_answer_that_was_cut_off_says_so(endless: Upstream, tmp_path: Path) -> None:
    endless.behaviour = "at_limit"
    chat = start(endless, tmp_path, "-m", "Hello")
    answer, errors = chat.communicate(timeout=60)
    assert (chat.returncode, answer) == (0, "w0 w1 w2 \n"), errors
    assert "the answer was cut off: it reached 60 tokens (--max-tokens)" in errors
    assert json.loads(endless.seen[-1].body)["max_tokens"] == 60


@pytest.mark.parametrize(("behaviour", "tokens"), [("counted", 7), ("at_limit", 3)])
def test_tokens_are_as_the_endpoint_counts_them(
    endless: Upstream, tmp_path: Path, behaviour: str, tokens: int
) -> None:
    endless.behaviour = behaviour
    chat = start(endless, tmp_path, "-m", "Hello")
    answer, errors = chat.communicate(timeout=60)
    assert (chat.returncode, answer) == (0, "w0 w1 w2 \n"), errors
    assert f" tokens/s, {tokens} tokens" in errors
    assert json.loads(endless.seen[-1].body)["stream_options"] == {"include_usage": True}


def test_the_case_of_a_name_is_forgiven(endless: Upstream, tmp_path: Path) -> None:
    endless.behaviour = "stream"
    chat = start(endless, tmp_path, "-m", "Hello", model="M")
    answer, errors = chat.communicate(timeout=60)
    assert (chat.returncode, answer[:6]) == (0, "w0 w1 "), errors
    assert "taking m for M" in errors
    assert "cut off" not in errors


def read_until(stream: IO[str], wanted: str) -> str:
    text = ""
    while wanted not in text:
        character = stream.read(1)
        assert character, f"ended before {wanted!r}: {text}"
        text += character
    return text


def test_ctrl_c_during_the_only_answer_exits_130(endless: Upstream, tmp_path: Path) -> None:
    chat = start(endless, tmp_path, "-m", "Hello")
    assert chat.stdout
    assert read_until(chat.stdout, "w1 ") == "w0 w1 "
    chat.send_signal(signal.SIGINT)
    _, errors = chat.communicate(timeout=60)
    assert chat.returncode == 130
    assert "Traceback" not in errors


def test_ctrl_c_ends_the_answer_and_keeps_the_conversation(endless: Upstream, tmp_path: Path) -> None:
    chat = start(endless, tmp_path)
    assert chat.stdin
    assert chat.stdout
    read_until(chat.stdout, "> ")
    chat.stdin.write("Count.\n")
    chat.stdin.flush()
    read_until(chat.stdout, "w1 ")
    chat.send_signal(signal.SIGINT)
    read_until(chat.stdout, "\n> ")
    endless.behaviour = "stream"
    answer, errors = chat.communicate("Say hello.\n", timeout=120)
    assert chat.returncode == 0, errors
    assert "interrupted" in errors
    assert errors.count("tokens/s") == 1, "only the second answer came to its end"
    assert "w48 w49 " in answer
    asked = json.loads(endless.seen[-1].body)["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[1]["content"].startswith("w0 w1 "), "what came of the interrupted answer is remembered"


def test_nothing_is_asked_of_a_stopped_control_plane(tmp_path: Path) -> None:
    chat = Server(tmp_path / "none").wharf("chat", DEMO_MODEL_ID, "-m", "Hello")
    assert chat.returncode == 3

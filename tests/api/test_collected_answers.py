"""What the gateway puts together of llama.cpp's stream is what llama.cpp itself sends as one document."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

import httpx
import pytest

from support.local_node import NO_END
from support.server import DEMO_MODEL_ID, Server

MESSAGES = [{"role": "user", "content": "Name a colour."}]
GREEDY = {"model": DEMO_MODEL_ID, "temperature": 0, "seed": 1, "max_tokens": 5, "cache_prompt": False}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "enum": ["a", "b"]}}},
    },
}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "enum": ["red", "blue"]}}}
VOLATILE = ("id", "created", "timings")
"""Fields that differ between any two answers."""


@pytest.fixture(scope="module")
def engine(server: Server) -> httpx.Client:
    """The engine itself, past the gateway."""
    launched = server.launch(1024)
    server.wait_status(launched["instance_id"], "ready")
    with closing(sqlite3.connect(server.data_dir / "wharfinger.db")) as database:
        assert database.execute("SELECT collects FROM targets").fetchall() == [(1,)]
    return server.engine()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": MESSAGES}),
        ("chat/completions", {"messages": MESSAGES, "stream": False, "stream_options": None}),
        ("chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
        ("chat/completions", {"messages": MESSAGES, "stop": ["."], "max_tokens": 30}),
        ("chat/completions", {"messages": MESSAGES, "response_format": SCHEMA, "max_tokens": 40}),
        (
            "chat/completions",
            {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
        ),
        ("chat/completions", {"messages": MESSAGES, "tools": [TOOL], "logprobs": True}),
        ("completions", {"prompt": "The harbour"}),
        ("completions", {"prompt": "The harbour", "logprobs": 2}),
        ("completions", {"prompt": ["The harbour", "A ship"]}),
        ("completions", {"prompt": "The harbour", "max_tokens": 1}),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_the_same_document(server: Server, engine: httpx.Client, path: str, body: dict[str, Any]) -> None:
    own = engine.post(f"/v1/{path}", json={**GREEDY, **body})
    with server.client() as http:
        ours = http.post(f"/v1/{path}", json={**GREEDY, **body})
    assert (ours.status_code, own.status_code) == (200, 200)
    assert stable(ours) == stable(own)


@pytest.mark.parametrize("body", [{"messages": "x"}, {"messages": MESSAGES, "top_logprobs": "many"}])
def test_the_same_refusal_in_openais_shape(
    server: Server, engine: httpx.Client, body: dict[str, Any]
) -> None:
    own = engine.post("/v1/chat/completions", json={**GREEDY, **body})
    with server.client() as http:
        ours = http.post("/v1/chat/completions", json={**GREEDY, **body})
    assert 400 <= own.status_code < 600
    said = own.json()["error"]
    assert isinstance(said["code"], int)
    assert ours.status_code == own.status_code
    assert ours.json()["error"] == {
        "message": said["message"],
        "type": said["type"],
        "param": None,
        "code": "upstream_status",
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(server: Server, engine: httpx.Client, stream: bool) -> None:
    body = {**GREEDY, "prompt": "sea " * 2000, "stream": stream}
    said = engine.post("/v1/completions", json=body).json()["error"]
    assert said["type"] == "exceed_context_size_error"
    with server.client() as http:
        ours = http.post("/v1/completions", json=body)
    assert ours.status_code == 400
    assert ours.json()["error"] == {
        "message": f"context_length_exceeded: {said['message']}",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }


def stable(response: httpx.Response) -> dict[str, Any]:
    document = response.json()
    for name in VOLATILE:
        assert name in document
        del document[name]
    for choice in document["choices"]:
        if choice["finish_reason"] == "length" and "text" in choice:
            choice["text"] = choice[
                "text"
            ].rstrip()  # perhaps the beginning of a stop text: a stream holds it back
    return document


def test_hanging_up_stops_the_engine(server: Server, engine: httpx.Client) -> None:
    """The engine's slot goes idle before it has made all its tokens."""
    endless = {**GREEDY, **NO_END, "messages": MESSAGES, "max_tokens": 900}
    with server.client() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=endless, timeout=1)
    slot = working = engine.get("/slots").json()[0]
    deadline = time.monotonic() + 60
    while slot["is_processing"]:
        assert time.monotonic() < deadline
        working = slot
        time.sleep(0.01)
        slot = engine.get("/slots").json()[0]
    assert working["next_token"][0]["n_decoded"] < 900

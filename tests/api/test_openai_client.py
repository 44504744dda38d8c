"""The OpenAI Python client against the whole thing: gateway, route table, real engine."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from support.server import DEMO_MODEL_ID, Server


@pytest.fixture(scope="module")
def running(server: Server) -> str:
    answer = server.launch(1024)
    server.wait_status(answer["instance_id"], "ready")
    return answer["instance_id"]


@pytest.fixture
def client(server: Server, running: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0)


MESSAGES: Any = [{"role": "user", "content": "Name a colour."}]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [DEMO_MODEL_ID]


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=MESSAGES, max_tokens=12, stream=True
    )
    chunks = list(stream)
    assert len(chunks) >= 3
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=DEMO_MODEL_ID, messages=MESSAGES, max_tokens=8)
    assert reply.model == DEMO_MODEL_ID
    assert reply.usage is not None
    assert 1 <= reply.usage.completion_tokens <= 8


def test_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=DEMO_MODEL_ID, prompt="The harbour", max_tokens=5)
    assert reply.choices[0].text


def test_a_model_that_is_not_running_names_what_is(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert refused.value.code == "model_not_found"
    assert DEMO_MODEL_ID in refused.value.message


def test_embeddings_of_a_chat_model_are_a_clear_400(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=DEMO_MODEL_ID, input="x")
    assert DEMO_MODEL_ID in refused.value.message


def test_wrong_key(server: Server, running: str) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()


def test_hanging_up_stops_the_generation_within_a_second(server: Server, client: openai.OpenAI) -> None:
    """The engine's own slot goes idle: seen in its metrics through its own endpoint."""
    stream = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=MESSAGES, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    with server.client() as http:
        assert _in_flight(http) == 1
        left = time.monotonic()
        stream.close()
        while _in_flight(http):
            assert time.monotonic() - left < 1.0, "the gateway still holds the request"
            time.sleep(0.02)
    # The engine serves one request at a time here, so a prompt answer proves that it has stopped.
    again = time.monotonic()
    client.completions.create(model=DEMO_MODEL_ID, prompt="Sea", max_tokens=1)
    assert time.monotonic() - again < 3.0


def _in_flight(http: Any) -> int:
    for line in http.get("/metrics").text.splitlines():
        if line.startswith("wharfinger_gateway_in_flight "):
            return int(float(line.split()[1]))
    raise AssertionError("no in-flight gauge")

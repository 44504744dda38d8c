"""The OpenAI Python client against the whole thing: gateway, route table, real engine."""

from __future__ import annotations

import time
from typing import Any

import httpx
import openai
import pytest

from support.local_node import NO_END
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
        model=DEMO_MODEL_ID,
        messages=MESSAGES,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=NO_END,
    )
    *chunks, last = stream
    assert len(chunks) >= 3
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage is not None
    assert last.usage.completion_tokens == 12


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=MESSAGES, max_tokens=8, extra_body=NO_END
    )
    assert reply.model == DEMO_MODEL_ID
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8
    assert reply.choices[0].finish_reason == "length"


def test_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=DEMO_MODEL_ID, prompt="The harbour", max_tokens=5, extra_body=NO_END
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5
    assert reply.choices[0].finish_reason == "length"


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


def test_hanging_up_stops_the_generation(server: Server, client: openai.OpenAI) -> None:
    """The gateway lets go of the request, and the engine ends it before it has made all its tokens."""
    asked = 900
    with server.engine() as engine, server.client() as http:
        before = _figure(engine, "llamacpp:tokens_predicted_total")
        stream = client.chat.completions.create(
            model=DEMO_MODEL_ID, messages=MESSAGES, max_tokens=asked, stream=True, extra_body=NO_END
        )
        next(iter(stream))
        assert _figure(http, "wharfinger_gateway_in_flight") == 1
        stream.close()
        deadline = time.monotonic() + 60
        while (
            _figure(http, "wharfinger_gateway_in_flight") or engine.get("/slots").json()[0]["is_processing"]
        ):
            assert time.monotonic() < deadline, "the request is still carried"
            time.sleep(0.02)
        assert 0 < _figure(engine, "llamacpp:tokens_predicted_total") - before < asked


def _figure(http: httpx.Client, name: str) -> int:
    (line,) = [line for line in http.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
    return int(float(line.split()[1]))

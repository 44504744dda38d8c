"""Documents of engines that notice a lost client only while they stream: fetched as streams, put together."""

from __future__ import annotations

import asyncio
import json

import openai
import orjson
import pytest

from support.gateway import MESSAGES, MODEL, PATIENCE_S, Serve, post, send, target
from support.upstream import CHUNKS, Upstream
from wharfinger.routing.collect import Collector, StreamFailed, as_stream
from wharfinger.routing.exchange import Limits


def document(*chunks: dict) -> dict:
    collector = Collector()
    events = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
    assert collector.feed(events + b"data: [DONE]\n\n")
    return json.loads(collector.document())


def chat(delta: dict, index: int = 0, finish: str | None = None, **more: object) -> dict:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


def test_the_wishes_stand_last_and_every_other_byte_is_kept() -> None:
    body = b'{ "stream": false, "seed": 123456789012345678901234567890, "stream_options": null } '
    asked = as_stream(body)
    assert asked.startswith(body[: body.rindex(b"}")])
    read = json.loads(asked)
    assert read["stream"] is True
    assert read["stream_options"] == {"include_usage": True}
    assert read["seed"] == 123456789012345678901234567890


def test_text_usage_and_reasoning() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert document(
        chat({"role": "assistant", "content": None}, prompt_progress={"total": 3}),
        chat({"role": "assistant", "content": None}),
        chat({"reasoning_content": "hm"}),
        chat({"reasoning_content": "m"}),
        chat({"content": "Two "}),
        chat({"content": "words"}),
        chat({}, finish="stop"),
        {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage, "timings": {"n": 1}},
    ) == {
        "id": "c",
        "object": "chat.completion",
        "usage": usage,
        "timings": {"n": 1},
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "reasoning_content": "hmm", "content": "Two words"},
            }
        ],
    }


def test_choices_are_told_apart() -> None:
    answer = document(
        chat({"content": "b"}, index=1),
        chat({"content": "a"}),
        chat({}, index=1, finish="length"),
        chat({}, index=0, finish="stop"),
    )
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


def test_text_completions() -> None:
    chunks = [{"index": 0, "text": text, "logprobs": None, "finish_reason": None} for text in "xy"]
    answer = document(*({"object": "text_completion", "choices": [choice]} for choice in chunks))
    assert answer == {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "xy", "finish_reason": None, "logprobs": None}],
    }


@pytest.mark.parametrize(
    "chunk",
    [
        [],
        None,
        1,
        {},
        {"choices": None, "object": "x"},
        {"choices": [{"delta": {"content": "x"}}], "object": "x"},
        chat({"content": ["x"]}),
        chat({"content": "x"}, index=-1),
        chat({"content": "x"}, index=10**9),
        {"object": None, "choices": []},
        {"object": "text_completion", "choices": [{"index": 0}]},
    ],
    ids=str,
)
def test_a_chunk_of_another_shape_is_told_apart_from_a_fault_of_ours(chunk: object) -> None:
    with pytest.raises(ValueError, match=r"shape|cannot be"):
        Collector().feed(b"data: " + orjson.dumps(chunk) + b"\n\n")


def test_a_delta_of_null_is_an_empty_one() -> None:
    answer = document(chat({"content": "x"}), {**chat({}), "choices": [{"index": 0, "delta": None}]})
    assert answer["choices"][0]["message"]["content"] == "x"


def test_text_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharfinger.routing.collect.TEXT_LIMIT_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        document(chat({"content": "12345"}), chat({"content": "ä€x"}))


def test_an_answer_without_a_token_has_an_empty_text() -> None:
    answer = document(chat({"role": "assistant", "content": None}), chat({}, finish="stop"))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("error", "status"), [({"code": 503, "message": "gone"}, 503), ({"code": "x"}, 500), ("boom", 500)]
)
def test_an_error_in_the_stream(error: object, status: int) -> None:
    with pytest.raises(StreamFailed) as failed:
        Collector().feed(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
    assert failed.value.status == status
    assert json.loads(failed.value.body) == {"error": error}


async def test_the_client_gets_one_document(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "stream"
    served = serve(target(upstream.url, collects=True))
    raw = await served.client().chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    reply = raw.parse()
    assert reply.choices[0].message.content == "".join(f"w{i} " for i in range(CHUNKS))
    assert reply.object == "chat.completion"
    assert raw.headers["content-type"] == "application/json"
    assert json.loads(upstream.seen[0].body)["stream"] is True
    record = (await served.recorded())[0]
    assert (record.status, record.stream, record.failure) == (200, False, None)


@pytest.mark.parametrize(
    "wish",
    [
        {"tools": [{"type": "function"}]},
        {"logprobs": True},
        {"logprobs": 2},
        {"verbose": True},
        {"stream": True},
    ],
    ids=str,
)
async def test_what_streams_answer_differently_is_sent_as_it_is(
    serve: Serve, upstream: Upstream, wish: dict
) -> None:
    served = serve(target(upstream.url, collects=True))
    await post(served.url, {"model": MODEL, "messages": MESSAGES, **wish})
    assert json.loads(upstream.seen[0].body) == {"model": MODEL, "messages": MESSAGES, **wish}


async def test_nothing_wished_is_plain(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "stream"
    served = serve(target(upstream.url, collects=True))
    body = {"model": MODEL, "messages": MESSAGES, "tools": [], "logprobs": False, "functions": None}
    answer = await post(served.url, body)
    assert answer.json()["object"] == "chat.completion"


async def test_a_long_prompt_may_be_silent_between_its_batches(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "long_prompt"
    served = serve(target(upstream.url, collects=True), limits=Limits(idle_timeout_s=0.2))
    answer = await post(served.url, {"model": MODEL, "messages": MESSAGES})
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "w0 ")


async def test_a_malformed_chunk_is_a_502_that_is_not_repeated(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "odd_chunk"
    served = serve(target(upstream.url, collects=True))
    answer = await post(served.url, {"model": MODEL, "messages": MESSAGES})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_malformed")
    assert answer.headers["x-should-retry"] == "false"
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_malformed") == 1


async def test_an_error_event_holds_no_credential(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "error_event"
    served = serve(target(upstream.url, collects=True))
    answer = await post(served.url, {"model": MODEL, "messages": MESSAGES})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no room for [redacted]")


async def test_streams_and_embeddings_are_left_alone(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "stream"
    served = serve(target(upstream.url, collects=True, tasks=()))
    stream = await served.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    assert len([chunk async for chunk in stream]) == CHUNKS
    upstream.behaviour = "embed"
    await served.client().embeddings.create(model=MODEL, input="x", encoding_format="float")
    assert [b"return_progress" in seen.body for seen in upstream.seen] == [False, False]


@pytest.mark.parametrize("behaviour", ["half", "half_no_length"])
async def test_a_stream_that_breaks_is_a_502_and_no_half_document(
    serve: Serve, upstream: Upstream, behaviour: str
) -> None:
    upstream.behaviour = behaviour
    served = serve(target(upstream.url, collects=True))
    with pytest.raises(openai.InternalServerError) as caught:
        await served.client().chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_disconnected")
    assert len(upstream.seen) == 1


async def test_an_error_before_the_stream_passes_as_it_is(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "error400"
    served = serve(target(upstream.url, collects=True))
    with pytest.raises(openai.BadRequestError) as caught:
        await served.client().chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.body["message"] == "too many tokens"  # type: ignore[index]


async def test_hanging_up_cuts_the_stream(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "drip"
    served = serve(target(upstream.url, collects=True))
    _, writer = await send(served, "/v1/chat/completions", {"model": MODEL})
    await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
    await asyncio.sleep(0.2)  # while it streams
    writer.close()
    await asyncio.wait_for(upstream.seen[0].hung_up.wait(), PATIENCE_S)
    record = (await served.recorded())[0]
    assert (record.status, record.failure) == (499, "client_gone")

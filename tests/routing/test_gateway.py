"""OpenAI's Python client against the gateway, a real server in front of a real upstream."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from support.gateway import AUTH, MESSAGES, MODEL, PATIENCE_S, TARGET_KEY, Serve, error, post, target
from support.upstream import Upstream, instant_answer
from wharfinger.engines.ports import choose_port
from wharfinger.routing.exchange import Limits


async def test_chat_completion(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url, instance_id="i1"))
    answer = await served.client().chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (
        answer.choices[0].message.content == json.loads(instant_answer())["choices"][0]["message"]["content"]
    )
    assert upstream.seen[0].path == "/v1/chat/completions"
    assert upstream.seen[0].headers["authorization"] == f"Bearer {TARGET_KEY}"
    record = (await served.recorded())[0]
    assert (record.status, record.failure, record.model, record.target_id) == (200, None, MODEL, "t1")
    assert (record.principal, record.instance_id, record.stream, record.ttft_s) == (
        "tester",
        "i1",
        False,
        None,
    )
    assert served.metric("requests_total", route=record.route, method="POST", model=MODEL, code="2xx") == 1
    assert served.metric("request_duration_seconds_count", route=record.route, model=MODEL) == 1


async def test_streamed_chat_completion(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "stream"
    served = serve(target(upstream.url))
    stream = await served.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert words == [f"w{i} " for i in range(50)]
    record = (await served.recorded())[0]
    assert record.stream
    assert record.ttft_s is not None
    assert 0 < record.ttft_s <= record.duration_s
    assert served.metric("time_to_first_token_seconds_count", model=MODEL) == 1
    assert upstream.connections == 1


async def test_completion(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url))
    await served.client().completions.create(model=MODEL, prompt="The harbour")
    assert upstream.seen[0].path == "/v1/completions"


async def test_embedding(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "embed"
    served = serve(target(upstream.url, tasks=("TextEmbedding",)))
    answer = await served.client().embeddings.create(model=MODEL, input="harbour", encoding_format="float")
    assert answer.data[0].embedding == [0.25, -0.5]


async def test_the_models_that_run_are_listed(serve: Serve) -> None:
    served = serve(
        target("http://h", "a", model_id="org/b", context_tokens=8192, created_unix_s=7),
        target("http://h", "b", model_id="org/b", context_tokens=4096, created_unix_s=9),
        target("http://h", "c", model_id="a"),
    )
    listed = await served.client().models.list()
    assert [model.id for model in listed.data] == ["a", "org/b"]
    expected = {
        "id": "org/b",
        "object": "model",
        "created": 7,
        "owned_by": "wharfinger",
        "max_model_len": 4096,
    }
    assert (await served.client().models.retrieve("org/b")).to_dict() == expected
    assert "max_model_len" not in listed.data[0].to_dict()
    with pytest.raises(openai.NotFoundError) as caught:
        await served.client().models.retrieve("org/c")
    assert caught.value.code == "model_not_found"


async def test_an_answer_passes_byte_for_byte(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "echo"
    served = serve(target(upstream.url))
    body = b'{ "model":"harbour" ,"seed":123456789012345678901234567890,"x":1.10,"t":"\xc3\xa9"}'
    assert (await post(served.url, body)).content == body


async def test_a_stream_passes_byte_for_byte(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "stream"
    direct = await post(upstream.url, {"model": MODEL, "stream": True})
    served = serve(target(upstream.url))
    assert (await post(served.url, {"model": MODEL, "stream": True})).content == direct.content
    assert direct.content.endswith(b"data: [DONE]\n\n")


async def test_a_long_answer_passes_whole(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "echo"
    served = serve(target(upstream.url))
    body = json.dumps({"model": MODEL, "input": "x" * 3_000_000}).encode()
    answer = await post(served.url, body)
    assert answer.content == body
    assert answer.headers["content-length"] == str(len(body))


async def test_no_or_a_wrong_key_is_401_and_never_reaches_the_endpoint(
    serve: Serve, upstream: Upstream
) -> None:
    served = serve(target(upstream.url))
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE_S) as client:
        for headers in ({}, {"authorization": "Bearer sk-wrong"}):
            for path in ("/v1/chat/completions", "/v1/models", "/v1/unknown"):
                answer = await client.request("GET" if "models" in path else "POST", path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert error(answer)["code"] == "invalid_api_key"
    assert upstream.seen == []
    assert (
        served.metric("requests_total", route="/v1/chat/completions", method="POST", model="", code="4xx")
        == 2
    )


async def test_a_model_that_does_not_run_is_404_with_what_runs(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url), target(upstream.url, "t2", model_id="qwen-3"))
    with pytest.raises(openai.NotFoundError) as caught:
        await served.client().chat.completions.create(model="harbor", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "Running: harbour, qwen-3." in caught.value.message
    assert "Did you mean 'harbour'?" in caught.value.message
    text = b"".join(
        sample.name.encode() + repr(sample.labels).encode()
        for family in served.registry.collect()
        for sample in family.samples
    )
    assert b"harbor'" not in text, "a name a client made up became a label"


async def test_nothing_runs(serve: Serve) -> None:
    answer = await post(serve().url, {"model": "m"})
    assert answer.status_code == 404
    assert "no model is running here" in error(answer)["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), (b"{}", "model"), (b'{"model":1}', "model"), (b'{"model":"m","stream":3}', "stream")],
)
async def test_a_bad_body_is_400(serve: Serve, upstream: Upstream, body: bytes, param: str | None) -> None:
    answer = await post(serve(target(upstream.url)).url, body)
    assert (answer.status_code, error(answer)["param"], error(answer)["type"]) == (
        400,
        param,
        "invalid_request_error",
    )
    assert upstream.seen == []


async def test_a_body_over_the_cap_is_413(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url), limits=Limits(max_body_bytes=100_000))

    async def chunked():
        for _ in range(20):
            yield b"x" * 10_000

    declared = await post(served.url, b"x" * 100_001)
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        undeclared = await client.post(served.url + "/v1/embeddings", content=chunked(), headers=AUTH)
    for answer in (declared, undeclared):
        assert (answer.status_code, error(answer)["code"]) == (413, "request_too_large")
        assert "100000 bytes" in error(answer)["message"]
    assert upstream.seen == []


async def test_the_cap_is_16_mib(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url))
    frame = b'{"model":"harbour","p":"%b"}'
    fits = frame % (b"x" * (16 * 1024 * 1024 - len(frame) + 2))
    assert len(fits) == 16 * 1024 * 1024
    assert (await post(served.url, fits)).status_code == 200
    assert (await post(served.url, fits + b" ")).status_code == 413


async def test_embedding_and_chat_models_are_told_apart(serve: Serve, upstream: Upstream) -> None:
    served = serve(
        target(upstream.url), target(upstream.url, "t2", model_id="embedder", tasks=("TextEmbedding",))
    )
    for path, model, hint in (
        ("/v1/embeddings", MODEL, "use /v1/chat/completions or /v1/completions"),
        ("/v1/chat/completions", "embedder", "use /v1/embeddings"),
    ):
        answer = await post(served.url, {"model": model}, path)
        assert (answer.status_code, error(answer)["code"]) == (400, "unsupported_task")
        assert hint in error(answer)["message"]
    assert upstream.seen == []
    await served.quiet()


@pytest.mark.parametrize("param", ["max_tokens", "max_completion_tokens"])
async def test_more_tokens_than_the_context_holds_is_400(
    serve: Serve, upstream: Upstream, param: str
) -> None:
    served = serve(target(upstream.url, context_tokens=4096))
    answer = await post(served.url, {"model": MODEL, param: 4096})
    assert (answer.status_code, error(answer)["param"]) == (400, param)
    assert error(answer)["message"].startswith("context_length_exceeded: ")
    assert (await post(served.url, {"model": MODEL, param: 4095})).status_code == 200


@pytest.mark.parametrize(
    ("path", "param", "value"),
    [
        ("/v1/chat/completions", "messages", []),
        ("/v1/completions", "prompt", ""),
        ("/v1/embeddings", "input", [""]),
        ("/v1/chat/completions", "max_tokens", -1),
        ("/v1/completions", "max_completion_tokens", 0),
    ],
)
async def test_an_empty_prompt_and_a_limit_below_1_never_reach_the_endpoint(
    serve: Serve, upstream: Upstream, path: str, param: str, value: object
) -> None:
    served = serve(target(upstream.url, tasks=()))
    answer = await post(served.url, {"model": MODEL, param: value}, path)
    assert (answer.status_code, error(answer)["code"], error(answer)["param"]) == (
        400,
        "invalid_value",
        param,
    )
    assert upstream.seen == []


async def test_paths_and_methods_that_are_not_served(serve: Serve) -> None:
    served = serve()
    async with httpx.AsyncClient(base_url=served.url, headers=AUTH, timeout=PATIENCE_S) as client:
        unknown = await client.post("/v1/responses")
        wrong = await client.get("/v1/chat/completions")
    assert (unknown.status_code, error(unknown)["code"]) == (404, "unknown_url")
    assert "/v1/embeddings" in error(unknown)["message"]
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert served.gateway.handles("/v1/responses")
    assert not served.gateway.handles("/instance")


async def test_request_id_and_trace_go_both_ways(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url))
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    kept = await post(served.url, {"model": MODEL}, **{"x-request-id": "job-7", "traceparent": trace})
    made = await post(served.url, {"model": MODEL}, **{"x-request-id": "two words"})
    refused = await post(served.url, {}, **{"x-request-id": "job-8"})
    assert kept.headers["x-request-id"] == upstream.seen[0].headers["x-request-id"] == "job-7"
    assert upstream.seen[0].headers["traceparent"] == trace
    assert made.headers["x-request-id"] == upstream.seen[1].headers["x-request-id"] != "two words"
    assert "traceparent" not in upstream.seen[1].headers
    assert refused.headers["x-request-id"] == "job-8"


async def test_an_engines_own_error_passes_with_a_code_that_is_text(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "error400"
    answer = await post(serve(target(upstream.url)).url, {"model": MODEL})
    assert answer.status_code == 400
    assert error(answer) == {
        "message": "too many tokens",
        "type": "BadRequestError",
        "param": None,
        "code": "upstream_status",
    }


async def test_an_engines_headers_pass_with_its_error(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "refusing"
    answer = await post(serve(target(upstream.url)).url, {"model": MODEL})
    assert answer.headers["x-engine-note"] == "kept"
    assert answer.headers.get_list("content-type") == ["application/json"]
    assert len(answer.headers.get_list("x-request-id")) == 1


async def test_an_error_in_plain_text_becomes_an_openai_error(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "error500"
    served = serve(target(upstream.url))
    answer = await post(served.url, {"model": MODEL})
    assert (answer.status_code, error(answer)["type"]) == (500, "upstream_error")
    assert error(answer)["message"] == "The endpoint of 'harbour' answered 500: worker exploded"
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_status") == 1


async def test_a_redirect_is_not_followed(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "redirect"
    answer = await post(serve(target(upstream.url)).url, {"model": MODEL})
    assert (answer.status_code, error(answer)["code"]) == (502, "upstream_redirect")
    assert "location" not in answer.headers


async def test_an_unreachable_endpoint_is_503(serve: Serve) -> None:
    served = serve(target("http://127.0.0.1:9"))
    answer = await post(served.url, {"model": MODEL})
    assert (answer.status_code, error(answer)["code"]) == (503, "upstream_unreachable")
    assert "127.0.0.1" not in answer.text
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_unreachable") == 1
    await served.quiet()


async def test_a_connection_that_cannot_be_made_goes_to_another_target(
    serve: Serve, upstream: Upstream
) -> None:
    served = serve(target("http://127.0.0.1:9", "a"), target(upstream.url, "b"))
    for _ in range(3):
        assert (await post(served.url, {"model": MODEL})).status_code == 200
    assert [record.target_id for record in await served.recorded(3)] == ["b", "b", "b"]
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_unreachable") == 1
    await served.quiet()


async def test_a_limit_on_the_wait_for_an_answer_is_504(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "hang"
    served = serve(target(upstream.url), limits=Limits(first_byte_timeout_s=0.2))
    answer = await post(served.url, {"model": MODEL})
    assert (answer.status_code, error(answer)["code"]) == (504, "upstream_timeout")
    await asyncio.wait_for(upstream.seen[0].hung_up.wait(), PATIENCE_S)
    await served.quiet()


async def test_silence_within_a_document_is_504(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "slow_body"
    served = serve(target(upstream.url), limits=Limits(idle_timeout_s=0.2))
    answer = await post(served.url, {"model": MODEL})
    assert (answer.status_code, error(answer)["code"]) == (504, "upstream_timeout")


async def test_a_restarted_endpoint_is_reached_again(serve: Serve) -> None:
    first = Upstream()
    await first.start(choose_port())  # no connection of anybody's takes it while nothing listens there
    served = serve(target(first.url))
    assert (await post(served.url, {"model": MODEL})).status_code == 200
    await first.stop()
    assert (await post(served.url, {"model": MODEL})).status_code == 503
    second = Upstream()
    await second.start(first.port)
    assert (await post(served.url, {"model": MODEL})).status_code == 200
    await second.stop()


async def test_the_served_name_can_differ_from_the_endpoints(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "echo"
    served = serve(target(upstream.url, upstream_model="large"))
    body = b'{"seed":123456789012345678901234567890,"model": "harbour","messages":[{"model":"harbour"}]}'
    assert (await post(served.url, body)).content == body.replace(b'"model": "harbour"', b'"model": "large"')
    long = json.dumps({"p": "x" * 400_000, "model": MODEL}).encode()
    assert (await post(served.url, long)).content == long.replace(b'"harbour"', b'"large"')

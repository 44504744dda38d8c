"""What users of other gateways reported (rows 86 to 94 of the field notes; row 86 is ``test_disconnect.py``)."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from support.gateway import (
    AUTH,
    CLIENT_KEY,
    MESSAGES,
    MODEL,
    PATIENCE_S,
    TARGET_KEY,
    Serve,
    Served,
    error,
    post,
    send,
    target,
)
from support.upstream import DONE, EVENTS, Upstream
from wharfinger.routing.exchange import Limits


async def stream(served: Served, **extra: object) -> httpx.Response:
    return await post(served.url, {"model": MODEL, "stream": True, **extra})


def events(content: bytes) -> list[bytes]:
    assert content.endswith(b"\n\n")
    return content[:-2].split(b"\n\n")


async def test_row_87_a_slow_stream_outlives_the_limit_on_silence(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "drip"  # an event every 50 ms, longer in all than the limit
    served = serve(target(upstream.url), limits=Limits(idle_timeout_s=3.0, first_byte_timeout_s=3.0))
    reader, writer = await send(served, "/v1/chat/completions", {"model": MODEL, "stream": True})
    text = await asyncio.wait_for(reader.readuntil(b"w65 "), PATIENCE_S)
    assert b"error" not in text
    writer.close()


async def test_row_87_silence_after_the_first_token_ends_the_stream_with_an_error(
    serve: Serve, upstream: Upstream
) -> None:
    upstream.behaviour = "silent"
    served = serve(target(upstream.url), limits=Limits(idle_timeout_s=1.0))
    first, last = events((await stream(served)).content)
    assert first + b"\n\n" == EVENTS[0]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_timeout"
    await asyncio.wait_for(upstream.seen[0].hung_up.wait(), PATIENCE_S)
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_timeout") == 1


async def test_row_87_a_silent_stream_is_kept_alive_with_comments(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "silent"
    served = serve(target(upstream.url), limits=Limits(heartbeat_s=0.1))
    reader, writer = await send(served, "/v1/chat/completions", {"model": MODEL, "stream": True})
    async with asyncio.timeout(PATIENCE_S):
        assert EVENTS[0] in await reader.readuntil(b"\n\n\r\n")
        for _ in range(3):
            assert await reader.readuntil(b"\n\n\r\n") == b"e\r\n: keep-alive\n\n\r\n"
    writer.close()


async def test_row_87_comments_do_not_put_the_limit_on_silence_off(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "silent"
    served = serve(target(upstream.url), limits=Limits(heartbeat_s=0.3, idle_timeout_s=1.0))
    first, *beats, last = events((await stream(served)).content)
    assert first + b"\n\n" == EVENTS[0]
    assert set(beats) <= {b": keep-alive"}
    assert last.startswith(b'data: {"error"')


def test_row_87_nothing_limits_the_whole_of_a_request() -> None:
    limits = Limits()
    assert (limits.first_byte_timeout_s, limits.idle_timeout_s) == (None, 120.0)


async def test_row_89_done_ends_the_stream_though_the_endpoint_stays_open(
    serve: Serve, upstream: Upstream
) -> None:
    upstream.behaviour = "open_done"
    served = serve(target(upstream.url))
    answer = await asyncio.wait_for(stream(served), PATIENCE_S)
    assert answer.content == b"".join(EVENTS[:3]) + DONE
    assert (await served.recorded())[0].failure is None
    await asyncio.wait_for(upstream.seen[0].hung_up.wait(), PATIENCE_S)


async def test_row_89_hop_by_hop_and_private_headers_stay_behind(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "hop_by_hop"
    served = serve(target(upstream.url))
    answer = await post(
        served.url, {"model": MODEL}, **{"te": "trailers", "connection": "x-mine", "x-mine": "1"}
    )
    assert answer.headers["x-engine-note"] == "kept"
    assert answer.headers.get_list("content-length") == ["200"]
    assert answer.headers["server"] == "uvicorn"
    for name in ("keep-alive", "connection", "x-private-hop", "set-cookie", "transfer-encoding"):
        assert name not in answer.headers
    assert not {"te", "x-mine", "connection"} & set(upstream.seen[0].headers)


async def test_row_89_one_connection_serves_many_answers(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url))
    async with httpx.AsyncClient(base_url=served.url, headers=AUTH, timeout=PATIENCE_S) as client:
        for behaviour in ("stream", "instant", "error400", "stream", "instant"):
            answer = await client.post("/v1/chat/completions", json={"model": MODEL, "behave": behaviour})
            assert answer.status_code == (400 if behaviour == "error400" else 200)
    assert upstream.connections == 1


@pytest.mark.parametrize("behaviour", ["drop", "error500", "half", "half_json"])
async def test_row_90_what_an_endpoint_may_have_accepted_is_sent_once(
    serve: Serve, upstream: Upstream, behaviour: str
) -> None:
    upstream.behaviour = behaviour
    async with Upstream(behaviour) as other:
        served = serve(target(upstream.url, "a"), target(other.url, "b"))
        answer = await post(served.url, {"model": MODEL})
        assert len(upstream.seen) + len(other.seen) == 1
        if behaviour != "half":
            error(answer)
        await served.quiet()


async def test_row_90_openais_client_does_not_send_it_again_either(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "drop"
    served = serve(target(upstream.url))
    with pytest.raises(openai.InternalServerError) as caught:
        await served.client(max_retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_disconnected")
    assert len(upstream.seen) == 1


async def test_row_91_a_stream_that_breaks_ends_with_an_error_event(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "half"
    served = serve(target(upstream.url))
    answer = await stream(served)
    *whole, last = events(answer.content)
    assert b"".join(event + b"\n\n" for event in whole) == EVENTS[0] + EVENTS[1]
    assert json.loads(last.removeprefix(b"data: "))["error"] == {
        "message": "The endpoint of 'harbour' closed the connection before its answer was complete. Not sent again.",
        "type": "upstream_error",
        "param": None,
        "code": "upstream_disconnected",
    }
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_disconnected") == 1
    record = (await served.recorded())[0]
    assert (record.status, record.failure) == (200, "upstream_disconnected")


async def test_row_91_openais_client_raises_the_error(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "half"
    served = serve(target(upstream.url))
    words: list[str | None] = []

    async def read() -> None:
        answer = await served.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        async for chunk in answer:
            words.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError, match="closed the connection"):
        await read()
    assert words == ["w0 ", "w1 "]


async def test_row_91_a_stream_without_length_and_done_counts_as_broken(
    serve: Serve, upstream: Upstream
) -> None:
    upstream.behaviour = "half_no_length"
    *whole, last = events((await stream(serve(target(upstream.url)))).content)
    assert len(whole) == 2
    assert b"upstream_disconnected" in last


async def test_row_92_150_streams_at_once(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "silent"
    served = serve(target(upstream.url))
    open_streams = [
        await send(served, "/v1/chat/completions", {"model": MODEL, "stream": True}) for _ in range(150)
    ]
    async with asyncio.timeout(PATIENCE_S):
        for reader, _ in open_streams:
            await reader.readuntil(b"w0")
    assert served.metric("in_flight") == 150
    assert served.table.in_flight("t1") == 150
    for _, writer in open_streams:
        writer.close()
    await served.quiet()
    assert served.metric("in_flight") == 0


async def test_row_92_over_the_limit_is_refused_at_once_not_queued(serve: Serve, upstream: Upstream) -> None:
    upstream.behaviour = "hang"
    served = serve(target(upstream.url), limits=Limits(max_in_flight=1))
    _, writer = await send(served, "/v1/chat/completions", {"model": MODEL})
    await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
    answer = await post(served.url, {"model": MODEL, "behave": "instant"})
    assert (answer.status_code, error(answer)["code"], answer.headers["retry-after"]) == (
        503,
        "overloaded",
        "1",
    )
    writer.close()
    await served.quiet()
    assert (await post(served.url, {"model": MODEL, "behave": "instant"})).status_code == 200


@pytest.mark.parametrize(
    "behaviour",
    ["instant", "stream", "leaky", "unauthorized", "redirect", "error500", "drop", "half", "unreachable"],
)
async def test_rows_93_and_94_no_credential_reaches_any_sink(
    serve: Serve,
    upstream: Upstream,
    behaviour: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(0)
    with_secrets_in_url = "http://user:sk-canary-url@127.0.0.1:9"
    served = serve(target(with_secrets_in_url if behaviour == "unreachable" else upstream.url))
    headers = {
        "cookie": "session=sk-canary-client-cookie",
        "x-api-key": "sk-canary-client-x",
        "api-key": "sk-canary-client-y",
        "proxy-authorization": "Basic sk-canary-client-z",
        "openai-organization": "sk-canary-client-org",
    }
    answer = await post(served.url, {"model": MODEL, "behave": behaviour}, **headers)
    record = (await served.recorded())[0]
    await served.quiet()
    sent = "".join(repr(seen.headers) + seen.path for seen in upstream.seen)
    assert "sk-canary-client" not in sent
    assert sent.count(TARGET_KEY) == len(upstream.seen)
    captured = capfd.readouterr()
    metrics = repr([sample for family in served.registry.collect() for sample in family.samples])
    sinks = {
        "body": answer.text,
        "headers": repr(answer.headers.raw),
        "stdout": captured.out,
        "stderr": captured.err,
        "log": caplog.text,
        "record": repr(record),
        "metrics": metrics,
        "table": repr(served.table.targets()) if behaviour != "unreachable" else "",
    }
    assert {name: "sk-canary" in text for name, text in sinks.items()} == dict.fromkeys(sinks, False)
    if behaviour in ("leaky", "unauthorized"):
        assert answer.status_code == (500 if behaviour == "leaky" else 502)
    assert CLIENT_KEY.startswith("sk-canary")

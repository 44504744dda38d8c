"""A client that hangs up ends the work upstream, in every phase and on every route."""

from __future__ import annotations

import asyncio

import pytest

from support.gateway import CLIENT_KEY, MODEL, PATIENCE_S, Serve, send, target
from support.upstream import Upstream


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("behaviour", "stream", "wait_for"),
    [
        ("hang", False, b""),
        ("hang", True, b""),
        ("silent", True, b"w0"),
        ("drip", True, b"w2"),
        ("slow_body", False, b""),
    ],
    ids=["answer awaited", "stream awaited", "silent after the first token", "streaming", "half a document"],
)
@pytest.mark.parametrize("stay_s", [0, 0.2], ids=["at once", "later"])
async def test_hanging_up_ends_the_work_upstream(
    serve: Serve, upstream: Upstream, path: str, behaviour: str, stream: bool, wait_for: bytes, stay_s: float
) -> None:
    upstream.behaviour = behaviour
    served = serve(target(upstream.url, tasks=()))
    reader, writer = await send(served, path, {"model": MODEL, "stream": stream})
    await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
    if wait_for:
        await asyncio.wait_for(reader.readuntil(wait_for), PATIENCE_S)
    await asyncio.sleep(stay_s)
    writer.close()
    await asyncio.wait_for(upstream.seen[0].hung_up.wait(), PATIENCE_S)
    await served.quiet()
    record = (await served.recorded())[0]
    assert record.failure == "client_gone"
    assert record.status == (200 if wait_for else 499)
    assert served.metric("client_cancels_total", model=MODEL) == 1
    assert len(upstream.seen) == 1


async def test_hanging_up_within_the_body_sends_nothing_upstream(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url))
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {CLIENT_KEY}\r\n"
        "content-length: 500\r\n\r\n{".encode()
    )
    await asyncio.sleep(0.05)
    writer.close()
    record = (await served.recorded())[0]
    assert (record.failure, record.status) == ("client_gone", 499)
    assert served.gateway.in_flight == 0
    assert upstream.seen == []


async def test_counts_balance_after_a_storm_of_hang_ups(serve: Serve, upstream: Upstream) -> None:
    served = serve(target(upstream.url, "a"), target(upstream.url, "b"), target("http://127.0.0.1:9", "c"))
    behaviours = ["hang", "drip", "slow", "instant", "stream", "half", "drop", "slow_body", "open_done"]

    async def one(number: int) -> None:
        body = {"model": MODEL, "stream": True, "behave": behaviours[number % len(behaviours)]}
        _, writer = await send(served, "/v1/chat/completions", body)
        await asyncio.sleep(0.003 * (number % 41))
        writer.close()

    await asyncio.gather(*(one(number) for number in range(90)))
    await served.quiet()
    assert [served.table.in_flight(target_id) for target_id in "abc"] == [0, 0, 0]
    assert served.gateway.in_flight == 0
    assert len(await served.recorded(90)) == 90
    async with asyncio.timeout(PATIENCE_S):
        for seen in upstream.seen:
            if b'"hang"' in seen.body or b'"drip"' in seen.body:
                await seen.hung_up.wait()


async def test_the_server_going_down_is_not_taken_for_a_client_leaving(
    serve: Serve, upstream: Upstream
) -> None:
    upstream.behaviour = "hang"
    served = serve(target(upstream.url))
    _, writer = await send(served, "/v1/chat/completions", {"model": MODEL})
    await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
    assert served.server is not None
    served.server.should_exit = True  # uvicorn gives it a second, then cancels the request's task
    await asyncio.wait_for(upstream.seen[0].hung_up.wait(), PATIENCE_S)
    record = (await served.recorded())[0]
    assert record.failure is None
    assert served.table.in_flight("t1") == 0
    writer.close()

"""A small real OpenAI-shaped upstream for gateway tests and the gateway benchmark.

What it does with a request is its ``behaviour``; a request may choose another one with a body field
``"behave"``, so one server serves a whole test file. It speaks real HTTP/1.1 over a real socket (httptools) and
records what reached it and when the gateway hung up.

Run as a program (``python tests/support/upstream.py PORT``) it is the benchmark's upstream, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools

CHUNKS = 50
ANSWER_BYTES = 200


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the gateway closed the connection before the answer was complete."""


def instant_answer() -> bytes:
    """A chat completion of exactly :data:`ANSWER_BYTES` bytes."""
    head, tail = (
        b'{"id":"c1","object":"chat.completion","created":1,"model":"m","choices":'
        b'[{"index":0,"message":{"role":"assistant","content":"',
        b'"},"finish_reason":"stop"}]}',
    )
    return head + b"y" * (ANSWER_BYTES - len(head) - len(tail)) + tail


def event(text: str, finish_reason: str | None = None) -> bytes:
    """One chat chunk as a server-sent event."""
    chunk = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
EVENTS = [event(f"w{i} ") for i in range(CHUNKS)]


def frame(data: bytes) -> bytes:
    """``data`` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One connection; the methods named like a behaviour answer the request that is complete."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpRequestParser(self)
        self.current: Seen | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.upstream.connections += 1
        self.upstream.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.open.discard(self)
        self.transport = None
        if self.current is not None:
            self.current.hung_up.set()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        if self.parser.get_method() == b"GET":
            self.list_models()
            return
        body = b"".join(self.body)
        self.current = Seen(self.url.decode(), self.headers, body)
        behaviour = self.upstream.behaviour
        if self.upstream.record:
            self.upstream.seen.append(self.current)
            self.upstream.arrived.set()
            behaviour = json.loads(body).get("behave", behaviour)
        elif b'"stream":true' in body:
            behaviour = "stream"
        getattr(self, behaviour)()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def finished(self) -> None:
        self.current = None

    def answer(self, status: str, body: bytes, *headers: str, content_type: str = "application/json") -> None:
        lines = (
            f"HTTP/1.1 {status}",
            f"content-type: {content_type}",
            f"content-length: {len(body)}",
            *headers,
        )
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.finished()

    def list_models(self) -> None:
        """One model, ``m``, as a list and alone."""
        model = {"id": "m", "object": "model", "created": 1, "owned_by": "upstream"}
        alone = self.url.endswith(b"/m")
        self.answer("200 OK", json.dumps(model if alone else {"object": "list", "data": [model]}).encode())

    def start_stream(self) -> None:
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def paced(self, pieces: list[bytes], pause_s: float, then: Callable[[], None]) -> None:
        """Write the pieces ``pause_s`` apart (0: one event-loop turn apart), then call ``then``."""
        if self.transport is None:
            return
        if not pieces:
            then()
            return
        self.write(pieces[0])
        if pause_s:
            self.loop.call_later(pause_s, self.paced, pieces[1:], pause_s, then)
        else:
            self.loop.call_soon(self.paced, pieces[1:], pause_s, then)

    # behaviours ------------------------------------------------------------------------------------------------

    def instant(self) -> None:
        """200 with a chat completion of 200 bytes."""
        self.answer("200 OK", self.upstream.answer_body)

    def echo(self) -> None:
        """200 with the request's own bytes."""
        self.answer("200 OK", self.current.body if self.current else b"")

    def embed(self) -> None:
        """200 with one embedding."""
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        self.answer(
            "200 OK", json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()
        )

    def stream(self) -> None:
        """50 events and ``[DONE]``, each its own write."""
        self.start_stream()
        pieces = [*self.upstream.stream_frames, frame(DONE) + b"0\r\n\r\n"]
        self.paced(pieces, 0, self.finished)

    def drip(self) -> None:
        """An endless stream, one event every 50 ms."""
        self.start_stream()
        self.paced([frame(event(f"w{i} ")) for i in range(10_000)], 0.05, self.finished)

    def long_prompt(self) -> None:
        """llama.cpp's stream of a long prompt: progress, a pause of 600 ms, then a token."""
        progress = b'data: {"object":"chat.completion.chunk","choices":[],"prompt_progress":{"total":9}}\n\n'
        self.start_stream()
        self.paced([frame(progress), frame(EVENTS[0] + DONE) + b"0\r\n\r\n"], 0.6, self.finished)

    def odd_chunk(self) -> None:
        """An event stream whose event is JSON, but no chunk."""
        self.start_stream()
        self.write(frame(EVENTS[0] + b"data: []\n\n" + DONE) + b"0\r\n\r\n")
        self.finished()

    def error_event(self) -> None:
        """An event stream that ends with an error, which repeats the credential."""
        key = self.headers["authorization"].removeprefix("Bearer ")
        document = {"error": {"code": 503, "message": f"no room for {key}"}}
        self.start_stream()
        self.write(frame(b"data: " + json.dumps(document).encode() + b"\n\n") + b"0\r\n\r\n")
        self.finished()

    def hang(self) -> None:
        """Accepts the request and never answers."""

    def silent(self) -> None:
        """One event, then silence with the socket open."""
        self.start_stream()
        self.write(frame(EVENTS[0]))

    def slow(self) -> None:
        """The 200-byte answer after 300 ms."""
        self.loop.call_later(0.3, self.instant)

    def slow_body(self) -> None:
        """Headers and half of the answer at once, the rest never."""
        body = self.upstream.answer_body
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        self.write(body[:100])

    def open_done(self) -> None:
        """Three events and ``[DONE]``, but the body never ends."""
        self.start_stream()
        self.write(frame(b"".join(EVENTS[:3]) + DONE))

    def at_limit(self) -> None:
        """Three events, the last of which says that the answer reached its limit."""
        self.start_stream()
        self.write(frame(EVENTS[0] + EVENTS[1] + event("w2 ", "length") + DONE) + b"0\r\n\r\n")
        self.finished()

    def counted(self) -> None:
        """Three events of more tokens than pieces, and the usage that was asked for."""
        usage = b'data: {"object":"chat.completion.chunk","choices":[],"usage":{"completion_tokens":7}}\n\n'
        self.start_stream()
        self.write(frame(b"".join(EVENTS[:3]) + usage + DONE) + b"0\r\n\r\n")
        self.finished()

    def half(self) -> None:
        """Two events and half of a third, then the connection is cut."""
        self.start_stream()
        self.write(frame(EVENTS[0]) + frame(EVENTS[1]) + frame(EVENTS[2][:40]))
        self.finished()
        self.loop.call_later(0.05, self.close)

    def half_no_length(self) -> None:
        """Two events of a body that only the end of the connection delimits, and no ``[DONE]``."""
        self.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        self.write(EVENTS[0] + EVENTS[1])
        self.finished()
        self.loop.call_later(0.05, self.close)

    def half_json(self) -> None:
        """Half of a JSON answer, then the connection is cut."""
        self.slow_body()
        self.finished()
        self.loop.call_later(0.05, self.close)

    def drop(self) -> None:
        """Reads the whole request, then cuts the connection without a byte."""
        self.finished()
        self.close()

    def error500(self) -> None:
        """500 in plain text, as some servers do."""
        self.answer("500 Internal Server Error", b"worker exploded", content_type="text/plain")

    def error400(self) -> None:
        """400 in an engine's own words, a valid OpenAI envelope."""
        body = b'{"error":{"message":"too many tokens","type":"BadRequestError","param":null,"code":400}}'
        self.answer("400 Bad Request", body)

    def refusing(self) -> None:
        """400 with the answer's body."""
        self.answer("400 Bad Request", self.upstream.answer_body, "x-engine-note: kept")

    def unauthorized(self) -> None:
        """401: the upstream does not accept the gateway's credential, and repeats it."""
        self.answer("401 Unauthorized", f"bad key {self.headers.get('authorization')}".encode())

    def redirect(self) -> None:
        """307 to somewhere else."""
        self.answer("307 Temporary Redirect", b"", "location: http://127.0.0.1:9/stolen")

    def leaky(self) -> None:
        """500 that repeats every request header, in the body and in headers."""
        headers = self.headers
        lines = [f"x-saw-{name}: {value}" for name, value in headers.items()]
        self.answer("500 Internal Server Error", json.dumps({"error": headers}).encode(), *lines)

    def hop_by_hop(self) -> None:
        """200 with headers that belong to this connection only, and private ones."""
        self.answer(
            "200 OK",
            self.upstream.answer_body,
            "connection: keep-alive, x-private-hop",
            "keep-alive: timeout=5",
            "x-private-hop: 1",
            "set-cookie: session=upstream",
            "server: engine/1",
            "x-engine-note: kept",
        )


class Upstream:
    """A listening server; ``async with Upstream() as up`` gives one on a free loopback port."""

    def __init__(self, behaviour: str = "instant", *, record: bool = True) -> None:
        self.behaviour = behaviour
        self.record = record
        self.seen: list[Seen] = []
        self.arrived = asyncio.Event()
        self.connections = 0
        self.open: set[Connection] = set()
        self.answer_body = instant_answer()
        self.stream_frames = [frame(chunk) for chunk in EVENTS]
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for connection in list(self.open):
            connection.close()
        await self._server.wait_closed()

    async def __aenter__(self) -> Upstream:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


async def _serve_for_benchmark(port: int) -> None:
    upstream = Upstream(record=False)
    await upstream.start(port)
    print(upstream.port, flush=True)  # noqa: T201 (the benchmark reads the port from here)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve_for_benchmark(int(sys.argv[1]) if len(sys.argv) > 1 else 0))

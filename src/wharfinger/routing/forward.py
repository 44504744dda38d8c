"""Carries one request to a target and its answer back."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp
import structlog

from wharfinger.routing import errors, sse
from wharfinger.routing.asgi import send_bytes
from wharfinger.routing.body import Peek, replace_model
from wharfinger.routing.collect import COLLECTED_ROUTES, Collector, StreamFailed, as_stream
from wharfinger.routing.errors import GatewayError, UpstreamError
from wharfinger.routing.exchange import Exchange, Limits
from wharfinger.routing.headers import towards_client
from wharfinger.routing.metrics import GatewayMetrics
from wharfinger.routing.refused import CONTEXT_EXCEEDED, UPSTREAM_STATUS, from_body
from wharfinger.routing.targets import RouteTable, Target
from wharfinger.routing.upstream import CouldNotConnect, Disconnected, UpstreamClient, read_some
from wharfinger.routing.watch import Cause, Watch

MAX_TARGETS_TRIED = 3
BUFFERED_BYTES = 1 << 20
"""An answer up to this size is sent when it is complete, so a broken one can still become a proper error."""
ERROR_BYTES = 1 << 20
RENAME_INLINE_BYTES = 256 * 1024
"""A longer body is renamed in a thread, so that the event loop does not stand still for it."""
END_OF_BODY_S = 0.2
"""After ``[DONE]``: how long the endpoint may take to end the body and keep its connection in the pool."""

TASK_OF_ROUTE = {
    "/v1/chat/completions": "TextGeneration",
    "/v1/completions": "TextGeneration",
    "/v1/embeddings": "TextEmbedding",
}
PROMPT_OF_ROUTE = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
}

log = structlog.get_logger(__name__)


class Forwarder:
    """Holds what every request needs. Its one public method is run once per request, by the request's own task."""

    def __init__(
        self, table: RouteTable, client: UpstreamClient, metrics: GatewayMetrics, limits: Limits
    ) -> None:
        self._table = table
        self._client = client
        self._metrics = metrics
        self._limits = limits

    async def forward(self, exchange: Exchange, body: bytes, peek: Peek) -> None:
        """Send the request to a target of its model and relay the answer, whatever becomes of it.

        Raises:
            GatewayError: nothing was sent to the client yet, and this is what to answer.
        """
        exchange.target = self._table.acquire(peek.model)
        if exchange.target is None:
            raise errors.not_running(peek.model, self._table.models())
        exchange.model, exchange.stream = peek.model, peek.stream
        watch = Watch(exchange.receive, exchange.send, self._limits.first_byte_timeout_s)
        response: aiohttp.ClientResponse | None = None
        failure: UpstreamError | None = None
        try:
            check_request(exchange.route, peek, exchange.target)
            response = await self._open(exchange, body, peek)
            await self._relay(exchange, response, watch)
        except asyncio.CancelledError:
            if watch.cause is None:  # not ours: the server is going down
                raise
            watch.stop()
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
            failure = self._interrupted(exchange, watch)
        except Disconnected as error:
            failure = errors.disconnected(peek.model)
            self._note(exchange, failure.reason, str(error))
        finally:
            watch.stop()
            if response is not None:
                response.close()
            if exchange.target is not None:
                self._table.release(exchange.target)
        if failure is not None:
            await self._end_with(exchange, failure)

    async def _open(self, exchange: Exchange, body: bytes, peek: Peek) -> aiohttp.ClientResponse:
        """The answer's head, from the first target a connection can be made to.

        Once a connection stands the request is sent on it, and then never again.
        """
        tried: list[str] = []
        while (target := exchange.target) is not None:
            try:
                renamed = body
                if target.upstream_model != peek.model:
                    renamed = await _rename(body, target.upstream_model)
                exchange.collected = (
                    target.collects and peek.plain and not peek.stream and exchange.route in COLLECTED_ROUTES
                )
                if exchange.collected:
                    renamed = as_stream(renamed)
                return await self._client.post(target, exchange.route, renamed, exchange.identity)
            except CouldNotConnect as error:
                self._note(exchange, "upstream_unreachable", str(error))
                self._table.suspect(target)
                tried.append(target.target_id)
                exchange.target = None
                self._table.release(target)
                if len(tried) < MAX_TARGETS_TRIED:
                    exchange.target = self._table.acquire(peek.model, tried)
        raise errors.unreachable(peek.model, len(tried))

    async def _relay(self, exchange: Exchange, response: aiohttp.ClientResponse, watch: Watch) -> None:
        if not 200 <= response.status < 300:
            await self._relay_error(exchange, response, watch)
        elif response.headers.get("Content-Type", "").startswith("text/event-stream"):
            relay = self._relay_collected if exchange.collected else self._relay_events
            await relay(exchange, response, watch)
        else:
            await self._relay_document(exchange, response, watch)

    async def _relay_document(
        self, exchange: Exchange, response: aiohttp.ClientResponse, watch: Watch
    ) -> None:
        watch.body_begins(self._limits.idle_timeout_s)
        pieces: list[bytes] = []
        size_bytes = 0
        while piece := await read_some(response):
            watch.last_byte_s = watch.now_s()
            pieces.append(piece)
            size_bytes += len(piece)
            if size_bytes > BUFFERED_BYTES:
                await self._relay_large(exchange, response, watch, b"".join(pieces))
                return
        watch.stop()
        await self._send_whole(exchange, response, b"".join(pieces))

    async def _relay_large(
        self, exchange: Exchange, response: aiohttp.ClientResponse, watch: Watch, begun: bytes
    ) -> None:
        """Pass a long document on as it comes. If it breaks, the client sees its connection cut."""
        headers = self._client_headers(exchange, response)
        length = response.headers.get("Content-Length")
        if length is not None:
            headers.append((b"content-length", length.encode("ascii")))
        await self._start(exchange, response.status, headers)
        await exchange.send({"type": "http.response.body", "body": begun, "more_body": True})
        while piece := await read_some(response):
            watch.last_byte_s = watch.now_s()
            await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
        watch.stop()
        await exchange.send({"type": "http.response.body", "body": b""})

    async def _relay_events(self, exchange: Exchange, response: aiohttp.ClientResponse, watch: Watch) -> None:
        """Pass whole events on, byte for byte, up to and including ``[DONE]``."""
        await self._start(exchange, response.status, self._client_headers(exchange, response))
        exchange.events_sent = True
        watch.body_begins(self._limits.idle_timeout_s, self._limits.heartbeat_s)
        send = exchange.send
        held = b""
        while True:
            watch.at_boundary = not exchange.mid_event
            chunk = await read_some(response)
            if not chunk:
                break
            watch.at_boundary = False
            watch.last_byte_s = watch.now_s()
            if exchange.ttft_s is None:
                exchange.ttft_s = time.perf_counter() - exchange.started_s
            if held:
                chunk = held + chunk
                held = b""
            if not chunk.endswith(b"\n\n"):
                chunk, held = sse.split_events(chunk)
                if not chunk:
                    continue
                exchange.mid_event = not chunk.endswith((b"\n\n", b"\r\n\r\n"))
            else:
                exchange.mid_event = False
            if sse.ends_stream(chunk):
                watch.stop()
                await send({"type": "http.response.body", "body": chunk})
                exchange.ended_s = time.perf_counter()
                await _await_end_of_body(response)
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if "Transfer-Encoding" not in response.headers and "Content-Length" not in response.headers:
            # Only the end of the connection delimited this body, so without [DONE] it is not known to be whole.
            raise Disconnected("end of connection without [DONE]")
        watch.stop()
        await send({"type": "http.response.body", "body": held})

    async def _relay_collected(
        self, exchange: Exchange, response: aiohttp.ClientResponse, watch: Watch
    ) -> None:
        """Put a stream together to the one document that the client asked for.

        Until the answer begins the time to the first byte counts, as it does for a document: a long prompt is silent.
        """
        collector = Collector()
        held = b""
        ended = False
        try:
            while not ended:
                chunk = await read_some(response)
                if not chunk:
                    raise Disconnected("end of the stream without [DONE]")
                watch.last_byte_s = watch.now_s()
                waited = not collector.answering
                events, held = sse.split_events(held + chunk)
                ended = collector.feed(events)
                if waited and collector.answering:
                    watch.body_begins(self._limits.idle_timeout_s)
        except StreamFailed as error:
            watch.stop()
            raise self._refusal(exchange, response, error.status, error.body) from None
        except ValueError as error:
            failure = errors.malformed(exchange.model or "")
            raise self._noted(exchange, failure, str(error)) from None
        watch.stop()
        headers = [pair for pair in self._client_headers(exchange, response) if pair[0] != b"content-type"]
        exchange.status, exchange.response_started = 200, True
        await send_bytes(
            exchange.send, 200, collector.document(), [(b"content-type", b"application/json"), *headers]
        )
        exchange.ended_s = time.perf_counter()
        await _await_end_of_body(response)

    async def _relay_error(self, exchange: Exchange, response: aiohttp.ClientResponse, watch: Watch) -> None:
        """Pass an error on in OpenAI's envelope, with the endpoint's own words in it."""
        watch.body_begins(self._limits.idle_timeout_s)
        body = b""
        while len(body) < ERROR_BYTES and (piece := await read_some(response)):
            body += piece
        watch.stop()
        raise self._refusal(exchange, response, response.status, body)

    def _refusal(
        self, exchange: Exchange, response: aiohttp.ClientResponse, status: int, body: bytes
    ) -> GatewayError:
        """What the client is told of an endpoint's refusal, which is noted."""
        model = exchange.model
        if status in (401, 403):
            message = (
                f"The endpoint of {model!r} refused the credential this gateway reaches it with ({status})."
            )
            return self._noted(
                exchange, UpstreamError(502, "upstream_refused_credential", message), str(status)
            )
        if status < 400:
            message = f"The endpoint of {model!r} answered {status}; redirects are not followed."
            return self._noted(exchange, UpstreamError(502, "upstream_redirect", message), str(status))
        exchange.failure = UPSTREAM_STATUS
        if status >= 500:
            self._note(exchange, UPSTREAM_STATUS, str(status))
        key = exchange.target.api_key if exchange.target is not None else None
        if key:
            body = body.replace(key.encode(), b"[redacted]")
        return from_body(model or "", status, body, self._error_headers(exchange, response))

    async def _send_whole(self, exchange: Exchange, response: aiohttp.ClientResponse, body: bytes) -> None:
        exchange.status, exchange.response_started = response.status, True
        await send_bytes(exchange.send, response.status, body, self._client_headers(exchange, response))

    async def _start(self, exchange: Exchange, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        exchange.status, exchange.response_started = status, True
        await exchange.send({"type": "http.response.start", "status": status, "headers": headers})

    def _client_headers(
        self, exchange: Exchange, response: aiohttp.ClientResponse
    ) -> list[tuple[bytes, bytes]]:
        assert exchange.target is not None
        return towards_client(response.raw_headers, exchange.target, exchange.identity.request_id)

    def _error_headers(
        self, exchange: Exchange, response: aiohttp.ClientResponse
    ) -> list[tuple[bytes, bytes]]:
        """The endpoint's headers that hold for an answer written anew."""
        anew = (b"x-request-id", b"content-type", b"content-encoding")
        return [pair for pair in self._client_headers(exchange, response) if pair[0] not in anew]

    def _interrupted(self, exchange: Exchange, watch: Watch) -> UpstreamError | None:
        if watch.cause is Cause.CLIENT_GONE:
            exchange.failure = Cause.CLIENT_GONE
            self._metrics.client_left(exchange.model or "")
            return None
        failure = errors.silent(exchange.model or "", watch.silence_limit_s or 0.0)
        self._note(exchange, failure.reason, f"{watch.silence_limit_s} s")
        return failure

    async def _end_with(self, exchange: Exchange, failure: UpstreamError) -> None:
        """Tell the client that its answer failed, in the way that is still open."""
        if not exchange.response_started:
            raise failure
        if exchange.events_sent:
            separator = b"\n\n" if exchange.mid_event else b""
            await exchange.send({"type": "http.response.body", "body": separator + sse.event(failure.body)})
        # A long document that broke: returning without its end makes the server cut the connection.

    def _noted(self, exchange: Exchange, failure: UpstreamError, detail: str) -> UpstreamError:
        self._note(exchange, failure.reason, detail)
        return failure

    def _note(self, exchange: Exchange, reason: str, detail: str) -> None:
        exchange.failure = reason
        self._metrics.upstream_failed(exchange.model or "", reason)
        target_id = exchange.target.target_id if exchange.target is not None else None
        log.warning(
            "gateway_upstream_failed",
            reason=reason,
            detail=detail,
            model=exchange.model,
            target_id=target_id,
            request_id=exchange.identity.request_id,
        )


def check_request(route: str, peek: Peek, target: Target) -> None:
    """Refuse what the target can be known not to serve.

    Raises:
        GatewayError: 400 when the model serves another task, or more tokens are asked for than its context holds.
    """
    task = TASK_OF_ROUTE[route]
    if target.tasks and task not in target.tasks:
        fitting = [path for path, served in TASK_OF_ROUTE.items() if served in target.tasks]
        where = f"use {' or '.join(fitting)}" if fitting else "no route of this gateway serves that"
        message = f"The model {peek.model!r} serves {', '.join(target.tasks)}, not {task}: {where}."
        raise GatewayError(400, "unsupported_task", message, param="model")
    asked, context = peek.max_tokens, target.context_tokens
    if task == "TextGeneration" and asked is not None and context is not None and asked >= context:
        message = (
            f"{CONTEXT_EXCEEDED}: {peek.max_tokens_param} is {asked}, but the context of {peek.model!r} is "
            f"{context} tokens, prompt included."
        )
        raise GatewayError(400, CONTEXT_EXCEEDED, message, param=peek.max_tokens_param)


async def _rename(body: bytes, upstream_model: str) -> bytes:
    if len(body) <= RENAME_INLINE_BYTES:
        return replace_model(body, upstream_model)
    return await asyncio.to_thread(replace_model, body, upstream_model)


async def _await_end_of_body(response: aiohttp.ClientResponse) -> None:
    """Let the body end, so that its connection can be used again; the caller closes it if that takes too long."""
    if not response.content.at_eof():
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(END_OF_BODY_S):
                while await read_some(response):
                    pass

"""One proof of an endpoint: healthy, closed to strangers, the right model, the whole window; each flaw has its word."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from wharfinger.runtimes.inspect import MAX_MODELS_BYTES, Inspection, Verdict, inspect

KEY = "key-of-the-endpoint"
ONE = {"data": [{"id": "tiny", "meta": {"n_ctx": 512}}]}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Look = Callable[..., Awaitable[Inspection]]


class Upstream:
    """An endpoint on loopback that demands its key; ``answers`` replaces what a path says."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, Handler] = {}
        self.seen: list[tuple[str, str | None]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, request.headers.get("Authorization")))
        if request.path in self.answers:
            return await self.answers[request.path](request)
        if request.path == "/health":
            return web.Response()
        return guarded(request, web.json_response(ONE))

    def says(self, path: str, **response: Any) -> None:
        """What holders of the key get at a path; without it the endpoint refuses."""

        async def answer(request: web.Request) -> web.StreamResponse:
            return (
                web.Response(**response) if path == "/health" else guarded(request, web.Response(**response))
            )

        self.answers[path] = answer


def guarded(request: web.Request, response: web.Response) -> web.Response:
    return response if request.headers.get("Authorization") == f"Bearer {KEY}" else web.Response(status=401)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def look(upstream: Upstream) -> AsyncIterator[Look]:
    """Inspects the upstream as the endpoint of ``tiny``."""
    async with aiohttp.ClientSession() as session:

        async def inspected(**changes: Any) -> Inspection:
            base_url = changes.pop("base_url", upstream.url)
            return await inspect(session, base_url, "tiny", **{"api_key": KEY, **changes})

        yield inspected


async def test_a_ready_endpoint_is_asked_with_and_without_the_key(upstream: Upstream, look: Look) -> None:
    found = await look(context_tokens=512)
    assert (found.verdict, found.stage, found.reason) == (Verdict.READY, "models", "ok")
    assert (found.models, found.max_model_len) == (("tiny",), 512)
    bearer = f"Bearer {KEY}"
    assert upstream.seen == [("/health", bearer), ("/v1/models", None), ("/v1/models", bearer)]


async def test_an_endpoint_without_a_key_is_not_asked_for_one(upstream: Upstream, look: Look) -> None:
    async def open_to_all(_: web.Request) -> web.Response:
        return web.json_response(
            {"data": [{"id": "tiny", "max_model_len": 4096}, {"id": "also"}, {"id": ""}]}
        )

    upstream.answers["/v1/models"] = open_to_all
    found = await look(api_key=None)
    assert (found.verdict, found.models, found.max_model_len) == (Verdict.READY, ("also", "tiny"), 4096)
    assert upstream.seen == [("/health", None), ("/v1/models", None)]
    wrong = await look()
    assert (wrong.verdict, wrong.reason) == (Verdict.WRONG, "endpoint_open")
    assert wrong.detail == "the endpoint answered 200 without its API key; it must refuse"


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        ([], "model_mismatch", "the endpoint serves nothing, not tiny"),
        ([{"id": "b"}, {"id": "a"}], "model_mismatch", "the endpoint serves a, b, not tiny"),
        (
            [{"id": "tiny", "meta": {"n_ctx": 511}}],
            "window_too_small",
            "the engine gives a request 511 tokens, not the 512 that were placed",
        ),
        (
            [{"id": "tiny", "max_model_len": 256}],
            "window_too_small",
            "the engine gives a request 256 tokens, not the 512 that were placed",
        ),
    ],
)
async def test_what_is_served_must_be_what_was_placed(
    data: list[object], reason: str, detail: str, upstream: Upstream, look: Look
) -> None:
    upstream.says("/v1/models", text=json.dumps({"data": data}))
    found = await look(context_tokens=512)
    assert (found.verdict, found.stage, found.reason, found.detail) == (
        Verdict.WRONG,
        "models",
        reason,
        detail,
    )


async def test_a_long_list_of_models_is_told_in_short(upstream: Upstream, look: Look) -> None:
    names = [f"m{number:04}" for number in range(3000)]
    upstream.says("/v1/models", text=json.dumps({"data": [{"id": name} for name in names]}))
    found = await look()
    shown = "m0000, m0001, m0002, m0003, m0004, m0005, m0006, m0007, m0008, m0009"
    assert found.detail == f"the endpoint serves {shown} and 2990 more, not tiny"
    assert found.models == tuple(names)
    upstream.says("/v1/models", text=json.dumps({"data": [{"id": "x" * 100_000}]}))
    assert (await look()).detail == f"the endpoint serves {'x' * 99}…, not tiny"


@pytest.mark.parametrize("meta", [[], [1], "x", 7, None, {"n_ctx": "many"}])
async def test_odd_metadata_of_a_model_is_no_metadata(meta: object, upstream: Upstream, look: Look) -> None:
    upstream.says("/v1/models", text=json.dumps({"data": [{"id": "tiny", "meta": meta}]}))
    found = await look(context_tokens=512)
    assert (found.verdict, found.max_model_len) == (Verdict.READY, None)


@pytest.mark.parametrize(
    ("path", "response", "reason"),
    [
        ("/health", {"status": 503}, "http_503"),
        ("/health", {"status": 401}, "unauthorized"),
        ("/v1/models", {"status": 404}, "http_404"),
        ("/v1/models", {"status": 403}, "unauthorized"),
        ("/v1/models", {"body": b"\xff\xfe{"}, "bad_json"),
        ("/v1/models", {"text": "[]"}, "bad_json"),
        ("/v1/models", {"text": '{"data": 7}'}, "bad_json"),
        ("/v1/models", {"text": '{"data": {}}'}, "bad_json"),
        ("/v1/models", {"text": '{"data": "abc"}'}, "bad_json"),
        ("/v1/models", {"text": '{"data": [1]}'}, "bad_json"),
        ("/v1/models", {"text": '{"data": [{"id": "tiny"}, null]}'}, "bad_json"),
        ("/v1/models", {"text": "[" * 100_000}, "bad_json"),
        ("/v1/models", {"body": b" " * (MAX_MODELS_BYTES + 1)}, "models_too_large"),
    ],
)
async def test_an_endpoint_that_may_yet_become_ready(
    path: str, response: dict[str, Any], reason: str, upstream: Upstream, look: Look
) -> None:
    upstream.says(path, **response)
    found = await look()
    stage = "health" if path == "/health" else "models"
    assert (found.verdict, found.stage, found.reason) == (Verdict.NOT_READY, stage, reason)
    assert found.detail == f"the endpoint is not ready: {reason} at {stage}"


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_a_redirect_is_not_followed_and_the_key_stays_here(
    path: str, upstream: Upstream, look: Look
) -> None:
    upstream.says(path, status=307, headers={"Location": f"{upstream.url}/elsewhere"})
    found = await look()
    assert (found.verdict, found.reason) == (Verdict.NOT_READY, "redirect")
    assert "/elsewhere" not in {seen for seen, _ in upstream.seen}


async def test_an_error_without_the_key_is_no_open_endpoint(upstream: Upstream, look: Look) -> None:
    async def starting(_: web.Request) -> web.Response:
        return web.Response(status=503)

    upstream.answers["/v1/models"] = starting
    assert (await look()).reason == "http_503"


async def test_an_endpoint_that_hangs_or_breaks_off(upstream: Upstream, look: Look) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def break_off(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    upstream.answers["/health"] = hang
    found = await look(timeout_s=0.05)
    assert (found.verdict, found.stage, found.reason) == (Verdict.NOT_READY, "health", "timeout")
    upstream.answers = {"/v1/models": break_off}
    found = await look()
    assert (found.verdict, found.stage, found.reason) == (Verdict.NOT_READY, "models", "broken_off")


async def test_a_port_where_nobody_listens_refuses(look: Look) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        found = await look(base_url=f"http://127.0.0.1:{holder.getsockname()[1]}")
    assert (found.verdict, found.stage, found.reason) == (Verdict.NOT_READY, "health", "refused")


async def test_a_machine_without_free_descriptors_is_not_a_verdict_on_the_endpoint(
    upstream: Upstream,
) -> None:
    class NoSockets(aiohttp.TCPConnector):
        async def connect(self, *_: object, **__: object) -> Any:
            raise OSError(24, "Too many open files")

    async with aiohttp.ClientSession(connector=NoSockets()) as session:
        found = await inspect(session, upstream.url, "tiny", api_key=KEY)
    assert (found.verdict, found.reason) == (Verdict.NOT_READY, "broken_off")

"""What goes wrong inside the supervisor itself, and endpoints that answer oddly, end a runner and wedge nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import psutil
import pytest
from aiohttp import web

from wharfinger.fleet.agent import RunnerReport, RunnerSpec, RunnerState, StopDeadlines
from wharfinger.fleet.process_group import ProcessIdentity, group_members, signal_group
from wharfinger.fleet.readiness import NotServing, prove
from wharfinger.fleet.supervisor import Supervisor

SHORT = StopDeadlines(ask_s=0.3, terminate_s=1.0, kill_s=30)
SECRET = "sk-canary-91ab"
Answer = Callable[[web.Request], web.Response]


async def ended(supervisor: Supervisor) -> RunnerReport:
    report = supervisor.report
    async with asyncio.timeout(60):
        while not report.state.ended:
            report = await supervisor.wait_change(report, 1.0)
    return report


def no_longer_works(*_: object) -> bytes:
    raise ZeroDivisionError(SECRET)


async def test_an_error_in_driving_ends_the_runner_and_names_only_its_type(
    misbehaving: Callable[..., Supervisor],
) -> None:
    supervisor = misbehaving(
        "loading", model_path="/no\0path"
    )  # which the system call refuses with ValueError
    await supervisor.start()
    assert supervisor.report.pid is not None
    identity = ProcessIdentity(pid=supervisor.report.pid, created_unix_s=0)
    report = await ended(supervisor)
    assert (report.state, report.error_code) == (RunnerState.FAILED, "internal_error")
    assert report.error_message == "the control plane's own driving of the runner broke (ValueError)"
    assert report.exit_code == -signal.SIGKILL
    assert group_members(identity) == []


async def test_a_status_line_that_cannot_be_read_ends_the_runner(
    misbehaving: Callable[..., Supervisor],
) -> None:
    supervisor = misbehaving("babbling")
    await supervisor.start()
    report = await ended(supervisor)
    assert (report.state, report.error_code) == (RunnerState.FAILED, "internal_error")
    assert report.error_message == "the control plane's own reading of its status broke (JSONDecodeError)"
    assert report.exit_code == -signal.SIGKILL


async def test_an_error_in_watching_still_ends_the_runner_and_every_wait_for_it(
    misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = misbehaving("loading")
    await supervisor.start()
    monkeypatch.setattr(psutil, "pids", no_longer_works)
    pid = supervisor.report.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    report = await ended(supervisor)
    assert (report.state, report.error_code) == (RunnerState.FAILED, "internal_error")
    assert report.error_message == "the control plane's own watching of the runner broke (ZeroDivisionError)"
    assert report.exit_code == -signal.SIGTERM
    async with asyncio.timeout(30):
        assert await supervisor.stop(SHORT) == report


async def test_an_error_in_watching_does_not_wedge_a_stop(
    misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = misbehaving("loading")
    await supervisor.start()
    monkeypatch.setattr(psutil, "pids", no_longer_works)
    async with asyncio.timeout(30):
        report = await supervisor.stop(SHORT)
    assert (report.state, report.exit_code) == (RunnerState.SHUTDOWN, -signal.SIGTERM)


async def test_a_stop_that_could_not_end_the_runner_can_be_tried_again(
    misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = misbehaving("loading")
    await supervisor.start()
    with monkeypatch.context() as broken:
        broken.setattr(os, "killpg", no_longer_works)
        with pytest.raises(ZeroDivisionError):
            await supervisor.stop(SHORT)
    report = await supervisor.stop(SHORT)
    assert report.state is RunnerState.SHUTDOWN


def test_a_group_that_may_not_be_signalled_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    assert signal_group(1, signal.SIGTERM) is False


Serve = Callable[[Answer], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves one answer, also ``/health``, to whoever has a key, on loopback; gives the base URL."""
    runners: list[web.AppRunner] = []

    async def start(answer: Answer) -> str:
        async def handle(request: web.Request) -> web.Response:
            if "Authorization" not in request.headers:
                return web.Response(status=401)
            return answer(request)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def proven(base_url: str, spec: RunnerSpec, deadline_s: float = 10) -> None:
    async with aiohttp.ClientSession() as session:
        await prove(session, base_url, spec, deadline_s)


async def test_an_endpoint_that_turns_healthy_is_proven_and_computes_once(
    serve: Serve, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    paths: list[str] = []

    def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        if request.path == "/health":
            return web.Response(status=503 if len(paths) < 3 else 200)
        return web.json_response({"data": [{"id": "tiny"}]})

    await proven(await serve(answer), tiny_spec())
    assert paths == ["/health", "/health", "/health", "/v1/models", "/v1/completions"]


@pytest.mark.parametrize(
    ("served", "code"),
    [({"id": "other"}, "model_mismatch"), ({"id": "tiny", "max_model_len": 1}, "window_too_small")],
)
async def test_the_wrong_endpoint_is_told_at_once(
    served: dict[str, object], code: str, serve: Serve, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    url = await serve(lambda _: web.json_response({"data": [served]}))
    with pytest.raises(NotServing) as wrong:
        await proven(url, tiny_spec())
    assert wrong.value.code == code


async def test_an_endpoint_that_never_makes_sense_is_wedged_and_says_why(
    serve: Serve, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    url = await serve(lambda _: web.Response(body=b"\xff\xfe{", content_type="application/json"))
    with pytest.raises(NotServing) as wedged:
        await proven(url, tiny_spec(), deadline_s=0.3)
    assert (wedged.value.code, str(wedged.value)) == (
        "runner_wedged",
        "the runner loaded but did not serve within 0.3 s and was ended: the endpoint is not ready: bad_json at models",
    )


async def test_a_first_computation_that_fails_is_told_although_it_is_no_text(
    serve: Serve, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.Response(status=500, body=b"bad \xff", content_type="text/plain")
        return web.json_response({"data": [{"id": "tiny"}]})

    with pytest.raises(NotServing, match="answered 500: bad \ufffd") as failed:
        await proven(await serve(answer), tiny_spec())
    assert failed.value.code == "warmup_failed"


class NoSockets(aiohttp.TCPConnector):
    """A machine that has no file descriptor left for another connection, for some calls."""

    def __init__(self, refused: range) -> None:
        super().__init__()
        self.calls = 0
        self.refused = refused

    async def connect(self, *args: object, **kwargs: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.calls += 1
        if self.calls in self.refused:
            raise OSError(24, "Too many open files")
        return await super().connect(*args, **kwargs)  # pyright: ignore[reportArgumentType]


async def test_a_plain_system_error_is_asked_again_but_not_in_the_first_computation(
    serve: Serve, tiny_spec: Callable[..., RunnerSpec]
) -> None:
    url = await serve(lambda _: web.json_response({"data": [{"id": "tiny"}]}))
    async with aiohttp.ClientSession(connector=NoSockets(range(1, 3))) as session:
        await prove(session, url, tiny_spec(), 10)
    asked_three_times = range(4, 5)
    async with aiohttp.ClientSession(connector=NoSockets(asked_three_times)) as session:
        with pytest.raises(NotServing) as failed:
            await prove(session, url, tiny_spec(), 10)
    assert (failed.value.code, str(failed.value)) == (
        "warmup_failed",
        "the endpoint broke off its first answer: [Errno 24] Too many open files",
    )

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

from wharfinger.fleet.agent import RunnerReport, RunnerState, StopDeadlines
from wharfinger.fleet.process_group import ProcessIdentity, group_members, signal_group
from wharfinger.fleet.readiness import Endpoint, NotServing
from wharfinger.fleet.supervisor import Supervisor

SHORT = StopDeadlines(ask_s=0.3, terminate_s=0.3, kill_s=5)
SECRET = "sk-canary-91ab"
Answer = Callable[[web.Request], web.Response]
Serve = Callable[[Answer], Awaitable[Endpoint]]


async def ended(supervisor: Supervisor) -> RunnerReport:
    report = supervisor.report
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(1):
        assert await supervisor.stop(SHORT) == report


async def test_an_error_in_watching_does_not_wedge_a_stop(
    misbehaving: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = misbehaving("loading")
    await supervisor.start()
    monkeypatch.setattr(psutil, "pids", no_longer_works)
    async with asyncio.timeout(5):
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


@pytest.fixture
async def endpoint() -> AsyncIterator[Serve]:
    """Serves one answer to whoever has the key, on loopback."""
    runners: list[web.AppRunner] = []
    async with aiohttp.ClientSession() as session:

        async def serve(answer: Answer) -> Endpoint:
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
            _, port = runners[-1].addresses[0]
            return Endpoint(session, f"http://127.0.0.1:{port}", "key")

        yield serve
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize("meta", [[], [1], "x", 7, None, {"n_ctx": "many"}])
async def test_odd_metadata_of_a_model_is_no_metadata(meta: object, endpoint: Serve) -> None:
    probe = await endpoint(lambda _: web.json_response({"data": [{"id": "tiny", "meta": meta}]}))
    await probe.check_identity("tiny", 512)


async def test_bytes_that_are_no_text_are_a_mismatch_or_a_failed_warm_up(
    endpoint: Serve,
) -> None:
    probe = await endpoint(lambda _: web.Response(body=b"\xff\xfe{", content_type="application/json"))
    with pytest.raises(NotServing) as wrong:
        await probe.check_identity("tiny", 512)
    assert (wrong.value.code, str(wrong.value)) == (
        "model_mismatch",
        "/v1/models answered 200 without a list of models",
    )
    probe = await endpoint(lambda _: web.Response(status=500, body=b"bad \xff", content_type="text/plain"))
    with pytest.raises(NotServing, match="answered 500: bad \ufffd") as failed:
        await probe.warm_up("tiny", embedding=False)
    assert failed.value.code == "warmup_failed"


class NoSockets(aiohttp.TCPConnector):
    """A machine that has no file descriptor left for another connection, for a while."""

    refusals = 2

    async def connect(self, *args: object, **kwargs: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.refusals:
            self.refusals -= 1
            raise OSError(24, "Too many open files")
        return await super().connect(*args, **kwargs)  # pyright: ignore[reportArgumentType]


async def test_a_plain_system_error_is_asked_again_while_waiting_for_health(
    endpoint: Serve,
) -> None:
    healthy = await endpoint(lambda _: web.Response())
    async with aiohttp.ClientSession(
        connector=NoSockets(), headers={"Authorization": "Bearer key"}
    ) as session:
        probe = Endpoint(session, healthy._base_url, "key")
        async with asyncio.timeout(5):
            await probe.wait_healthy()


async def test_a_plain_system_error_in_the_first_answer_is_a_failed_warm_up(
    misbehaving: Callable[..., Supervisor],
) -> None:
    class Refusing(NoSockets):
        refusals = 1_000_000

    async def healthy(_: Endpoint) -> None:
        return

    async with aiohttp.ClientSession(connector=Refusing()) as session:
        supervisor = misbehaving("mute", session=session)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Endpoint, "wait_healthy", healthy)
            await supervisor.start()
            report = await ended(supervisor)
    assert (report.state, report.error_code) == (RunnerState.FAILED, "warmup_failed")
    assert report.error_message == ("the endpoint broke off its first answer: [Errno 24] Too many open files")

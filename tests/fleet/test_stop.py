"""Ending runners, the willing and the unwilling: real processes throughout."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.local_node import demo_spec, wait_for_state
from wharfinger.fleet import local
from wharfinger.fleet.agent import RunnerReport, RunnerSpec, RunnerState, StopDeadlines
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.process_group import ProcessIdentity, group_members
from wharfinger.fleet.supervisor import Supervisor

SHORT = StopDeadlines(ask_s=0.3, terminate_s=1.0, kill_s=30)
MakeSpec = Callable[..., RunnerSpec]


async def ended(supervisor: Supervisor, within_s: float = 60.0) -> RunnerReport:
    report = supervisor.report
    async with asyncio.timeout(within_s):
        while not report.state.ended:
            report = await supervisor.wait_change(report, 1.0)
    return report


async def in_state(supervisor: Supervisor, state: RunnerState) -> RunnerReport:
    report = supervisor.report
    async with asyncio.timeout(60):
        while report.state is not state:
            assert not report.state.ended, report
            report = await supervisor.wait_change(report, 1.0)
    return report


def group_of(report: RunnerReport) -> ProcessIdentity:
    assert report.pid is not None
    identity = ProcessIdentity.of(report.pid)
    assert identity is not None
    return identity


async def test_a_ready_runner_ends_when_asked(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    await agent.start_runner(spec)
    ready = await wait_for_state(agent, spec.runner_id, RunnerState.READY)
    identity = group_of(ready)
    assert len(group_members(identity)) == 2  # the engine and its guard
    report = await agent.stop_runner(spec.runner_id, StopDeadlines())
    assert (report.state, report.exit_code, report.endpoint) == (RunnerState.SHUTDOWN, 0, None)
    assert report.error_code is None
    assert group_members(identity) == []


async def test_a_real_engine_ends_in_the_middle_of_its_load(agent: LocalAgent) -> None:
    spec = demo_spec()
    await agent.start_runner(spec)
    identity = group_of(await wait_for_state(agent, spec.runner_id, RunnerState.LOADING))
    report = await agent.stop_runner(spec.runner_id, StopDeadlines())
    assert report.state is RunnerState.SHUTDOWN
    assert report.exit_code in (0, -signal.SIGTERM)  # 0: the load was done before the signal came
    assert report.endpoint is None
    assert group_members(identity) == []


async def test_a_loading_runner_ends_by_sigterm(misbehaving: Callable[..., Supervisor]) -> None:
    supervisor = misbehaving("loading")
    await supervisor.start()
    await in_state(supervisor, RunnerState.LOADING)
    report = await supervisor.stop(SHORT)
    assert (report.state, report.exit_code) == (RunnerState.SHUTDOWN, -signal.SIGTERM)


async def test_a_runner_that_ignores_sigterm_is_killed(misbehaving: Callable[..., Supervisor]) -> None:
    supervisor = misbehaving("deaf")
    await supervisor.start()
    identity = group_of(await in_state(supervisor, RunnerState.LOADING))
    report = await supervisor.stop(SHORT)
    assert (report.state, report.exit_code) == (RunnerState.SHUTDOWN, -signal.SIGKILL)
    assert group_members(identity) == []


async def test_a_frozen_engine_is_killed_with_its_whole_group(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    await agent.start_runner(spec)
    ready = await wait_for_state(agent, spec.runner_id, RunnerState.READY)
    identity = group_of(ready)
    os.kill(identity.pid, signal.SIGSTOP)
    report = await agent.stop_runner(spec.runner_id, SHORT)
    assert (report.state, report.exit_code) == (RunnerState.SHUTDOWN, -signal.SIGKILL)
    assert group_members(identity) == []


async def test_helpers_of_a_crashed_runner_do_not_stay(misbehaving: Callable[..., Supervisor]) -> None:
    supervisor = misbehaving("helper")
    await supervisor.start()
    report = await ended(supervisor)
    assert (report.state, report.exit_code) == (RunnerState.FAILED, -signal.SIGSEGV)
    assert report.error_code == "runner_crashed"
    assert report.error_message == "the runner's process was ended by SIGSEGV; its log tells more"
    helper = int(report.log_tail[0].removeprefix("helper "))
    assert not psutil.pid_exists(helper) or psutil.Process(helper).status() == psutil.STATUS_ZOMBIE


async def test_stopping_twice_and_at_once_is_one_stop(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    await agent.start_runner(spec)
    await wait_for_state(agent, spec.runner_id, RunnerState.READY)
    first, second = await asyncio.gather(
        *(agent.stop_runner(spec.runner_id, StopDeadlines()) for _ in range(2))
    )
    third = await agent.stop_runner(spec.runner_id, StopDeadlines())
    assert first == second == third
    assert first.state is RunnerState.SHUTDOWN


async def test_a_caller_that_gives_up_does_not_stop_the_stopping(
    misbehaving: Callable[..., Supervisor],
) -> None:
    supervisor = misbehaving("deaf")
    await supervisor.start()
    await in_state(supervisor, RunnerState.LOADING)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await supervisor.stop(SHORT)
    assert (await ended(supervisor)).state is RunnerState.SHUTDOWN


async def test_an_unknown_runner_is_stopped_already(agent: LocalAgent) -> None:
    report = await agent.stop_runner("never-seen", StopDeadlines())
    assert (report.state, report.node_id, report.pid) == (RunnerState.SHUTDOWN, agent.node_id, None)


async def test_closing_stops_all_runners(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    specs = [tiny_spec() for _ in range(3)]
    for spec in specs:
        await agent.start_runner(spec)
    await wait_for_state(agent, specs[0].runner_id, RunnerState.READY)
    await agent.close()
    assert [r.state for r in await agent.runners()] == [RunnerState.SHUTDOWN] * 3


async def test_closing_ends_the_others_when_one_survives_and_says_which(
    agent: LocalAgent,
    tiny_spec: MakeSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A process that no signal ends, because the system call does nothing for its group."""
    monkeypatch.setattr(local, "_CLOSE", StopDeadlines(ask_s=0.2, terminate_s=0.2, kill_s=0.2))
    specs = [tiny_spec(runner_id=name) for name in ("immortal", "other", "third")]
    pids = {}
    for spec in specs:
        await agent.start_runner(spec)
        pids[spec.runner_id] = (await wait_for_state(agent, spec.runner_id, RunnerState.READY)).pid
    immortal = pids["immortal"]
    assert immortal is not None
    os.kill(immortal, signal.SIGSTOP)
    for child in psutil.Process(immortal).children():
        child.suspend()
    real = os.killpg
    with monkeypatch.context() as kernel:
        kernel.setattr(os, "killpg", lambda pid, number: None if pid == immortal else real(pid, number))
        await agent.close()
    states = {r.runner_id: r.state for r in await agent.runners()}
    assert states == {
        "immortal": RunnerState.SHUTTING_DOWN,
        "other": RunnerState.SHUTDOWN,
        "third": RunnerState.SHUTDOWN,
    }
    told = capsys.readouterr().out
    assert "runner_not_ended" in told
    assert "runner_id=immortal" in re.sub(r"\x1b\[[0-9;]*m", "", told)
    assert "runner_survived_kill" in told
    after = LocalAgent(
        tmp_path / "data"
    )  # the directory was let go of, and the next start ends what was left
    assert await after.start() == ("immortal",)
    assert not psutil.pid_exists(immortal) or psutil.Process(immortal).status() == psutil.STATUS_ZOMBIE
    await after.close()


@pytest.mark.parametrize(
    ("mode", "limit", "code", "text"),
    [
        (
            "silent",
            "first_status_timeout_s",
            "runner_unresponsive",
            "did not report that it lives within 3 s",
        ),
        ("loading", "load_timeout_s", "runner_unresponsive", "did not finish loading the model within 3 s"),
        ("mute", "warmup_timeout_s", "runner_wedged", "loaded but did not serve within 3 s"),
    ],
)
async def test_each_phase_has_its_deadline(
    mode: str, limit: str, code: str, text: str, misbehaving: Callable[..., Supervisor]
) -> None:
    supervisor = misbehaving(mode, **{limit: 3.0})
    await supervisor.start()
    identity = group_of(supervisor.report)
    report = await ended(supervisor)
    assert (report.state, report.error_code, report.exit_code) == (RunnerState.FAILED, code, -signal.SIGKILL)
    assert report.error_message is not None
    assert text in report.error_message
    assert group_members(identity) == []

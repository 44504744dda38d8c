"""What the watch over the runners ends, fails and brings back, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from sqlalchemy import delete

from support.local_node import demo_spec
from wharfinger.fleet.agent import AgentError, RunnerReport, RunnerState, StopDeadlines
from wharfinger.fleet.local import LocalAgent
from wharfinger.store.tables import instances, reservations
from wharfinger.workflows import instances as rows
from wharfinger.workflows import watch
from wharfinger.workflows.instances import InstanceStatus
from workflows.conftest import ON_BOTH, Control


async def started(agent: LocalAgent, instance_id: str = "inst_a") -> RunnerReport:
    """The runner of an instance of one rank."""
    return await agent.start_runner(demo_spec(runner_id=f"{instance_id}-r0", instance_id=instance_id))


async def died(agent: LocalAgent, instance_id: str) -> RunnerReport:
    """The same, ended by itself."""
    report = await started(agent, instance_id)
    return await agent.stop_runner(report.runner_id, StopDeadlines())


async def status(control: Control, instance_id: str = "inst_a") -> InstanceStatus:
    return (await control.instance(instance_id)).instance.status


async def deleted(control: Control, instance_id: str) -> None:
    """Deleted without its runner."""
    async with control.database.begin() as connection:
        await rows.set_status(connection, instance_id, InstanceStatus.DELETED)


def told(agent: LocalAgent, monkeypatch: pytest.MonkeyPatch, *, once: bool = False, **changes: Any) -> None:
    """Let the agent's reports, or only the first that is asked for, have ``changes``."""
    runners = agent.runners

    async def changed() -> tuple[RunnerReport, ...]:
        if once:
            monkeypatch.setattr(agent, "runners", runners)
        return tuple(report.model_copy(update=changes) for report in await runners())

    monkeypatch.setattr(agent, "runners", changed)


@pytest.mark.parametrize("known", [True, False])
async def test_a_runner_of_no_instance_is_ended_and_forgotten(
    control: Control, agent: LocalAgent, known: bool
) -> None:
    if known:
        await control.add(agent.node_id)
        await deleted(control, "inst_a")
    await control.add(agent.node_id, instance_id="inst_b")
    unwanted, kept = await started(agent), await started(agent, "inst_b")
    for _ in range(1 if known else watch.ROWLESS_LOOKS):
        assert len(await agent.runners()) == 2
        await control.look()
    assert [report.runner_id for report in await agent.runners()] == [kept.runner_id]
    assert unwanted.pid is not None
    assert not psutil.pid_exists(unwanted.pid)
    await control.look()
    assert list(control.watch.reports) == [kept.runner_id]


async def test_an_instance_that_is_missing_for_a_moment_keeps_its_runner(
    control: Control, agent: LocalAgent
) -> None:
    """The database is just being restored, say."""
    runner = await started(agent)
    for _ in range(2):
        for _ in range(watch.ROWLESS_LOOKS - 1):
            await control.look()
        await control.add(agent.node_id)
        await control.look()
        async with control.database.begin() as connection:
            await connection.execute(delete(reservations))
            await connection.execute(delete(instances))
    assert [report.pid for report in await agent.runners()] == [runner.pid]


async def test_a_launch_between_two_reads_is_not_taken_for_nobodys(
    control: Control, agent: LocalAgent
) -> None:
    """Were the instances read before the runners, the launch of this moment would be missing among them."""
    runners = agent.runners

    async def launched_meanwhile() -> tuple[RunnerReport, ...]:
        await control.add(agent.node_id)
        await started(agent)
        agent.runners = runners  # type: ignore[method-assign]
        return await runners()

    agent.runners = launched_meanwhile  # type: ignore[method-assign]
    await control.look()
    [report] = await agent.runners()
    assert not report.state.ended


@ON_BOTH
async def test_whatever_a_runner_said_at_its_end_is_recorded(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL stores no NUL."""
    await control.add(agent.node_id, InstanceStatus.READY)
    await died(agent, "inst_a")
    told(agent, monkeypatch, error_code="runner_crashed", error_message="ggml\0abort")
    await control.look()
    found = (await control.instance("inst_a")).instance
    assert (found.status, found.status_reason) == (InstanceStatus.FAILED, "ggml\ufffdabort")
    (failure,) = await control.failures()
    assert (failure.error_code, failure.error_message) == ("runner_crashed", "ggml\ufffdabort")
    assert await control.reserved_bytes() == 0


async def test_a_ready_instance_without_a_runner_has_failed(control: Control, agent: LocalAgent) -> None:
    await control.add(agent.node_id, InstanceStatus.READY)
    await control.add(agent.node_id, InstanceStatus.LAUNCHING, "inst_b")
    await control.add("node_of_another_replica", InstanceStatus.READY, "inst_c")
    await control.look()
    (failure,) = await control.failures()
    assert (failure.instance_id, failure.error_code, failure.error_message) == (
        "inst_a",
        "runner_crashed",
        "its node has no runner inst_a-r0 any more",
    )
    names = ("inst_a", "inst_b", "inst_c")
    assert [(await status(control, name)).value for name in names] == ["failed", "launching", "ready"]


async def test_an_old_report_of_an_end_does_not_end_the_successor(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch started the runner again, and it became ready, between the watch's two reads."""
    await control.add(agent.node_id, InstanceStatus.READY)
    successor = await started(agent)
    told(agent, monkeypatch, once=True, state=RunnerState.FAILED)
    await control.look()
    assert [report.pid for report in await agent.runners()] == [successor.pid]
    assert await status(control) is InstanceStatus.READY


@pytest.mark.parametrize("raised", [AgentError("runner_survived_kill", "it hangs"), TypeError("odd")])
async def test_a_runner_whose_end_cannot_be_settled_keeps_no_other_waiting(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    monkeypatch.setattr(watch, "RETRY_PAUSE_S", 0.0)
    for name in ("inst_a", "inst_b"):
        await control.add(agent.node_id, InstanceStatus.READY, name)
        await died(agent, name)
    stop_runner = agent.stop_runner

    async def stop_b(runner_id: str, deadlines: StopDeadlines) -> RunnerReport:
        if runner_id == "inst_a-r0":
            raise raised
        return await stop_runner(runner_id, deadlines)

    monkeypatch.setattr(agent, "stop_runner", stop_b)
    await control.look()
    assert [await status(control, name) for name in ("inst_a", "inst_b")] == [
        InstanceStatus.READY,
        InstanceStatus.FAILED,
    ]
    monkeypatch.setattr(agent, "stop_runner", stop_runner)
    await control.look()
    assert await status(control) is InstanceStatus.FAILED


async def test_a_node_that_does_not_answer_hides_no_other(control: Control, agent: LocalAgent) -> None:
    class Silent:
        async def runners(self) -> tuple[RunnerReport, ...]:
            raise AgentError("node_unavailable", "no answer")

    control.fleet.agents = {"node_silent": Silent(), **control.fleet.agents}  # type: ignore[dict-item]
    await control.add("node_silent", InstanceStatus.READY, "inst_b")
    await control.add(agent.node_id, InstanceStatus.READY)
    await died(agent, "inst_a")
    await control.look()
    assert await status(control) is InstanceStatus.FAILED
    assert await status(control, "inst_b") is InstanceStatus.READY


async def test_a_runner_that_takes_long_to_end_does_not_blind_the_watch(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwanted = await started(agent, "inst_gone")
    await control.add(agent.node_id, instance_id="inst_gone")
    await deleted(control, "inst_gone")
    asked, ended = asyncio.Event(), asyncio.Event()
    stop_runner = agent.stop_runner

    async def slowly(runner_id: str, deadlines: StopDeadlines) -> RunnerReport:
        if runner_id == unwanted.runner_id:
            asked.set()
            await ended.wait()
        return await stop_runner(runner_id, deadlines)

    monkeypatch.setattr(agent, "stop_runner", slowly)
    await control.watch.look()
    await asked.wait()
    asked.clear()
    await control.add(agent.node_id, InstanceStatus.READY)
    await died(agent, "inst_a")
    await control.watch.look()
    assert sorted(control.watch.at_work) == ["inst_a", unwanted.runner_id]
    await control.watch.at_work["inst_a"]
    assert await status(control) is InstanceStatus.FAILED
    ended.set()
    await control.look()
    assert unwanted.runner_id not in {report.runner_id for report in await agent.runners()}
    assert not asked.is_set()  # it was asked once


async def bring_back_while(
    control: Control, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[object]]
) -> list[str]:
    """What :meth:`RunnerWatch.bring_back` launches again, when something happens after it has read the instances."""
    list_instances = rows.list_instances

    async def then_it_happens(connection: Any) -> list[rows.Instance]:
        found = await list_instances(connection)
        await happens()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(rows, "list_instances", then_it_happens)
        return await control.watch.bring_back()


@ON_BOTH
async def test_what_another_replica_began_meanwhile_is_not_undone_at_start(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.add(agent.node_id, InstanceStatus.READY)
    assert await bring_back_while(control, monkeypatch, lambda: control.stop("inst_a")) == []
    assert await status(control) is InstanceStatus.STOPPING
    assert [operation.kind for operation in (await control.operations.list()).items] == ["instance.stop"]


@ON_BOTH
async def test_an_instance_that_failed_meanwhile_is_not_launched_at_start(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.add(agent.node_id, InstanceStatus.READY)

    async def it_fails() -> None:
        async with control.database.begin() as another:
            await rows.set_status(another, "inst_a", InstanceStatus.FAILED)

    assert await bring_back_while(control, monkeypatch, it_fails) == []
    assert await status(control) is InstanceStatus.FAILED
    assert (await control.operations.list()).items == []

"""A runner that belongs to no instance is ended; one whose instance is about to be seen is not."""

from __future__ import annotations

import psutil
import pytest

from support.local_node import demo_spec
from wharfinger.fleet.agent import RunnerReport
from wharfinger.fleet.local import LocalAgent
from wharfinger.workflows import instances as rows
from wharfinger.workflows.instances import InstanceStatus
from workflows.conftest import Control


@pytest.mark.parametrize("known", [True, False])
async def test_a_runner_of_no_instance_is_ended_and_forgotten(
    control: Control, agent: LocalAgent, known: bool
) -> None:
    if known:
        await control.add(agent.node_id)
        async with control.database.begin() as connection:
            await rows.set_status(connection, "inst_a", InstanceStatus.DELETED)
    await control.add(agent.node_id, instance_id="inst_b")
    started = await agent.start_runner(demo_spec(runner_id="inst_a-r0", instance_id="inst_a"))
    kept = await agent.start_runner(demo_spec(runner_id="inst_b-r0", instance_id="inst_b"))
    await control.watch.look()
    assert [report.runner_id for report in await agent.runners()] == [kept.runner_id]
    assert started.pid is not None
    assert not psutil.pid_exists(started.pid)
    await control.watch.look()
    assert list(control.watch.reports) == [kept.runner_id]


async def test_a_launch_between_two_reads_is_not_taken_for_nobodys(
    control: Control, agent: LocalAgent
) -> None:
    """Were the instances read before the runners, the launch of this moment would be missing among them."""
    runners = agent.runners

    async def launched_meanwhile() -> tuple[RunnerReport, ...]:
        await control.add(agent.node_id)
        await agent.start_runner(demo_spec(runner_id="inst_a-r0", instance_id="inst_a"))
        agent.runners = runners  # type: ignore[method-assign]
        return await runners()

    agent.runners = launched_meanwhile  # type: ignore[method-assign]
    await control.watch.look()
    [report] = await agent.runners()
    assert not report.state.ended

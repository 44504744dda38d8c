"""Giving an instance up: abandoned with work under way, deleted while its launch fails, deleted again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from operations.polling import reached, until
from support.local_node import demo_spec
from wharfinger.fleet.agent import AgentError, RunnerReport, StopDeadlines
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.model import Conflict, NewOperation, Operation, OperationState
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.signals import events_of
from wharfinger.operations.transitions import Start
from wharfinger.store.tables import nodes, operations
from wharfinger.workflows import instances as rows
from wharfinger.workflows.admission import INSTANCE, LAUNCH, STOP
from wharfinger.workflows.instances import InstanceStatus, UnknownInstance
from workflows.conftest import ON_BOTH, Control

State = OperationState


async def submitted(control: Control, kind: str, node_id: str) -> Operation:
    new = NewOperation(kind, INSTANCE, "inst_a", affinity=node_id, cleanup_if_unstarted=True)
    return (await control.operations.submit(new))[0]


async def claimed_by_the_dead(control: Control, operation: Operation) -> None:
    """Under way on a node that is gone, its lease run out."""
    request = ClaimRequest("dead", [operation.kind], ["n2"], 1, 30.0)
    [claimed] = await control.operations.claim(request)
    assert claimed.lease is not None
    await control.operations.apply(claimed.lease, Start())
    async with control.database.begin() as connection:
        ran_out = datetime.now(UTC) - timedelta(hours=1)
        await connection.execute(update(operations).values(due_at=ran_out))


@pytest.mark.parametrize("kind", [LAUNCH, STOP])
@pytest.mark.parametrize("started", [True, False])
async def test_work_of_an_abandoned_instance_ends(control: Control, kind: str, started: bool) -> None:
    status = InstanceStatus.LAUNCHING if kind == LAUNCH else InstanceStatus.STOPPING
    await control.add("n2", status)
    operation = await submitted(control, kind, "n2")
    if started:
        await claimed_by_the_dead(control, operation)
    await control.abandon("inst_a")
    assert await control.found() is None
    assert await control.reserved_bytes() == 0
    async with control.working():
        ended = await reached(control.operations, operation.operation_id)
    assert (ended.state, ended.affinity) == (State.CANCELLED, None)


async def test_an_instance_without_work_is_abandoned(control: Control) -> None:
    await control.add("n2", InstanceStatus.READY)
    await control.abandon("inst_a")
    assert await control.found() is None
    assert (await control.operations.list()).items == []


@ON_BOTH
async def test_an_instance_whose_node_has_a_fresh_record_is_not_abandoned(control: Control) -> None:
    """Although this process saw no report of it: it was written just now, or by another release."""
    await control.add("n2", InstanceStatus.READY)
    unread = {"node_id": "n2", "report": {"from": "another release"}, "seen_at": control.database.now()}
    async with control.database.begin() as connection:
        await connection.execute(insert(nodes).values(**unread))
    with pytest.raises(Conflict) as present:
        await control.abandon("inst_a")
    assert present.value.code == "node_present"
    async with control.database.begin() as connection:
        left = datetime.now(UTC) - timedelta(minutes=1)
        await connection.execute(update(nodes).values(seen_at=left))
    await control.abandon("inst_a")
    assert await control.found() is None


async def test_an_instance_of_our_own_node_is_not_abandoned(control: Control, agent: LocalAgent) -> None:
    """However long its telemetry has been failing: its runners are of this process."""

    async def unmeasured() -> None:
        raise AgentError("telemetry_timeout", "the driver does not answer")

    agent.report = unmeasured  # type: ignore[method-assign,assignment]
    await control.fleet.heartbeat()
    await control.add(agent.node_id, InstanceStatus.READY)
    with pytest.raises(Conflict) as present:
        await control.abandon("inst_a")
    assert present.value.code == "node_present"


@ON_BOTH
async def test_a_delete_between_two_writes_of_a_failing_launch_deletes(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.add(agent.node_id)
    deleting: list[asyncio.Task[Operation]] = []
    set_status = rows.set_status

    async def delete_just_before(
        connection: Any, instance_id: str, status: Any, *args: Any, **kw: Any
    ) -> bool:
        if status is InstanceStatus.FAILED and not deleting:
            deleting.append(asyncio.create_task(control.stop("inst_a")))
            if not control.database.is_sqlite:  # where nobody writes during a transaction of another
                await until_stopping(control)
        return await set_status(connection, instance_id, status, *args, **kw)

    monkeypatch.setattr(rows, "set_status", delete_just_before)
    launch = await submitted(control, LAUNCH, agent.node_id)  # it fails: the catalog has no such model
    async with control.working():
        assert (await reached(control.operations, launch.operation_id)).error_code == "model_removed"
        await reached(control.operations, (await deleting[0]).operation_id)
    assert await control.found() is None
    assert await control.reserved_bytes() == 0


async def until_stopping(control: Control) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await control.instance("inst_a")).instance.status is InstanceStatus.STOPPING:
                return
            await asyncio.sleep(0.01)


async def test_a_launch_that_fails_after_its_instance_was_abandoned_writes_nothing(
    control: Control, agent: LocalAgent
) -> None:
    """Its holder lives after all, and was just about to record how its runners ended."""
    await control.add(agent.node_id)
    await agent.start_runner(demo_spec(runner_id="inst_a-r0", instance_id="inst_a"))
    stop_runner = agent.stop_runner

    async def abandoned_meanwhile(runner_id: str, deadlines: StopDeadlines) -> RunnerReport:
        async with control.database.begin() as connection:
            await rows.release(connection, "inst_a")
            await rows.set_status(connection, "inst_a", InstanceStatus.DELETED, "abandoned")
        return await stop_runner(runner_id, deadlines)

    agent.stop_runner = abandoned_meanwhile  # type: ignore[method-assign]
    launch = await submitted(control, LAUNCH, agent.node_id)
    async with control.working():
        assert (await reached(control.operations, launch.operation_id)).error_code == "model_removed"
    async with control.database.read() as connection:
        assert await rows.list_runners(connection) == []
    assert await control.failures() == []


async def test_a_delete_that_meets_a_failing_launch_deletes(control: Control, agent: LocalAgent) -> None:
    """The failure is recorded and the launch has not ended yet: it would not see the wish any more."""
    await control.add(agent.node_id)
    deleting: list[asyncio.Task[Operation]] = []
    forget = agent.forget_runner

    async def delete_meanwhile(runner_id: str) -> None:
        if not deleting:
            found = await control.found()
            assert found is not None
            assert found.status is InstanceStatus.FAILED
            deleting.append(asyncio.create_task(control.stop("inst_a")))
            followers = control.operations.signals._listeners
            await until(lambda: deleting[0].done() or events_of(launch.operation_id) in followers)
        await forget(runner_id)

    agent.forget_runner = delete_meanwhile  # type: ignore[method-assign]
    launch = await submitted(control, LAUNCH, agent.node_id)  # it fails: the catalog has no such model
    async with control.working():
        assert (await reached(control.operations, launch.operation_id)).error_code == "model_removed"
        stop = await deleting[0]
        assert stop.kind == STOP
        assert (await reached(control.operations, stop.operation_id)).state is State.SUCCEEDED
    assert await control.found() is None


async def test_a_launch_that_was_cancelled_meanwhile_has_deleted(control: Control, agent: LocalAgent) -> None:
    """A second delete during the cleanup of the first finds the same launch."""
    await control.add(agent.node_id)
    launch = await submitted(control, LAUNCH, agent.node_id)
    first = await control.stop("inst_a")
    second = await control.stop("inst_a")
    assert (first.operation_id, second.operation_id) == (launch.operation_id, launch.operation_id)
    async with control.working():
        assert (await reached(control.operations, launch.operation_id)).state is State.CANCELLED
    assert await control.found() is None


async def test_a_delete_repeated_under_its_key_is_the_same_stop(control: Control, agent: LocalAgent) -> None:
    await control.add(agent.node_id, InstanceStatus.READY)
    await control.add(agent.node_id, InstanceStatus.READY, "inst_b")
    first = await control.stop("inst_a", idempotency_key="k")
    assert (await control.stop("inst_a", idempotency_key="k")).operation_id == first.operation_id
    async with control.working():
        ended = await reached(control.operations, first.operation_id)
    assert ended.state is State.SUCCEEDED
    assert await control.stop("inst_a", idempotency_key="k") == ended
    for other in ("other", None):
        with pytest.raises(UnknownInstance):
            await control.stop("inst_a", idempotency_key=other)
    with pytest.raises(Conflict) as reused:
        await control.stop("inst_b", idempotency_key="k")
    assert reused.value.code == "idempotency_key_reused"
    assert [found.operation_id for found in (await control.operations.list()).items] == [first.operation_id]


async def test_a_key_is_kept_only_with_a_stop_that_was_queued_under_it(
    control: Control, agent: LocalAgent
) -> None:
    """The exceptions that the documentation of the API names."""
    for name in ("inst_a", "inst_b", "inst_c"):
        await control.add("n2" if name == "inst_c" else agent.node_id, InstanceStatus.READY, name)
    stop = await control.stop("inst_a")
    assert await control.stop("inst_a", idempotency_key="joined") == stop
    new = NewOperation(LAUNCH, INSTANCE, "inst_b", affinity=agent.node_id, cleanup_if_unstarted=True)
    launch, _ = await control.operations.submit(new)
    cancelled = await control.stop("inst_b", idempotency_key="cancelling")
    assert cancelled.operation_id == launch.operation_id
    await control.abandon("inst_c")
    async with control.working():
        for operation in (stop, launch):
            await reached(control.operations, operation.operation_id)
    for name, key in (("inst_a", "joined"), ("inst_b", "cancelling"), ("inst_c", "forced")):
        with pytest.raises(UnknownInstance):
            await control.stop(name, idempotency_key=key)

"""A stop that is cancelled half way finishes all the same: half a deletion is no state to leave anything in."""

from __future__ import annotations

from datetime import UTC, datetime

from operations.polling import reached, until
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.model import OperationState
from wharfinger.routing.targets import Target
from wharfinger.workflows.instances import InstanceStatus
from workflows.conftest import Control

State = OperationState


async def test_a_cancelled_stop_drains_and_deletes(control: Control, agent: LocalAgent) -> None:
    instance = await control.add(agent.node_id, InstanceStatus.READY)
    target = Target(
        *(instance.runner_id(0), "m", "m", "http://127.0.0.1:9"),
        instance_id=instance.instance_id,
        created_unix_s=int(datetime.now(UTC).timestamp()),
    )
    async with control.database.begin() as connection:
        await control.routes.register(connection, target, agent.node_id)
    await control.routes.refresh()
    answering = control.table.acquire("m")
    assert answering is not None
    async with control.working():
        stop = await control.stop("inst_a")
        in_flight = control.table.in_flight
        looks = 0

        def looked_at(target_id: str) -> int:
            nonlocal looks
            looks += 1
            return in_flight(target_id)

        control.table.in_flight = looked_at  # type: ignore[method-assign]
        await until(lambda: looks > 0)
        await control.operations.request_cancel(stop.operation_id)
        seen = looks
        await until(
            lambda: looks > seen + 3
        )  # the cancel ends the first drain at its next look; this is the cleanup's
        found = await control.found()
        assert found is not None
        assert found.status is InstanceStatus.STOPPING
        assert control.table.serving("m") == ()
        control.table.release(answering)
        ended = await reached(control.operations, stop.operation_id)
    assert (ended.state, ended.error_code) == (State.CANCELLED, None)
    assert await control.found() is None
    assert await control.reserved_bytes() == 0
    messages = {step.name: step.message for step in await control.operations.steps(stop.operation_id)}
    assert messages["drain"] == "0 requests were still running"

"""A stop that is cancelled half way finishes all the same: half a deletion is no state to leave anything in."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from operations.polling import reached, until
from wharfinger.access.secrets import InstallationSecret
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.model import OperationState
from wharfinger.operations.worker import new_owner
from wharfinger.routing.targets import Target
from wharfinger.settings import Settings
from wharfinger.workflows.instances import InstanceStatus
from workflows.conftest import Control

State = OperationState


async def a_request(control: Control, node_id: str) -> Target:
    """A ready instance, and a request to it that is being answered."""
    instance = await control.add(node_id, InstanceStatus.READY)
    target = Target(
        *(instance.runner_id(0), "m", "m", "http://127.0.0.1:9"),
        instance_id=instance.instance_id,
        created_unix_s=int(datetime.now(UTC).timestamp()),
    )
    async with control.database.begin() as connection:
        await control.routes.register(connection, target, node_id)
    await control.routes.refresh()
    answering = control.table.acquire("m")
    assert answering is not None
    return answering


async def messages_of(control: Control, operation_id: str) -> list[str]:
    """What a stop said of its steps."""
    events = await control.operations.events(operation_id)
    return [event.message for event in events if event.type.startswith("step.")]


async def test_a_stop_says_what_it_waits_for_and_what_it_cuts_off(
    control: Control, agent: LocalAgent, tmp_path: Path
) -> None:
    control = Control(
        *(Settings(data_dir=tmp_path, drain_timeout_s=0.6), control.database, control.catalog),
        *({agent.node_id: agent}, control.table),
        *(InstallationSecret.load_or_create(tmp_path / "installation.secret"), new_owner("test")),
    )
    await a_request(control, agent.node_id)
    async with control.working():
        asked = await control.stop("inst_a")
        ended = await reached(control.operations, asked.operation_id)
    assert ended.state is State.SUCCEEDED
    assert await messages_of(control, asked.operation_id) == [
        "route withdrawn",
        "waiting up to 1 s for 1 request",
        "1 request cut off",
        "runners ended, memory released; 1 request cut off",
    ]


async def test_a_cancelled_stop_drains_and_deletes(control: Control, agent: LocalAgent) -> None:
    answering = await a_request(control, agent.node_id)
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
    assert await messages_of(control, stop.operation_id) == [
        "route withdrawn",
        "waiting up to 30 s for 1 request",
        "no request is running",
        "runners ended, memory released",
    ]

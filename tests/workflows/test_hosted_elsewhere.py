"""A copied data directory is noticed: its node's record goes on being renewed, by another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import insert, update

from operations.polling import until
from wharfinger.fleet.local import LocalAgent
from wharfinger.store.tables import nodes
from wharfinger.workflows import fleet_view
from wharfinger.workflows.fleet_view import hosted_elsewhere
from workflows.conftest import ON_BOTH, Control


async def recorded(control: Control, agent: LocalAgent, name: str) -> None:
    """Write the agent's record as a control plane on a machine called ``name`` does."""
    report = (await agent.report()).model_copy(update={"name": name}).model_dump(mode="json")
    values = {"node_id": agent.node_id, "report": report, "seen_at": control.database.now()}
    async with control.database.begin() as connection:
        await connection.execute(insert(nodes).values(**values))


async def renewed(control: Control) -> None:
    async with control.database.begin() as connection:
        await connection.execute(update(nodes).values(seen_at=control.database.now()))


@ON_BOTH
@pytest.mark.parametrize("name", ["the-original", None])
async def test_a_record_that_is_renewed_is_a_twins(
    control: Control, agent: LocalAgent, name: str | None
) -> None:
    """Also one of the same name: a copy on the same machine."""
    report = await agent.report()
    await recorded(control, agent, name or report.name)
    found = asyncio.create_task(hosted_elsewhere(control.database, agent.node_id))
    while not found.done():
        await renewed(control)
        await asyncio.sleep(0.05)
    assert await found == (name or report.name)


@ON_BOTH
@pytest.mark.parametrize("name", ["the-old-name", None])
async def test_a_record_of_a_process_that_is_gone_is_waited_out(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Killed, perhaps also renamed since."""
    monkeypatch.setattr(fleet_view, "HEARTBEAT_S", 0.5)
    report = await agent.report()
    await recorded(control, agent, name or report.name)
    assert await hosted_elsewhere(control.database, agent.node_id) is None


@ON_BOTH
async def test_nobody_waits_for_a_node_without_a_record_or_that_was_closed(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_view, "_LOOK_AGAIN_S", 3600.0)
    async with asyncio.timeout(60):
        assert await hosted_elsewhere(control.database, agent.node_id) is None
        await control.fleet.heartbeat()
        await control.close()
        assert await hosted_elsewhere(control.database, agent.node_id) is None


async def test_a_twin_that_watches_is_not_misled_by_the_close_of_the_original(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_view, "_LOOK_AGAIN_S", 0.01)
    await control.fleet.heartbeat()
    looks = 0
    record_of = fleet_view._record_of

    async def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await record_of(*args)

    monkeypatch.setattr(fleet_view, "_record_of", counted)
    found = asyncio.create_task(hosted_elsewhere(control.database, agent.node_id))
    await until(lambda: looks > 0)
    await control.fleet.leave()
    assert await found is None

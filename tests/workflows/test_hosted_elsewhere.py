"""A copied data directory is noticed: its node's record goes on being renewed under another name."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert, update

from wharfinger.fleet.local import LocalAgent
from wharfinger.store.tables import nodes
from wharfinger.workflows import fleet_view
from wharfinger.workflows.fleet_view import hosted_elsewhere
from workflows.conftest import Control


async def recorded(control: Control, agent: LocalAgent, name: str) -> None:
    """Write the agent's record as a control plane on a machine called ``name`` does."""
    report = (await agent.report()).model_copy(update={"name": name}).model_dump(mode="json")
    values = {"node_id": agent.node_id, "report": report, "seen_at": control.database.now()}
    async with control.database.begin() as connection:
        await connection.execute(insert(nodes).values(**values))


async def renewed(control: Control) -> None:
    async with control.database.begin() as connection:
        await connection.execute(update(nodes).values(seen_at=control.database.now()))


async def test_a_node_without_a_record_or_with_its_own_is_hosted_here(
    control: Control, agent: LocalAgent
) -> None:
    report = await agent.report()
    assert await hosted_elsewhere(control.database, report) is None
    await recorded(control, agent, report.name)
    assert await hosted_elsewhere(control.database, report) is None


async def test_a_record_that_is_renewed_under_another_name_is_a_twin(
    control: Control, agent: LocalAgent
) -> None:
    await recorded(control, agent, "the-original")
    found = asyncio.create_task(hosted_elsewhere(control.database, await agent.report()))
    while not found.done():
        await renewed(control)
        await asyncio.sleep(0.05)
    assert await found == "the-original"


async def test_a_record_of_before_a_renaming_is_waited_out(
    control: Control, agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_view, "HEARTBEAT_S", 0.5)
    await recorded(control, agent, "the-old-name")
    assert await hosted_elsewhere(control.database, await agent.report()) is None

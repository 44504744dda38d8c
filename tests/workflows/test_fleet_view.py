"""Nodes that fall silent: out of the fleet after 30 s, still on record for a week, then gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import REGISTRY
from sqlalchemy import insert, select

from wharfinger.access.principals import ANONYMOUS_ADMIN
from wharfinger.api.metrics import update_gauges
from wharfinger.api.state import list_nodes, state
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.handler import OperationContext
from wharfinger.store.tables import nodes
from wharfinger.workflows.fleet_view import FORGET_AFTER_S
from wharfinger.workflows.retention import InstanceRetention
from workflows.conftest import Control

HOUR = 3600.0


async def silent_node(control: Control, agent: LocalAgent, node_id: str, silent_s: float, **odd: Any) -> None:
    """A node that another process hosted, last heard of ``silent_s`` ago; ``odd`` spoils its report."""
    report = (await agent.report()).model_copy(update={"node_id": node_id, "name": node_id})
    seen_at = datetime.now(UTC) - timedelta(seconds=silent_s)
    values = {"node_id": node_id, "report": report.model_dump(mode="json") | odd, "seen_at": seen_at}
    async with control.database.begin() as connection:
        await connection.execute(insert(nodes).values(**values))


async def test_a_lost_node_is_listed_as_lost_and_counted_nowhere(control: Control, agent: LocalAgent) -> None:
    await silent_node(control, agent, "node_quiet", 20)
    await silent_node(control, agent, "node_lost", HOUR)
    await control.fleet.heartbeat()
    listed = {node["node_id"]: node for node in (await list_nodes(control, ANONYMOUS_ADMIN))["nodes"]}
    assert {node_id: node["state"] for node_id, node in listed.items()} == {
        agent.node_id: "present",
        "node_quiet": "present",
        "node_lost": "lost",
    }
    (reason,) = listed["node_lost"]["health"]["reasons"]
    assert reason["code"] == "unreachable"
    assert reason["message"].startswith("lost: not heard of since ")
    alive = {agent.node_id, "node_quiet"}
    shown = await state(control, ANONYMOUS_ADMIN)
    assert set(shown["topology"]["nodes"]) == set(shown["nodeHealth"]) == set(shown["downloads"]) == alive
    await update_gauges(control)
    assert REGISTRY.get_sample_value("wharfinger_nodes") == 2
    ram = "wharfinger_node_ram_total_bytes"
    assert REGISTRY.get_sample_value(ram, {"node_id": "node_quiet"}) is not None
    assert REGISTRY.get_sample_value(ram, {"node_id": "node_lost"}) is None


async def test_the_retention_drops_nodes_that_left_for_good(control: Control, agent: LocalAgent) -> None:
    await silent_node(control, agent, "node_lost", FORGET_AFTER_S - HOUR)
    await silent_node(control, agent, "node_gone", FORGET_AFTER_S + HOUR)
    await silent_node(control, agent, "node_with_an_instance", FORGET_AFTER_S + HOUR)
    await control.add("node_with_an_instance")
    await control.fleet.heartbeat()
    unused = cast("OperationContext", SimpleNamespace())
    retention = InstanceRetention(control.database, retention_s=HOUR)
    assert await retention.run(unused) == {"deleted": 0, "nodes": 1}
    await control.fleet.heartbeat()
    left = {agent.node_id, "node_lost", "node_with_an_instance"}
    assert {node.report.node_id for node in control.fleet.seen()} == left
    async with control.database.read() as connection:
        assert set((await connection.execute(select(nodes.c.node_id))).scalars()) == left


async def test_a_report_of_another_version_hides_no_other_node(control: Control, agent: LocalAgent) -> None:
    await silent_node(control, agent, "node_a", 1, a_field_of_the_next_version=1)
    await silent_node(control, agent, "node_b", 1)
    await control.fleet.heartbeat()
    assert {node.report.node_id for node in control.fleet.present()} == {agent.node_id, "node_b"}


async def test_asking_for_the_nodes_measures_once(control: Control, agent: LocalAgent) -> None:
    await control.fleet.heartbeat()
    measured = 0
    report = agent.report

    async def counted() -> object:
        nonlocal measured
        measured += 1
        return await report()

    agent.report = counted  # type: ignore[method-assign]
    await list_nodes(control, ANONYMOUS_ADMIN)
    assert measured == 1

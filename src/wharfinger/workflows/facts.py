"""From what nodes report to what the planner plans with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from wharfinger.engines.registry import SPANS_MACHINES
from wharfinger.fleet.agent import DeviceReport, NodeReport
from wharfinger.placement.types import (
    DeviceFacts,
    FleetSnapshot,
    InstanceFacts,
    MemoryKind,
    NodeFacts,
    PlanRequest,
    ReservationFacts,
    Role,
)
from wharfinger.workflows.instances import Instance

UNREACHABLE_AFTER_S = 15.0
"""A node not heard of for this long takes no new work (the contract's ``unreachable``)."""
PRUNE_AFTER_S = 30.0
"""After this long it is left out of the fleet; its row and its instances stay."""


def node_facts(
    report: NodeReport,
    *,
    silent_s: float,
    held_models: frozenset[str],
    active_requests: int | None = None,
) -> NodeFacts:
    """Facts of one node. ``held_models`` are the ids of the models whose file it has.

    A device whose size is not told is left out: each report is complete, so its driver does not say, and a plan must
    not wait for what never comes.
    """
    reachable = silent_s < UNREACHABLE_AFTER_S
    return NodeFacts(
        node_id=report.node_id,
        name=report.name,
        role=Role(report.role),
        ram_total_bytes=report.ram_total_bytes,
        ram_available_bytes=report.ram_available_bytes,
        disk_free_bytes=report.disk_free_bytes,
        memory_cap_bytes=report.memory_cap_bytes,
        devices=tuple(_device_facts(device) for device in report.devices if device.total_bytes is not None),
        backends=frozenset(tag for engine in report.engines for tag in engine.backends),
        engine_builds=MappingProxyType(
            {engine.engine: build for engine in report.engines if (build := engine.build or engine.version)}
        ),
        local_artifacts=MappingProxyType(dict.fromkeys(sorted(held_models), 1.0)),
        active_requests=active_requests,
        reachable=reachable,
        unreachable_reason=None if reachable else f"last heard of {silent_s:.0f} s ago",
        used_ports=frozenset(report.used_ports),
    )


def _device_facts(device: DeviceReport) -> DeviceFacts:
    return DeviceFacts(
        index=device.index,
        name=device.name,
        compute=device.compute,
        memory_kind=MemoryKind(device.memory_kind),
        total_bytes=device.total_bytes,
        used_bytes=device.used_bytes,
        gtt_total_bytes=device.gtt_total_bytes,
        compute_capability=device.compute_capability,
    )


def fleet_snapshot(
    nodes: Iterable[NodeFacts], reservations: tuple[ReservationFacts, ...], instances: Iterable[Instance]
) -> FleetSnapshot:
    """One moment of the fleet, in an order of its own (the planner does not care)."""
    return FleetSnapshot(
        nodes=tuple(sorted(nodes, key=lambda node: node.node_id)),
        links_supported=SPANS_MACHINES,
        reservations=reservations,
        instances=tuple(
            InstanceFacts(
                instance_id=instance.instance_id,
                model_id=instance.model_id,
                node_ids=instance.plan.node_ids,
                ports=frozenset() if instance.plan.port is None else frozenset({instance.plan.port}),
            )
            for instance in instances
        ),
    )


def excluding_by_name(request: PlanRequest, nodes: Iterable[NodeFacts]) -> PlanRequest:
    """The request with the ids of those nodes added whose *name* it excludes; what no node is called has no effect."""
    excluded = request.excluded_node_ids
    named = {node.node_id for node in nodes if node.name in excluded}
    return replace(request, excluded_node_ids=excluded | named)

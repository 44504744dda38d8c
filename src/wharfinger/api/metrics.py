"""Gauges read from the control plane at scrape time; the gateway counts its own requests."""

from __future__ import annotations

from collections import Counter

from prometheus_client import Gauge

from wharfinger.fleet.agent import RunnerState
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.instances import InstanceStatus

_instances = Gauge("wharfinger_instances", "Instances by status", ["status"])
_nodes = Gauge("wharfinger_nodes", "Nodes heard of lately")
_ram_available = Gauge("wharfinger_node_ram_available_bytes", "RAM a node has left", ["node_id"])
_ram_total = Gauge("wharfinger_node_ram_total_bytes", "RAM of a node", ["node_id"])
_runners = Gauge("wharfinger_runners", "Runners by state", ["state"])
_targets = Gauge("wharfinger_targets", "Endpoints routed to")


async def update_gauges(control: ControlPlane) -> None:
    """Set every gauge to what is true now. An unmeasured figure has no sample."""
    views = await control.instances()
    by_status = Counter(view.instance.status for view in views)
    for status in InstanceStatus:
        if status is not InstanceStatus.DELETED:
            _instances.labels(status.value).set(by_status[status])
    by_state = Counter(report.state for view in views for report in view.runners)
    for state in RunnerState:
        _runners.labels(state.value).set(by_state[state])
    nodes = control.fleet.present()
    _nodes.set(len(nodes))
    _targets.set(len(control.table.targets()))
    _ram_available.clear()
    _ram_total.clear()
    for node in nodes:
        if node.report.ram_available_bytes is not None:
            _ram_available.labels(node.report.node_id).set(node.report.ram_available_bytes)
        if node.report.ram_total_bytes is not None:
            _ram_total.labels(node.report.node_id).set(node.report.ram_total_bytes)

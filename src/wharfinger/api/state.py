"""``GET /state``: the whole fleet in the contract's shape, and ``/api/v1/nodes``: nodes for people."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from wharfinger.access.callers import Viewer
from wharfinger.api.answers import answers
from wharfinger.api.instances import tagged
from wharfinger.api.schemas import State
from wharfinger.api.schemas_own import Nodes
from wharfinger.api.wire import failure_wire, runner_wire
from wharfinger.catalog.card import ModelCard
from wharfinger.fleet.agent import NodeReport
from wharfinger.placement.types import NodeFacts
from wharfinger.workflows.fleet_view import SeenNode
from wharfinger.workflows.health import health_level, health_reasons
from wharfinger.workflows.serving import Control

router = APIRouter()


@router.get("/state", tags=["State & Tracing"], **answers(State))
async def state(control: Control, _: Viewer) -> dict[str, Any]:
    """Instances, runners, telemetry, health and failures of one moment; nodes that are lost are not in it."""
    snapshot = await control.snapshot()
    views = await control.instances()
    nodes = control.fleet.present()
    cards = await control.cards()
    return {
        "instances": {view.instance.instance_id: tagged(view) for view in views},
        "runners": {report.runner_id: runner_wire(report) for view in views for report in view.runners},
        "downloads": {node.node_id: _downloads(node, cards) for node in snapshot.nodes},
        "tasks": {},
        "lastSeen": {node.report.node_id: node.seen_at.isoformat() for node in nodes},
        "topology": {"nodes": [node.report.node_id for node in nodes], "connections": {}},
        "tracingEnabled": False,
        "lastEventAppliedIdx": control.table.generation,
        # Known to the contract, not observed here: nodes are reached over addresses that their owner gave.
        "nodeNetwork": {},
        "nodeThunderbolt": {},
        "nodeThunderboltBridge": {},
        "thunderboltBridgeCycles": [],
        "nodeRdmaCtl": {},
        "nodeMemory": {node.report.node_id: _memory(node.report) for node in nodes},
        "nodeSystem": {node.report.node_id: _system(node.report) for node in nodes},
        "nodeIdentities": {node.report.node_id: _identity(node.report) for node in nodes},
        "nodeDisk": {node.report.node_id: _disk(node.report) for node in nodes},
        "nodeResources": {node.report.node_id: _resources(node.report) for node in nodes},
        "nodeHealth": {node.report.node_id: health(node) for node in nodes},
        "instanceFailures": [failure_wire(failure) for failure in await control.failures()],
    }


@router.get("/api/v1/nodes", tags=["Nodes"], **answers(Nodes))
async def list_nodes(control: Control, _: Viewer) -> dict[str, Any]:
    """Every node there is a record of: its telemetry, its engines, its health, and what is reserved on it.

    ``state`` is ``present``, or ``lost`` when it was not heard of for 30 s; the figures are then those of ``seen_at``.
    A lost node is dropped after a week, unless an instance still has memory reserved on it.
    """
    snapshot = await control.snapshot()
    reserved: dict[str, int] = {}
    for reservation in snapshot.reservations:
        reserved[reservation.node_id] = reserved.get(reservation.node_id, 0) + reservation.size_bytes
    return {
        "nodes": [
            node.report.model_dump(mode="json")
            | {
                "state": "lost" if node.lost else "present",
                "seen_at": node.seen_at.isoformat(),
                "health": health(node),
                "reserved_bytes": reserved.get(node.report.node_id, 0),
            }
            for node in control.fleet.seen()
        ]
    }


def _downloads(node: NodeFacts, cards: list[ModelCard]) -> list[dict[str, Any]]:
    """The models whose file the node has."""
    return [
        {
            "DownloadCompleted": {
                "nodeId": node.node_id,
                "modelId": card.model_id,
                "total": {"inBytes": card.storage_size.in_bytes},
                "readOnly": False,
            }
        }
        for card in cards
        if card.model_id in node.local_artifacts
    ]


def _amount(size_bytes: int | None) -> dict[str, int] | None:
    return None if size_bytes is None else {"inBytes": size_bytes}


def _memory(report: NodeReport) -> dict[str, Any]:
    return {
        "ramTotal": _amount(report.ram_total_bytes),
        "ramAvailable": _amount(report.ram_available_bytes),
        "swapTotal": _amount(report.swap_total_bytes),
        "swapAvailable": _amount(report.swap_available_bytes),
    }


def _system(report: NodeReport) -> dict[str, Any]:
    device = report.devices[0] if report.devices else None
    return {
        "cpuPercent": report.cpu_percent,
        "accelerator": {
            "vendor": device.vendor if device else "cpu",
            "name": device.name if device else report.cpu_model,
            "vramTotalBytes": device.total_bytes if device else None,
            "vramUsedBytes": device.used_bytes if device else None,
            "gttTotalBytes": device.gtt_total_bytes if device else None,
            "computeCapability": device.compute_capability if device else None,
        },
    }


def _identity(report: NodeReport) -> dict[str, Any]:
    return {"friendlyName": report.name, "modelId": report.cpu_model, "osVersion": report.os}


def _disk(report: NodeReport) -> dict[str, Any]:
    return {"total": _amount(report.disk_total_bytes), "available": _amount(report.disk_free_bytes)}


def _resources(report: NodeReport) -> dict[str, Any]:
    return {
        "backends": sorted(tag for engine in report.engines for tag in engine.backends),
        "participation": report.role,
        "engineBuilds": {engine.engine: engine.build or engine.version for engine in report.engines},
        "hardwareClasses": sorted({device.name for device in report.devices}),
    }


def health(node: SeenNode) -> dict[str, Any]:
    """``{level, reasons}`` of a node: the worst reason is the level, each reason says what to do."""
    reasons = health_reasons(node)
    return {
        "level": health_level(reasons),
        "reasons": [
            {"code": reason.code, "message": reason.message, "remediation": reason.remediation}
            for reason in reasons
        ],
    }

"""The instances and operations panels: what runs, what is being done, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from wharfinger.fleet.agent import RunnerReport
from wharfinger.operations.model import Operation
from wharfinger.workflows.control import InstanceView
from wharfinger.workflows.instances import InstanceFailure, InstanceStatus

GENERATES_TEXT = "TextGeneration"
RESIDENT_STEP_BYTES = 64 << 20
"""Measured memory of runners is shown in steps of this, so that the panel is not sent again for every page."""


@dataclass(frozen=True, slots=True)
class RunnerView:
    """The process of one rank as last seen."""

    rank: int
    node_name: str
    state: str
    layers: str | None
    """``12/18`` while a model loads."""
    pid: int | None
    resident_bytes: int | None
    engine_load_s: float | None


@dataclass(frozen=True, slots=True)
class OperationView:
    """One operation as shown."""

    operation_id: str
    kind: str
    resource: str
    state: str
    terminal: bool
    progress: int
    message: str
    error: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class InstanceCard:
    """One instance as shown. ``work`` is what is being done to it now."""

    instance_id: str
    model_id: str
    status: str
    status_reason: str | None
    work: OperationView | None
    runners: tuple[RunnerView, ...]
    where: str
    backend: str
    context_tokens: int | None
    memory_bytes: int
    memory_by_node: tuple[tuple[str, int], ...]
    ready_at: datetime | None
    created_at: datetime
    failure: InstanceFailure | None
    generates_text: bool

    @property
    def stoppable(self) -> bool:
        """False once its deletion is under way."""
        return self.status != InstanceStatus.STOPPING

    @property
    def stop_label(self) -> str:
        """What the stop button says."""
        return "Remove" if self.status == InstanceStatus.FAILED else "Stop"


def operation_view(operation: Operation) -> OperationView:
    """An operation for the panels."""
    waiting = f" (waiting: {operation.waiting_reason})" if operation.waiting_reason else ""
    error = operation.error_message or operation.error_code
    return OperationView(
        operation_id=operation.operation_id,
        kind=operation.kind,
        resource=operation.resource_name,
        state="cancelling"
        if operation.cancel_requested and not operation.state.terminal
        else operation.state.value,
        terminal=operation.state.terminal,
        progress=operation.progress,
        message=operation.message + ("" if operation.state.terminal else waiting),
        error=error if operation.error_code else None,
        created_at=operation.created_at,
    )


def instance_cards(
    views: Iterable[InstanceView],
    failures: Iterable[InstanceFailure],
    operations: Iterable[Operation],
    node_names: Mapping[str, str],
) -> tuple[InstanceCard, ...]:
    """All instances, newest first."""
    failed = {failure.instance_id: failure for failure in failures}
    work = {operation.operation_id: operation_view(operation) for operation in operations}
    cards = [_card(view, failed.get(view.instance.instance_id), work, node_names) for view in views]
    return tuple(reversed(cards))


def _card(
    view: InstanceView,
    failure: InstanceFailure | None,
    work: Mapping[str, OperationView],
    node_names: Mapping[str, str],
) -> InstanceCard:
    instance, plan = view.instance, view.instance.plan
    operation = work.get(instance.operation_id or "")
    memory = plan.memory_by_node
    return InstanceCard(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        status=instance.status.value,
        status_reason=instance.status_reason,
        work=operation if operation is not None and not operation.terminal else None,
        runners=tuple(_runner(report, rank, node_names) for rank, report in enumerate(view.runners)),
        where=", ".join(node_names.get(node_id, node_id) for node_id in plan.node_ids),
        backend=plan.ranks[0].backend,
        context_tokens=plan.context_tokens,
        memory_bytes=sum(memory.values()),
        memory_by_node=tuple((node_names.get(node_id, node_id), size) for node_id, size in memory.items()),
        ready_at=instance.ready_at if instance.status is InstanceStatus.READY else None,
        created_at=instance.created_at,
        failure=failure if instance.status is InstanceStatus.FAILED else None,
        generates_text=GENERATES_TEXT in instance.card.tasks,
    )


def _runner(report: RunnerReport, rank: int, node_names: Mapping[str, str]) -> RunnerView:
    resident = report.resident_bytes
    loading = report.total_layers and report.layers_loaded < report.total_layers and not report.state.ended
    return RunnerView(
        rank=rank,
        node_name=node_names.get(report.node_id, report.node_id),
        state=report.state.value.removeprefix("Runner"),
        layers=f"{report.layers_loaded}/{report.total_layers}" if loading else None,
        pid=report.pid,
        resident_bytes=None if resident is None else resident // RESIDENT_STEP_BYTES * RESIDENT_STEP_BYTES,
        engine_load_s=report.engine_load_s,
    )

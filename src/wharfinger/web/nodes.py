"""The nodes panel: what each machine has, what of it is taken, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wharfinger.fleet.agent import DeviceReport, NodeReport
from wharfinger.placement.types import ReservationFacts
from wharfinger.workflows.fleet_view import SeenNode
from wharfinger.workflows.health import HealthReason, health_level, health_reasons

STEP_BYTES = 16 << 20
"""Measured sizes are shown in steps of this, so that a byte here and there does not send the panel again."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a bar, from ``start`` on, ``width`` long, both in percent of it."""

    kind: str
    """``used`` by anything else, ``held`` by instances, ``promised`` to them and not in use yet."""
    size_bytes: int
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """One memory pool. The sizes are ``None`` where it was not measured, and ``reason`` says why."""

    label: str
    name: str
    """Of a device; empty for RAM."""
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    """What is neither in use nor promised."""
    held_bytes: int
    """Reserved and part of what is in use."""
    promised_bytes: int
    """Reserved and not in use yet."""
    segments: tuple[Segment, ...] = ()
    reason: str | None = None

    @property
    def reserved_bytes(self) -> int:
        """All that instances reserve."""
        return self.held_bytes + self.promised_bytes


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as shown."""

    node_id: str
    name: str
    role: str
    machine: str
    """Operating system, architecture and processor in one line."""
    cpu_percent: int | None
    memory_cap_bytes: int | None
    """The most that models may take here, over all pools together; ``None``: no limit."""
    bars: tuple[MemoryBar, ...]
    engines: tuple[str, ...]
    level: str
    """``ok``, ``warn`` or ``error``."""
    reasons: tuple[HealthReason, ...]
    not_measured: tuple[tuple[str, str], ...]
    """Fact and reason, of what no bar shows already."""


def node_views(seen: Iterable[SeenNode], reservations: Sequence[ReservationFacts]) -> tuple[NodeView, ...]:
    """Every node heard of lately, with what the ledger reserves on it."""
    return tuple(_node_view(node, reservations) for node in seen)


def _node_view(node: SeenNode, reservations: Sequence[ReservationFacts]) -> NodeView:
    report = node.report
    own = [reservation for reservation in reservations if reservation.node_id == report.node_id]
    reasons = health_reasons(node)
    cores = f"{report.cpu_count} cores" if report.cpu_count is not None else None
    machine = (report.os, report.architecture, report.cpu_model, cores)
    return NodeView(
        node_id=report.node_id,
        name=report.name,
        role=report.role,
        machine=" · ".join(part for part in machine if part),
        cpu_percent=None if report.cpu_percent is None else round(report.cpu_percent / 5) * 5,
        memory_cap_bytes=report.memory_cap_bytes,
        bars=(_ram_bar(report, own), *(_device_bar(device, report, own) for device in report.devices)),
        engines=tuple(
            f"{', '.join(engine.backends) or engine.engine} · {engine.build or engine.version or 'version unknown'}"
            for engine in report.engines
        ),
        level=health_level(reasons),
        reasons=reasons,
        not_measured=tuple(sorted(report.missing.items())),
    )


def _ram_bar(report: NodeReport, own: list[ReservationFacts]) -> MemoryBar:
    total, available = report.ram_total_bytes, report.ram_available_bytes
    used = None if total is None or available is None else total - available
    reason = report.missing.get("ram_total_bytes") or report.missing.get("ram_available_bytes")
    return memory_bar("RAM", "", total, used, _of_pool(own, None), reason)


def _device_bar(device: DeviceReport, report: NodeReport, own: list[ReservationFacts]) -> MemoryBar:
    return memory_bar(
        f"GPU {device.index}",
        device.name,
        device.total_bytes,
        device.used_bytes,
        _of_pool(own, device.index),
        report.missing.get(f"devices.{device.index}.memory"),
    )


def _of_pool(own: list[ReservationFacts], device_index: int | None) -> list[ReservationFacts]:
    return [reservation for reservation in own if reservation.device_index == device_index]


def memory_bar(
    label: str,
    name: str,
    total_bytes: int | None,
    used_bytes: int | None,
    reserved: Iterable[ReservationFacts],
    reason: str | None,
) -> MemoryBar:
    """A bar of a pool: used by others, held by instances, promised to them, free.

    A reservation whose memory telemetry shows already is part of what is in use; the others come on top of it. So
    nothing is drawn twice and the stretches never exceed the whole.
    """
    held = promised = 0
    for reservation in reserved:
        if reservation.observed:
            held += reservation.size_bytes
        else:
            promised += reservation.size_bytes
    if total_bytes is None or used_bytes is None or total_bytes <= 0:
        return MemoryBar(
            label, name, total_bytes, None, None, held, promised, reason=reason or "no reason given"
        )
    used_bytes = min(total_bytes, used_bytes // STEP_BYTES * STEP_BYTES)
    held_drawn = min(held, used_bytes)
    promised_drawn = min(promised, total_bytes - used_bytes)
    segments: list[Segment] = []
    start = 0.0
    for kind, size_bytes in (
        ("used", used_bytes - held_drawn),
        ("held", held_drawn),
        ("promised", promised_drawn),
    ):
        width = round(100 * size_bytes / total_bytes, 2)
        if size_bytes:
            segments.append(Segment(kind, size_bytes, round(start, 2), width))
        start += width
    return MemoryBar(
        label,
        name,
        total_bytes,
        used_bytes,
        total_bytes - used_bytes - promised_drawn,
        held,
        promised,
        tuple(segments),
    )

"""What is wrong with a node, by stable code, and what to do about it (the contract's ``nodeHealth``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wharfinger.fleet.agent import NodeReport
from wharfinger.workflows.facts import UNREACHABLE_AFTER_S
from wharfinger.workflows.fleet_view import SeenNode

DISK_FULL_BYTES = 2 << 30
DISK_LOW_BYTES = 10 << 30
WARN_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class HealthReason:
    """Something wrong with a node and what to do about it."""

    level: str
    """``warn`` or ``error``."""
    code: str
    message: str
    remediation: str


def health_reasons(node: SeenNode) -> tuple[HealthReason, ...]:
    """What is wrong with a node, worst first; empty when nothing is."""
    return tuple(
        sorted((*_silence(node), *_disk(node.report), *_engines(node.report)), key=lambda r: r.level)
    )


def health_level(reasons: Iterable[HealthReason]) -> str:
    """``ok``, ``warn`` or ``error``: the worst of the reasons."""
    levels = {reason.level for reason in reasons}
    return "error" if "error" in levels else "warn" if "warn" in levels else "ok"


def _silence(node: SeenNode) -> Iterable[HealthReason]:
    if node.lost:
        message = f"lost: not heard of since {node.seen_at:%Y-%m-%d %H:%M} UTC, so nothing is planned on it"
        hint = "start its control plane again; `wharf stop INSTANCE --force` forgets an instance it had"
        yield HealthReason("error", "unreachable", message, hint)
    elif node.silent_s > UNREACHABLE_AFTER_S:
        message = f"not heard of for more than {UNREACHABLE_AFTER_S:.0f} s"
        yield HealthReason("error", "unreachable", message, "check that the node is up and connected")
    elif node.silent_s > WARN_AFTER_S:
        message = f"not heard of for more than {WARN_AFTER_S:.0f} s"
        yield HealthReason("warn", "unreachable", message, "wait for its next report")


def _disk(report: NodeReport) -> Iterable[HealthReason]:
    free = report.disk_free_bytes
    if free is not None and free < DISK_LOW_BYTES:
        level, code = ("error", "disk_full") if free <= DISK_FULL_BYTES else ("warn", "disk_low")
        message = f"{free / 2**30:.1f} GiB of disk left"
        yield HealthReason(level, code, message, "free disk space in the data directory")


def _engines(report: NodeReport) -> Iterable[HealthReason]:
    if report.engines:
        return
    reasons = [reason for fact, reason in sorted(report.missing.items()) if fact.startswith("engines.")]
    broken = [reason for reason in reasons if not reason.startswith("not installed")]
    if broken:
        message, hint = f"no engine works: {'; '.join(broken)}", "repair its installation"
    else:
        message, hint = "no engine found", "install one: pip install 'wharfinger[llama]'"
    yield HealthReason("warn", "no_engine", message, f"{hint}; the node looks for it once a minute")

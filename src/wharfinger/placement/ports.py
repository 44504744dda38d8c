"""Ports of instances: below every system's ephemeral range, the lowest that is free on all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

PORT_RANGE: Final = range(24000, 32000)


def free_port(used: Iterable[Set[int]]) -> int | None:
    """The lowest port of :data:`PORT_RANGE` that none of the sets holds; ``None`` when all are taken."""
    held = [ports for ports in used if ports]
    if not held:
        return PORT_RANGE[0]
    taken = held[0] if len(held) == 1 else frozenset[int]().union(*held)
    return next((port for port in PORT_RANGE if port not in taken), None)

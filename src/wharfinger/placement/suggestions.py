"""What would help after a refusal. Every suggestion is planned before it is made."""

from __future__ import annotations

from collections.abc import Sequence

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.types import FleetSnapshot, PlanRequest, PlanResult


def suggest(
    snapshot: FleetSnapshot,
    card: ModelCard,
    request: PlanRequest,
    catalog: Sequence[ModelCard],
    result: PlanResult,
) -> PlanResult:
    """The refusal with suggestions that were found to work."""
    return result

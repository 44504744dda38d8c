"""``plan``: the one function behind preview, dry run, quick launch, exact create and repair.

Pure: facts in, ranked plans or a structured refusal out. Equal facts in any order give the equal answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.planning import plan_in
from wharfinger.placement.suggestions import suggest
from wharfinger.placement.types import FleetSnapshot, PlanRequest, PlanResult
from wharfinger.placement.workspace import Workspace


def plan(
    snapshot: FleetSnapshot, card: ModelCard, request: PlanRequest, *, catalog: Sequence[ModelCard] = ()
) -> PlanResult:
    """Rank every way to run the card on the fleet now, or say why there is none.

    Args:
        snapshot: facts of one moment.
        card: the model; nothing is looked up.
        request: what the caller asks for.
        catalog: cards that may be suggested instead (other quantisations of the same base model).

    Returns:
        Plans best first with their scores, and the reason of every node that is in none. Without a plan, a refusal
        whose suggestions were each checked by planning them.
    """
    result = plan_in(Workspace(snapshot, card, request.settings), request)
    if result.refusal is None:
        return result
    return suggest(snapshot, card, request, catalog, result)

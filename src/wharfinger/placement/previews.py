"""Previews: the ranked pick of every shape, every other host that would do, and why the other shapes would not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import codes
from wharfinger.placement.build import build_plan
from wharfinger.placement.refusals import explain
from wharfinger.placement.search import Found, search, search_sets
from wharfinger.placement.suggestions import suggest
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceMeta,
    Plan,
    PlanRequest,
    PlanResult,
    PreviewRow,
    Sharding,
)
from wharfinger.placement.workspace import Workspace

SHAPES: Final = (
    (Sharding.PIPELINE, InstanceMeta.RING),
    (Sharding.PIPELINE, InstanceMeta.JACCL),
    (Sharding.TENSOR, InstanceMeta.RING),
    (Sharding.TENSOR, InstanceMeta.JACCL),
)
"""Shapes that may be asked for. A GGUF model over several nodes is minted as LlamaRpc whichever is asked."""
WIDEST: Final = 8
"""Widths shown, from the narrowest asked for; a wider set still launches with ``min_nodes``."""
_NO_WIDER: Final = frozenset(
    {
        codes.ENGINE_CANNOT_SPAN,
        codes.LINKS_UNKNOWN,
        codes.META_NOT_APPLICABLE,
        codes.NO_COMMON_ENGINE,
        codes.RDMA_MISSING,
        codes.TENSOR_OVER_RPC,
        codes.TENSOR_UNSUPPORTED,
    }
)
"""What stops one width of a shape stops every wider one."""


def previews(
    snapshot: FleetSnapshot, card: ModelCard, request: PlanRequest, *, catalog: Sequence[ModelCard] = ()
) -> tuple[PreviewRow, ...]:
    """One row per really different option, best first, then a refusal per shape that has none.

    Of ``request``, sharding and meta are what is varied; everything else holds for every row. A single node is one
    option whatever shape was asked for, and is listed once, as the Pipeline ring a launch would mint. Rows marked
    ``alternative`` are the other single hosts that pass; naming required nodes leaves them out. What a row charges
    each node is what admission would charge. Suggestions are worked out when no row has a plan, for the first.

    Returns:
        Rows; none for a fleet without nodes.
    """
    if not snapshot.nodes:
        return ()
    work = Workspace(snapshot, card, request.settings)
    picks: list[PreviewRow] = []
    alternatives: list[PreviewRow] = []
    refusals: list[tuple[PlanRequest, PlanResult]] = []
    narrowest = max(1, request.min_nodes, len(request.required_node_ids))
    if narrowest == 1:
        single = replace(request, sharding=Sharding.PIPELINE, meta=InstanceMeta.RING, max_nodes=1)
        found = search(work, single)
        rows = [_row(work, found, index) for index in range(len(found.ranked))]
        picks.extend(rows[:1])
        if not request.required_node_ids:
            alternatives.extend(rows[1:])
        if not rows:
            refusals.append((single, explain(work, single, found)))
    if len(work.nodes) > 1 and (request.max_nodes is None or request.max_nodes > 1):
        for sharding, meta in SHAPES:
            shaped = replace(request, sharding=sharding, meta=meta, min_nodes=max(2, narrowest))
            _add_wide(work, shaped, picks, refusals)
    elif narrowest > 1:
        refusals.append((request, explain(work, request, search(work, request))))
    rows = [*picks, *alternatives]
    if not rows and refusals:
        asked, result = refusals[0]
        refusals[0] = (asked, suggest(snapshot, card, asked, catalog, result))
    return (
        *rows,
        *(PreviewRow(asked.sharding, asked.meta, None, result.refusal) for asked, result in refusals),
    )


def _add_wide(
    work: Workspace,
    request: PlanRequest,
    picks: list[PreviewRow],
    refusals: list[tuple[PlanRequest, PlanResult]],
) -> None:
    """Add the pick of every width of one shape, or the shape's refusal."""
    narrowest = request.min_nodes
    widest = min(len(work.nodes), narrowest + WIDEST - 1, request.max_nodes or len(work.nodes))
    listed = {_option(row.plan) for row in picks if row.plan is not None}
    any_plan = False
    first = search(work, replace(request, max_nodes=narrowest))
    for width in range(narrowest, widest + 1):
        found = first
        if width > narrowest:
            found = Found(gated=first.gated)
            search_sets(work, replace(request, min_nodes=width, max_nodes=width), found)
        if found.ranked:
            any_plan = True
            row = _row(work, found, 0)
            if row.plan is not None and _option(row.plan) not in listed:
                picks.append(row)
        elif found.request_code is not None or (found.set_refusal and found.set_refusal.code in _NO_WIDER):
            break
    if any_plan:
        return
    if request.sharding is Sharding.PIPELINE and request.meta is InstanceMeta.RING and (picks or refusals):
        return  # the single-node row, or its refusal, already speaks for this shape
    refusals.append((request, explain(work, request, first)))


def _option(plan: Plan) -> tuple[object, ...]:
    """What makes two rows the same option."""
    return (plan.sharding, plan.meta, plan.node_ids)


def _row(work: Workspace, found: Found, index: int) -> PreviewRow:
    candidate, ranked = found.ranked[index]
    plan = build_plan(work, candidate, ranked)
    single = len(candidate.members) == 1
    return PreviewRow(plan.sharding, plan.meta, plan, None, alternative=single and index > 0)

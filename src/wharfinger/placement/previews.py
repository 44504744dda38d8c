"""Previews: the ranked pick of every shape, every other host that would do, and why the other shapes would not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import codes
from wharfinger.placement.build import build_plan
from wharfinger.placement.refusals import explain, node_refusals
from wharfinger.placement.search import Found, check_request, narrowest_width, search, search_sets
from wharfinger.placement.suggestions import suggest
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceMeta,
    NodeRefusal,
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
WIDEST: Final = 4
"""Widths shown, from the narrowest asked for; a wider set still launches with ``min_nodes``."""
_NO_WIDER: Final = frozenset(
    {
        codes.ENGINE_CANNOT_SPAN,
        codes.LINKS_UNKNOWN,
        codes.META_NOT_APPLICABLE,
        codes.NO_COMMON_ENGINE,
        codes.RDMA_MISSING,
        codes.SPLIT_LIMITED,
        codes.TOO_FEW_LAYERS,
        codes.TENSOR_OVER_RPC,
        codes.TENSOR_UNSUPPORTED,
    }
)
"""What stops one width of a shape stops every wider one."""


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    """Everything one call of previews tells."""

    rows: tuple[PreviewRow, ...]
    """Rows with a plan, best first, then one refusal per shape that has none."""
    node_refusals: tuple[NodeRefusal, ...]
    """Why each node that is in no plan of the request is out: what :func:`planner.plan` gives for it."""


def preview_answer(
    snapshot: FleetSnapshot,
    card: ModelCard,
    request: PlanRequest,
    *,
    catalog: Sequence[ModelCard] = (),
    sharding: Sharding | None = None,
) -> PreviewAnswer:
    """One row per really different option, best first, then a refusal per shape that has none.

    Of ``request``, sharding and meta are what is varied; everything else holds for every row. A single node is one
    option whatever shape was asked for, and is listed once, as the Pipeline ring a launch would mint. Rows marked
    ``alternative`` are the other single hosts that pass; naming required nodes leaves them out. What a row charges
    each node is what admission would charge. Suggestions are worked out when no row has a plan, for the first.

    Args:
        sharding: only rows of this sharding; ``None`` is all of them.

    Returns:
        Rows and node refusals; neither for a fleet without nodes.
    """
    if not snapshot.nodes:
        return PreviewAnswer((), ())
    work = Workspace(snapshot, card, request.settings)
    if check_request(work, request) == codes.NODE_BOUNDS_CONFLICT:
        return _unanswerable(work, request, catalog, sharding)
    narrowest = narrowest_width(request)
    picks: list[PreviewRow] = []
    alternatives: list[PreviewRow] = []
    refusals: list[tuple[PlanRequest, PlanResult]] = []
    if narrowest == 1:
        single = replace(request, sharding=Sharding.PIPELINE, meta=InstanceMeta.RING, max_nodes=1)
        found = search(work, single)
        refused_nodes = _refused_nodes(work, request, _with_sets(work, request, found))
        if sharding is not Sharding.TENSOR:
            _add_single(work, single, found, picks, alternatives, refusals)
    else:
        refused_nodes = _refused_nodes(work, request, search(work, request))
    if len(work.nodes) > 1 and (request.max_nodes is None or request.max_nodes > 1):
        for shape, meta in SHAPES:
            if sharding in (None, shape):
                shaped = replace(request, sharding=shape, meta=meta, min_nodes=max(2, narrowest))
                _add_wide(work, shaped, picks, refusals)
    elif narrowest > 1 and sharding in (None, request.sharding):
        refusals.append((request, explain(work, request, search(work, request))))
    rows = [*picks, *alternatives]
    if not rows and refusals:
        asked, result = refusals[0]
        refusals[0] = (asked, suggest(snapshot, card, asked, catalog, result))
    refused = (PreviewRow(asked.sharding, asked.meta, None, result.refusal) for asked, result in refusals)
    return PreviewAnswer((*rows, *refused), refused_nodes)


def _unanswerable(
    work: Workspace, request: PlanRequest, catalog: Sequence[ModelCard], sharding: Sharding | None
) -> PreviewAnswer:
    """A request that contradicts itself: one refusal, whatever the shape."""
    result = explain(work, request, search(work, request))
    result = suggest(work.snapshot, work.card, request, catalog, result)
    row = PreviewRow(sharding or request.sharding, request.meta, None, result.refusal)
    return PreviewAnswer((row,), result.node_refusals)


def _with_sets(work: Workspace, request: PlanRequest, found: Found) -> Found:
    """What a launch of the request would have seen, from the search for single hosts that was made already."""
    if request.meta is InstanceMeta.RPC or check_request(work, request) is not None:
        return search(work, request)
    whole = replace(found, ranked=list(found.ranked), refused=dict(found.refused), set_refusal=None)
    search_sets(work, request, whole)
    return whole


def _refused_nodes(work: Workspace, request: PlanRequest, found: Found) -> tuple[NodeRefusal, ...]:
    if found.ranked:
        return node_refusals(work, request, found)
    return explain(work, request, found).node_refusals


def _add_single(
    work: Workspace,
    request: PlanRequest,
    found: Found,
    picks: list[PreviewRow],
    alternatives: list[PreviewRow],
    refusals: list[tuple[PlanRequest, PlanResult]],
) -> None:
    """Add the best single host and the others, or why there is none."""
    shown = 1 if request.required_node_ids else len(found.ranked)
    rows = [_row(work, found, index) for index in range(min(shown, len(found.ranked)))]
    picks.extend(rows[:1])
    alternatives.extend(rows[1:])
    if not rows:
        refusals.append((request, explain(work, request, found)))


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

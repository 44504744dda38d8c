"""One search turned into a result, without suggestions: what preview rows and suggestions are checked with."""

from __future__ import annotations

from wharfinger.placement.build import build_plan
from wharfinger.placement.refusals import explain, node_refusals
from wharfinger.placement.search import search
from wharfinger.placement.types import PlanRequest, PlanResult
from wharfinger.placement.workspace import Workspace


def plan_in(work: Workspace, request: PlanRequest) -> PlanResult:
    """Plan in a workspace: every candidate written out, or the refusal."""
    found = search(work, request)
    if found.ranked:
        plans = tuple(build_plan(work, candidate, ranked) for candidate, ranked in found.ranked)
        return PlanResult(plans, None, node_refusals(work, request, found))
    return explain(work, request, found)

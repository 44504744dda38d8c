"""The search: single nodes first, then node sets of growing width. Everything a plan or a refusal is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wharfinger.placement import backends, codes, memory
from wharfinger.placement.estimate import better_sets
from wharfinger.placement.fit import Fit
from wharfinger.placement.grow import candidate_sets, few_sets
from wharfinger.placement.members import (
    Member,
    MemberIndex,
    carriers,
    linked_members,
    screen,
    spanning_groups,
)
from wharfinger.placement.orders import link_problem, rdma_problem
from wharfinger.placement.ranking import Candidate, Score, score
from wharfinger.placement.sets import SetRefusal, divides, fit_set, pipeline_problem
from wharfinger.placement.shapes import Shape, shape_for
from wharfinger.placement.single import TagRefusal, fit_node
from wharfinger.placement.types import InstanceMeta, PlanRequest, Sharding
from wharfinger.placement.window import card_limit, weights_unknown
from wharfinger.placement.workspace import Workspace

WIDEST: Final = 32
"""Sets wider than this are tried only when ``min_nodes`` asks for them."""
_PROGRESS: Final = (
    codes.ENGINE_CANNOT_SPAN,
    codes.LINKS_UNSUPPORTED,
    codes.META_NOT_APPLICABLE,
    codes.TENSOR_OVER_RPC,
    codes.TENSOR_UNSUPPORTED,
    codes.NO_COMMON_ENGINE,
    codes.CONTEXT_TOO_LARGE,
    codes.TOO_FEW_LAYERS,
    codes.SPLIT_LIMITED,
    codes.TENSOR_INDIVISIBLE,
    codes.LINKS_UNKNOWN,
    codes.LINK_MISSING,
    codes.NO_ROUTABLE_ADDRESS,
    codes.RDMA_MISSING,
    codes.MEMORY_SHORT,
    codes.NO_FREE_PORT,
)
"""How far a set came before it was refused; the furthest is what the caller is told."""


@dataclass(slots=True)
class Found:
    """What a search saw: candidates with their scores, best first, and why the other nodes are out."""

    ranked: list[tuple[Candidate, Score]] = field(default_factory=list[tuple[Candidate, Score]])
    gated: dict[str, str] = field(default_factory=dict[str, str])
    """Node id to the code of the filter it failed before memory."""
    refused: dict[str, TagRefusal] = field(default_factory=dict[str, TagRefusal])
    """Node id to why it cannot hold the model, or its part."""
    request_code: str | None = None
    """What is wrong with the request itself, whatever the nodes."""
    set_refusal: SetRefusal | None = None
    """The set that came furthest, when none worked."""


def search(work: Workspace, request: PlanRequest) -> Found:
    """Find every single host and the best set of the smallest width per backend, ranked."""
    code = check_request(work, request)
    if code is not None:
        return Found(gated=screen(work, request).gated, request_code=code)
    found = (
        search_single(work, request) if _single_allowed(request) else Found(gated=screen(work, request).gated)
    )
    alone = bool(found.ranked)
    if request.meta is InstanceMeta.RPC:
        found.ranked = []  # one node is a ring of one, whatever its engine
    search_sets(work, request, found)
    awaited = found.set_refusal is not None and found.set_refusal.code in codes.PENDING_CODES
    if alone and not found.ranked and not awaited:
        found.request_code = codes.META_NOT_APPLICABLE
    found.ranked.sort(key=lambda entry: entry[1].key)
    return found


def check_request(work: Workspace, request: PlanRequest) -> str | None:
    """Code of what the request itself makes impossible."""
    if not work.nodes:
        return codes.NO_NODES
    if weights_unknown(work.card):
        return codes.WEIGHTS_UNKNOWN
    if request.context_tokens is not None:
        limit = card_limit(work.card)
        if request.context_tokens <= 0:
            return codes.CONTEXT_NOT_POSITIVE
        if not memory.MIN_CONTEXT_TOKENS <= request.context_tokens <= memory.MAX_CONTEXT_TOKENS:
            return codes.CONTEXT_OUT_OF_RANGE
        if limit is not None and request.context_tokens > limit:
            return codes.CONTEXT_TOO_LARGE
    if request.max_nodes is not None and request.max_nodes < narrowest_width(request):
        return codes.NODE_BOUNDS_CONFLICT
    if not request.required_node_ids <= work.node_by_id.keys():
        return codes.REQUIRED_NODE_UNKNOWN
    if request.required_node_ids & request.excluded_node_ids:
        return codes.REQUIRED_NODE_EXCLUDED
    wanted = request.backend
    accepted = backends.accepted_backends(work.card)
    if wanted is not None and not any(
        backends.matches(wanted, each) or each.startswith(f"{wanted}-") for each in accepted
    ):
        return codes.BACKEND_NOT_ACCEPTED
    left = len(work.nodes) - sum(node_id in work.node_by_id for node_id in request.excluded_node_ids)
    if len(work.nodes) < request.min_nodes:
        return codes.TOO_FEW_NODES
    if left < max(1, request.min_nodes):
        return codes.ALL_NODES_EXCLUDED
    if request.min_nodes > 1 and request.sharding is Sharding.TENSOR and not work.card.supports_tensor:
        return codes.TENSOR_UNSUPPORTED
    return None


def narrowest_width(request: PlanRequest) -> int:
    """Fewest nodes the request allows."""
    return max(1, request.min_nodes, len(request.required_node_ids))


def _single_allowed(request: PlanRequest) -> bool:
    return request.min_nodes <= 1 and len(request.required_node_ids) <= 1


def search_single(work: Workspace, request: PlanRequest) -> Found:
    """Every node that holds the whole model alone."""
    screening = screen(work, request)
    found = Found(gated=screening.gated)
    required = request.required_node_ids
    for node in screening.serving:
        if required and node.node_id not in required:
            continue
        outcome = fit_node(work, node, request)
        if isinstance(outcome, Fit):
            candidate = Candidate((node,), outcome, Sharding.PIPELINE, InstanceMeta.RING)
            found.ranked.append((candidate, score(work, candidate)))
        else:
            found.refused[node.node_id] = outcome
    return found


def search_sets(work: Workspace, request: PlanRequest, found: Found) -> None:
    """Add the best set of the smallest width for each backend that would rank before what was found."""
    if request.max_nodes is not None and request.max_nodes < 2:
        return
    if request.sharding is Sharding.TENSOR and not work.card.supports_tensor:
        _note(found, SetRefusal(codes.TENSOR_UNSUPPORTED))
        return
    if not work.can_span:
        _note(found, SetRefusal(codes.ENGINE_CANNOT_SPAN))
        return
    if not work.snapshot.links_supported:
        _note(found, SetRefusal(codes.LINKS_UNSUPPORTED))
        return
    best = min((max(map(work.preference, c.tags)) for c, _ in found.ranked), default=None)
    groups = spanning_groups(work, request)
    if not groups:
        _note(found, SetRefusal(codes.NO_COMMON_ENGINE))
    for group in groups:
        index = group.preference
        if best is not None and (index > best or (index == best and found.ranked and _has_single(found))):
            continue
        candidate = _narrowest(work, request, group.tag, found)
        if candidate is not None:
            found.ranked.append((candidate, score(work, candidate)))
            index = max(map(work.preference, candidate.tags))
            best = index if best is None else min(best, index)


def _has_single(found: Found) -> bool:
    return any(len(candidate.members) == 1 for candidate, _ in found.ranked)


def _narrowest(work: Workspace, request: PlanRequest, tag: str, found: Found) -> Candidate | None:
    """The best-ranked set of the smallest width that works with the backend."""
    goal = work.goal(tag, request)
    if goal.requested is not None and goal.limit is not None and goal.requested > goal.limit:
        _note(found, SetRefusal(codes.CONTEXT_TOO_LARGE))
        return None
    shape = shape_for(tag, request, goal)
    if isinstance(shape, str):
        _note(found, SetRefusal(shape))
        return None
    narrowest = max(2, request.min_nodes, len(request.required_node_ids))
    having = carriers(work, request, tag)
    if len(having) < narrowest or not request.required_node_ids <= {node.node_id for node in having}:
        _note(found, SetRefusal(codes.NO_COMMON_ENGINE))
        return None
    members = linked_members(work, request, shape)
    for node_id, refusal in members.refused.items():
        found.refused.setdefault(node_id, refusal)
    if len(members.by_rank) < narrowest or not request.required_node_ids <= members.by_id.keys():
        _note(found, _lonely(work, members, shape))
        return None
    widest = min(len(members.by_rank), request.max_nodes or max(WIDEST, narrowest))
    for width in range(narrowest, widest + 1):
        if width < widest and work.weight_bytes(0, work.card.n_layers) > members.brought[width]:
            continue  # the weights alone are more than any such set holds
        if shape.sharding is Sharding.PIPELINE and (code := pipeline_problem(work, width)) is not None:
            _note(found, SetRefusal(code))
            return None  # nor does any wider one
        if shape.sharding is Sharding.TENSOR and not divides(work, width):
            _note(found, SetRefusal(codes.TENSOR_INDIVISIBLE))
            continue
        candidate = _best_of_width(work, request, shape, members, width, found)
        if candidate is not None:
            return candidate
    return None


def _lonely(work: Workspace, members: MemberIndex, shape: Shape) -> SetRefusal:
    """Too few nodes are linked: not observed yet, or not there."""
    unobserved = tuple(node.node_id for node in members.lonely if not work.links.observed_from(node.node_id))
    if unobserved:
        return SetRefusal(codes.LINKS_UNKNOWN, unobserved, missing=("links",))
    if not members.lonely:
        return SetRefusal(codes.NO_COMMON_ENGINE)  # the linked ones failed a filter of their own
    ids = tuple(node.node_id for node in members.lonely)
    everyone = [*ids, *members.by_id]
    problem = rdma_problem if shape.meta is InstanceMeta.JACCL else link_problem
    found = problem(work, everyone)
    return SetRefusal(found.code, ids, missing=found.missing)


def _best_of_width(
    work: Workspace, request: PlanRequest, shape: Shape, members: MemberIndex, width: int, found: Found
) -> Candidate | None:
    """The best-ranked set of one width."""
    whole = few_sets(members, width)
    best: tuple[tuple[object, ...], Candidate] | None = None
    tried = False
    for chosen in candidate_sets(work, shape, members, width, request.required_node_ids):
        tried = True
        outcome = fit_set(work, shape, chosen)
        if isinstance(outcome, SetRefusal):
            _note(found, outcome)
            continue
        key = score(work, outcome).key
        if best is None or key < best[0]:
            best = (key, outcome)
        if not whole:
            best = _improved(work, request, shape, members, chosen, best)
            break
    if not tried:
        problem = rdma_problem if shape.meta is InstanceMeta.JACCL else link_problem
        lacking = problem(work, tuple(members.by_id))
        _note(found, SetRefusal(lacking.code, missing=lacking.missing))
    return best[1] if best is not None else None


def _improved(
    work: Workspace,
    request: PlanRequest,
    shape: Shape,
    members: MemberIndex,
    fitting: Sequence[Member],
    best: tuple[tuple[object, ...], Candidate],
) -> tuple[tuple[object, ...], Candidate]:
    """The best by score of a set that fits and those estimated to be better."""
    needed = work.weight_bytes(0, work.card.n_layers)
    for chosen in better_sets(members, fitting, shape.sharding, request.required_node_ids, needed):
        outcome = fit_set(work, shape, chosen)
        if isinstance(outcome, Candidate):
            key = score(work, outcome).key
            best = min(best, (key, outcome), key=lambda entry: entry[0])
    return best


def _note(found: Found, refusal: SetRefusal) -> None:
    """Keep the refusal that came furthest; of memory shortages the smallest."""
    old = found.set_refusal
    nearer = old is None or _PROGRESS.index(refusal.code) > _PROGRESS.index(old.code)
    if old is not None and refusal.shortage is not None and old.shortage is not None:
        nearer = refusal.shortage.short_by < old.shortage.short_by
    if nearer:
        found.set_refusal = refusal

"""Exact placement: the caller says which node holds which layers; we check that it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import backends, codes
from wharfinger.placement.backends import Span
from wharfinger.placement.build import build_plan
from wharfinger.placement.fit import Arrangement, Fit, Shortage, fit_ranges
from wharfinger.placement.members import Member, may_mix, measure
from wharfinger.placement.memory import MIN_CONTEXT_TOKENS
from wharfinger.placement.orders import order_problem
from wharfinger.placement.ranking import Candidate, score
from wharfinger.placement.refusals import set_message
from wharfinger.placement.sets import SetRefusal, fit_order, member_tags
from wharfinger.placement.shapes import Shape, shape_for
from wharfinger.placement.single import (
    TagRefusal,
    fit_tag,
    gate,
    gate_refusal,
    node_refusal,
    node_stages,
    short_of_memory,
)
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceMeta,
    NodeFacts,
    NodeRefusal,
    PlanRequest,
    PlanResult,
    Refusal,
    Sharding,
)
from wharfinger.placement.window import WindowGoal, card_limit, goal_for, weights_unknown
from wharfinger.placement.workspace import Workspace


@dataclass(frozen=True, slots=True)
class ExactShard:
    """What one node is to hold, in rank order. llama.cpp RPC donors hold ``0..0``, their driver everything."""

    node_id: str
    start_layer: int
    end_layer: int
    backend: str | None = None
    """``None`` lets the node's most preferred common backend be taken."""


@dataclass(frozen=True, slots=True)
class ExactPlacement:
    """A placement given by a client."""

    shards: tuple[ExactShard, ...]
    sharding: Sharding = Sharding.PIPELINE
    meta: InstanceMeta = InstanceMeta.RING
    card_digest: str | None = None
    """Identity of the card the client planned with; ``None`` skips the comparison."""
    context_tokens: int | None = None
    """An upper cap on the window; ``None`` leaves it to the planner."""


class _Refused(Exception):
    """Ends the check; never leaves this module."""

    def __init__(self, code: str, message: str, nodes: tuple[NodeRefusal, ...] = ()) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, codes.category(code), message, nodes)


def check_exact(
    snapshot: FleetSnapshot, card: ModelCard, placement: ExactPlacement, request: PlanRequest
) -> PlanResult:
    """Whether the placement can be launched as given, with the memory and window it would get.

    Uses the planner's own parts: the same filters, footprints and window rules, existing reservations counted.

    Args:
        request: supplies serving settings, the default window and exclusions; its shape fields are not read.

    Returns:
        Exactly one plan, or a refusal with the code of the first check that failed.
    """
    request = replace(request, required_node_ids=frozenset(), context_tokens=None, backend=None)
    work = Workspace(snapshot, card, request.settings)
    try:
        candidate = _check(work, placement, request)
    except _Refused as refused:
        return PlanResult((), refused.refusal, refused.refusal.nodes)
    return PlanResult((build_plan(work, candidate, score(work, candidate)),))


def _check(work: Workspace, placement: ExactPlacement, request: PlanRequest) -> Candidate:
    card = work.card
    if placement.card_digest is not None and placement.card_digest != card.digest:
        raise _Refused(
            codes.IDENTITY_MISMATCH,
            f"the placement's card {placement.card_digest[:12]}… is not the catalog's {card.digest[:12]}… "
            f"of {card.model_id}; plan again with the catalog's card",
        )
    if placement.context_tokens is not None and placement.context_tokens <= 0:
        raise _Refused(
            codes.CONTEXT_NOT_POSITIVE, f"context_tokens is {placement.context_tokens}; it must be positive"
        )
    least = min(MIN_CONTEXT_TOKENS, card_limit(card) or MIN_CONTEXT_TOKENS)
    if placement.context_tokens is not None and placement.context_tokens < least:
        raise _Refused(
            codes.CONTEXT_OUT_OF_RANGE,
            f"context_tokens is {placement.context_tokens}; {least} is the least that is accepted",
        )
    if weights_unknown(card):
        raise _Refused(codes.WEIGHTS_UNKNOWN, f"{card.model_id}: {codes.MEANINGS[codes.WEIGHTS_UNKNOWN]}")
    nodes = _nodes(work, placement)
    _check_layers(card, placement)
    _gate(work, nodes, request)
    tag, tags = _tags(work, nodes, placement, request)
    goal, smaller = _goals(card, tag, placement, request)
    try:
        return _check_fit(work, nodes, tag, tags, goal, placement, request)
    except _Refused as refused:
        if smaller is None or refused.refusal.code != codes.MEMORY_SHORT:
            raise
    return _check_fit(work, nodes, tag, tags, smaller, placement, request)


def _check_fit(
    work: Workspace,
    nodes: Sequence[NodeFacts],
    tag: str,
    tags: Sequence[str],
    goal: WindowGoal,
    placement: ExactPlacement,
    request: PlanRequest,
) -> Candidate:
    if len(nodes) > 1:
        return _check_set(work, nodes, tag, tags, goal, placement, request)
    if placement.meta is InstanceMeta.RPC:
        raise _Refused(codes.META_NOT_APPLICABLE, f"one node is {InstanceMeta.RING}, not {placement.meta}")
    outcome = fit_tag(work, nodes[0], tags[0], goal)
    if isinstance(outcome, TagRefusal):
        refusal = node_refusal(nodes[0], outcome)
        raise _Refused(refusal.code, refusal.message, (refusal,))
    return Candidate((nodes[0],), outcome, Sharding.PIPELINE, InstanceMeta.RING)


def _nodes(work: Workspace, placement: ExactPlacement) -> tuple[NodeFacts, ...]:
    ids = [shard.node_id for shard in placement.shards]
    if not ids:
        raise _Refused(codes.LAYERS_NOT_COVERED, "the placement has no shards")
    for node_id in ids:
        if node_id not in work.node_by_id:
            raise _Refused(codes.NODE_UNKNOWN, f"node {node_id} is not in the fleet")
        if ids.count(node_id) > 1:
            raise _Refused(
                codes.NODE_REPEATED, f"node {node_id} holds {ids.count(node_id)} shards; one is allowed"
            )
    return tuple(work.node_by_id[node_id] for node_id in ids)


def _check_layers(card: ModelCard, placement: ExactPlacement) -> None:
    n_layers, shards = card.n_layers, placement.shards
    whole = (0, n_layers)
    ranges = [(shard.start_layer, shard.end_layer) for shard in shards]
    shown = ", ".join(f"{start}..{end}" for start, end in ranges)
    if placement.sharding is Sharding.TENSOR:
        if not card.supports_tensor:
            raise _Refused(codes.TENSOR_UNSUPPORTED, f"{card.model_id} does not support tensor sharding")
        if any(each != whole for each in ranges):
            raise _Refused(
                codes.SHARDING_MISMATCH, f"tensor ranks must each hold 0..{n_layers}; the shards hold {shown}"
            )
        return
    if placement.meta is InstanceMeta.RPC and len(shards) > 1:
        if ranges[0] != whole or any(each != (0, 0) for each in ranges[1:]):
            raise _Refused(
                codes.SHARDING_MISMATCH,
                f"an RPC driver must hold 0..{n_layers} and its donors 0..0; the shards hold {shown}",
            )
        return
    starts = [0, *(end for _, end in ranges[:-1])]
    in_order = all(own == start < end for (own, end), start in zip(ranges, starts, strict=True))
    if not in_order or ranges[-1][1] != n_layers:
        raise _Refused(
            codes.LAYERS_NOT_COVERED,
            f"layers 0..{n_layers} must be covered once and in order; the shards hold {shown}",
        )
    latest = card.placement.max_pipeline_split_layer
    if latest is not None and ranges[-1][0] > latest:
        raise _Refused(
            codes.SHARDING_MISMATCH,
            f"a pipeline rank may start at layer {latest} at the latest; the shards hold {shown}",
        )


def _gate(work: Workspace, nodes: Sequence[NodeFacts], request: PlanRequest) -> None:
    for node in nodes:
        code = gate(work, node, request)
        if code is not None:
            refusal = gate_refusal(work, node, code, request)
            raise _Refused(code, refusal.message, (refusal,))


def _tags(
    work: Workspace, nodes: Sequence[NodeFacts], placement: ExactPlacement, request: PlanRequest
) -> tuple[str, tuple[str, ...]]:
    """The one backend all shards use, or the engine they share, and the backend of each: as given, or the best."""
    eligible = [work.tags(node, None) for node in nodes]
    named = {shard.backend for shard in placement.shards if shard.backend is not None}
    if len(named) > 1 and not may_mix(work, sorted(named)):
        raise _Refused(
            codes.NO_COMMON_ENGINE,
            f"the shards name {', '.join(sorted(named))}; one backend, or backends of one engine that work together, "
            "must serve all",
        )
    if len(named) == 1:
        return next(iter(named)), _own_tags(work, nodes, eligible, [*named] * len(nodes), request)
    if named:
        engine = backends.engine_of(min(named))
        wanted = [shard.backend or engine for shard in placement.shards]
        return engine, _own_tags(work, nodes, eligible, wanted, request)
    common = [tag for tag in eligible[0] if all(tag in tags for tags in eligible)]
    if len(nodes) > 1:
        common = [tag for tag in common if backends.span_of(tag) is not Span.NONE]
    if common:
        return common[0], (common[0],) * len(nodes)
    for engine in dict.fromkeys(map(backends.engine_of, eligible[0])):
        own = tuple(_first_of(engine, tags) for tags in eligible)
        if backends.span_of(engine) is not Span.NONE and "" not in own and may_mix(work, own):
            return engine, own
    raise _Refused(codes.NO_COMMON_ENGINE, "no backend that can run this placement is on all of its nodes")


def _own_tags(
    work: Workspace,
    nodes: Sequence[NodeFacts],
    eligible: Sequence[Sequence[str]],
    wanted: Sequence[str],
    request: PlanRequest,
) -> tuple[str, ...]:
    """The backend each node is to run; a bare engine is the node's best backend of it."""
    found: list[str] = []
    for node, tags, tag in zip(nodes, eligible, wanted, strict=True):
        own = tag if tag in tags or backends.compute_of(tag) else _first_of(tag, tags)
        if own not in tags:
            asked = replace(request, backend=tag)
            code = gate(work, node, asked)
            if code in (codes.ENGINE_BUILD, codes.ENGINE_BUILD_UNKNOWN):
                refusal = gate_refusal(work, node, code, asked)
                raise _Refused(code, refusal.message, (refusal,))
            has = ", ".join(tags) or "none"
            raise _Refused(
                codes.ENGINE_MISSING, f"{node.name} cannot run this with {tag}; it could with: {has}"
            )
        found.append(own)
    return tuple(found)


def _first_of(engine: str, tags: Sequence[str]) -> str:
    return next((tag for tag in tags if backends.engine_of(tag) == engine), "")


def _goals(
    card: ModelCard, tag: str, placement: ExactPlacement, request: PlanRequest
) -> tuple[WindowGoal, WindowGoal | None]:
    """The window to try, and what to fall back on when its memory is not there.

    The window a placement carries is charged like one that was wished for, also for engines whose cache grows. It is
    a cap and no wish: where it does not fit, the largest that does is stamped and charged.
    """
    goal = goal_for(card, tag, request)
    cap = placement.context_tokens
    if cap is None:
        return goal, None
    if goal.limit is not None:
        cap = min(cap, goal.limit)
    return replace(goal, requested=cap), replace(goal, reserves=True, default=cap)


def _check_set(
    work: Workspace,
    nodes: Sequence[NodeFacts],
    tag: str,
    tags: Sequence[str],
    goal: WindowGoal,
    placement: ExactPlacement,
    request: PlanRequest,
) -> Candidate:
    width = len(nodes)
    asked = replace(
        request, sharding=placement.sharding, meta=placement.meta, min_nodes=width, max_nodes=width
    )
    if work.free_port(nodes) is None:
        raise _Refused(codes.NO_FREE_PORT, set_message(work, asked, codes.NO_FREE_PORT))
    if not work.snapshot.links_supported:
        raise _Refused(codes.LINKS_UNSUPPORTED, set_message(work, asked, codes.LINKS_UNSUPPORTED))
    shape = shape_for(tag, asked, goal)
    if isinstance(shape, str):
        raise _Refused(shape, set_message(work, asked, shape))
    if shape.meta is not placement.meta:
        raise _Refused(
            codes.META_NOT_APPLICABLE, f"{tag} over several nodes is {shape.meta}, not {placement.meta}"
        )
    members = tuple(_member(work, node, own) for node, own in zip(nodes, tags, strict=True))
    problem = order_problem(work, shape, members)
    if problem is not None:
        raise _Refused(problem, set_message(work, asked, problem))
    if shape.meta is InstanceMeta.RPC or shape.sharding is Sharding.TENSOR:
        outcome = fit_order(work, shape, members)
        if isinstance(outcome, SetRefusal):
            if outcome.shortage is None:
                raise _Refused(outcome.code, set_message(work, asked, outcome.code))
            raise _short(work, nodes, tags, outcome.shortage)
        return outcome
    fitted = _fit_given(
        work, shape, members, [(shard.start_layer, shard.end_layer) for shard in placement.shards]
    )
    if isinstance(fitted, Shortage):
        raise _short(work, nodes, tags, fitted)
    return Candidate(tuple(nodes), fitted, shape.sharding, shape.meta)


def _member(work: Workspace, node: NodeFacts, tag: str) -> Member:
    outcome = measure(work, node, tag)
    if isinstance(outcome, TagRefusal):
        refusal = node_refusal(node, outcome)
        raise _Refused(refusal.code, refusal.message, (refusal,))
    return outcome


def _short(work: Workspace, nodes: Sequence[NodeFacts], tags: Sequence[str], shortage: Shortage) -> _Refused:
    refusals = tuple(
        node_refusal(node, short_of_memory(work, node, tag, short))
        for node, tag, short in zip(nodes, tags, shortage.members, strict=True)
        if short is not None
    )
    return _Refused(codes.MEMORY_SHORT, "; ".join(refusal.message for refusal in refusals), refusals)


def _fit_given(
    work: Workspace, shape: Shape, members: Sequence[Member], ranges: Sequence[tuple[int, int]]
) -> Fit | Shortage:
    """Fit a pipeline with the layers of each node given; each node uses equally many devices, the fewest that do.

    Engines that lay layers over their devices span nodes as an RPC star, so here a node is one stage.
    """
    hosts = tuple(member.host for member in members)
    tags = member_tags(shape, members)
    nearest: Shortage | None = None
    ways = (node_stages(work, member.tag, member.pools, index) for index, member in enumerate(members))
    for way in zip(*ways, strict=False):  # the node with the fewest devices ends it
        stages = tuple(stage for stages in way for stage in stages)
        arrangement = Arrangement(shape.tag, Sharding.PIPELINE, stages, hosts, tags=tags)
        outcome = fit_ranges(work, arrangement, tuple(ranges), shape.goal)
        if isinstance(outcome, Fit):
            return outcome
        if nearest is None or outcome.short_by < nearest.short_by:
            nearest = outcome
    assert nearest is not None, "one device each is always a way"
    return nearest

"""Which missing facts could still turn a refusal into a plan, and which could not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wharfinger.placement import backends, codes
from wharfinger.placement.backends import Span
from wharfinger.placement.members import screen
from wharfinger.placement.search import WIDEST, Found
from wharfinger.placement.types import MemoryKind, NodeFacts, PlanRequest
from wharfinger.placement.workspace import Workspace

PERMANENT_SET_CODES: Final = frozenset(
    {
        codes.ENGINE_CANNOT_SPAN,
        codes.LINKS_UNSUPPORTED,
        codes.META_NOT_APPLICABLE,
        codes.TENSOR_UNSUPPORTED,
        codes.TENSOR_INDIVISIBLE,
        codes.TENSOR_OVER_RPC,
    }
)
"""What no fact that may still arrive changes."""


def sets_only(request: PlanRequest) -> bool:
    """Whether one node cannot answer the request."""
    return request.min_nodes > 1 or len(request.required_node_ids) > 1


def sets_possible(work: Workspace, request: PlanRequest, found: Found) -> bool:
    """Whether several nodes could answer the request if everything were known."""
    ruled_out = found.set_refusal is not None and found.set_refusal.code in PERMANENT_SET_CODES
    narrow = request.max_nodes is not None and request.max_nodes < 2
    return work.snapshot.links_supported and work.can_span and not ruled_out and not narrow


def may_matter(work: Workspace, request: PlanRequest, found: Found) -> Callable[[NodeFacts], bool]:
    """Whether a node with missing facts could hold the weights, alone or together with others, by its totals."""
    weights = work.weight_bytes(0, work.card.n_layers)
    accepted = {None, codes.ENGINES_UNKNOWN, codes.ENGINE_BUILD_UNKNOWN}
    totals = [_total_bytes(other) for other in work.nodes if found.gated.get(other.node_id) in accepted]
    enough_together = sets_possible(work, request, found) and (
        None in totals or sum(each or 0 for each in totals) >= weights
    )
    alone = not sets_only(request)

    def matters(node: NodeFacts) -> bool:
        total = _total_bytes(node)
        return total is None or (alone and total >= weights) or enough_together

    return matters


def _total_bytes(node: NodeFacts) -> int | None:
    """All memory of a node; ``None`` when a total is missing."""
    totals = [node.ram_total_bytes]
    totals.extend(
        d.total_bytes for d in node.devices if d.memory_kind in (MemoryKind.DISCRETE, MemoryKind.APU)
    )
    known = [each for each in totals if each is not None]
    return sum(known) if len(known) == len(totals) else None


def unobserved(work: Workspace, request: PlanRequest, found: Found) -> tuple[NodeFacts, ...]:
    """Nodes without an observed link that could hold the model together with others, if they were linked."""
    if not sets_possible(work, request, found):
        return ()
    waiting = {
        node.node_id
        for together in _able_together(work, request)
        for node in together
        if not work.links.observed_from(node.node_id)
    }
    return tuple(node for node in work.nodes if node.node_id in waiting)


def wants_links(work: Workspace, request: PlanRequest) -> bool:
    """Whether several nodes could hold what none holds alone, on a fleet that does not run models that way."""
    return not work.snapshot.links_supported and any(True for _ in _able_together(work, request))


def _able_together(work: Workspace, request: PlanRequest) -> Iterator[list[NodeFacts]]:
    """By engine that can span: its nodes, when their usable memory adds up to what the model needs at least."""
    width = request.max_nodes or max(WIDEST, request.min_nodes)
    screening = screen(work, request)
    key = (width, request.required_node_ids, request.context_tokens, request.default_context_tokens)
    found = screening.able_together.get(key)
    if found is None:
        found = screening.able_together[key] = tuple(_together(work, request, screening.serving, width))
    yield from found


def _together(
    work: Workspace, request: PlanRequest, serving: Sequence[NodeFacts], width: int
) -> Iterator[list[NodeFacts]]:
    by_engine: dict[str, dict[str, list[str]]] = {}
    for node in serving:
        for tag in work.tags(node, request.backend):
            if backends.span_of(tag) is not Span.NONE:
                by_engine.setdefault(backends.engine_of(tag), {}).setdefault(node.node_id, []).append(tag)
    for tags_by_node in by_engine.values():
        if len(tags_by_node) < 2 or not request.required_node_ids <= tags_by_node.keys():
            continue
        brought = sorted(
            (
                max(
                    sum(pool.usable_bytes or 0 for pool in work.pools(work.node_by_id[i], tag).devices)
                    for tag in tags
                )
                for i, tags in tags_by_node.items()
            ),
            reverse=True,
        )
        tag = min(tag for tags in tags_by_node.values() for tag in tags)
        floor = work.goal(tag, request).floor
        if sum(brought[:width]) >= work.sized(tag, 0, work.card.n_layers, 1, True, floor).device_bytes:
            yield [work.node_by_id[node_id] for node_id in tags_by_node]

"""Which node sets to try at a width: all when they are few, else the most promising, grown along the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from wharfinger.placement.backends import Span
from wharfinger.placement.members import Member, MemberIndex
from wharfinger.placement.shapes import Shape
from wharfinger.placement.types import InstanceMeta
from wharfinger.placement.workspace import Workspace

EXHAUSTIVE_SETS: Final = 64
"""Up to this many sets of a width, all are tried."""
_ANCHORS: Final = 16
"""Nodes a set is grown from before a width is given up."""

Linked = Mapping[str, frozenset[str]]


def few_sets(members: MemberIndex, width: int) -> bool:
    """Whether every set of the width is tried."""
    return comb(len(members.by_rank), width) <= EXHAUSTIVE_SETS


def candidate_sets(
    work: Workspace, shape: Shape, members: MemberIndex, width: int, required: frozenset[str]
) -> Iterator[tuple[Member, ...]]:
    """Sets of ``width`` members to try.

    All of them when they are few; else linked ones with the best ranks and with the most memory, the best ranked
    first. The number of sets grows with the width, not with the number of subsets.
    """
    if few_sets(members, width):
        for chosen in combinations(members.by_rank, width):
            if required <= {member.node_id for member in chosen}:
                yield chosen
        return
    linked = linked_nodes(work, shape)
    mesh = shape.span is not Span.STAR
    kept = [member for member in members.by_rank if member.node_id in required]
    best = _grow(members.by_rank, members.rank_of, members.by_id, kept, width, linked, mesh=mesh)
    if best is None:
        return
    fixed = required if mesh else required | {best[0].node_id}
    yield from _strengthened(best, members.by_memory, fixed, linked, mesh=mesh)
    most = _grow(members.by_memory, members.memory_rank_of, members.by_id, kept, width, linked, mesh=mesh)
    if most is not None:
        yield tuple(most)


def linked_nodes(work: Workspace, shape: Shape) -> Linked:
    """Whom each node may sit beside in the shape (for a star: whom it may drive)."""
    if shape.span is Span.STAR:
        return work.links.reaches
    return work.links.rdma_mutual if shape.meta is InstanceMeta.JACCL else work.links.mutual


def _grow(
    order: Sequence[Member],
    place: Mapping[str, int],
    by_id: Mapping[str, Member],
    kept: Sequence[Member],
    width: int,
    linked: Linked,
    *,
    mesh: bool,
) -> list[Member] | None:
    """The first linked set of that width, from the best anchors of the order on; the anchor comes first."""
    for anchor in kept[:1] or order[:_ANCHORS]:
        allowed = linked.get(anchor.node_id, frozenset())
        if len(allowed) < width - 1:
            continue
        chosen = [anchor]
        near = [member.node_id for member in kept if member.node_id in allowed]
        others = sorted((node_id for node_id in allowed if node_id in place), key=place.__getitem__)
        for node_id in dict.fromkeys((*near, *others)):
            if len(chosen) == width:
                break
            if node_id in allowed:
                chosen.append(by_id[node_id])
                if mesh:
                    allowed &= linked.get(node_id, frozenset())
        if len(chosen) == width and {member.node_id for member in kept} <= {m.node_id for m in chosen}:
            return chosen
    return None


def _strengthened(
    start: Sequence[Member],
    by_memory: Sequence[Member],
    fixed: frozenset[str],
    linked: Linked,
    *,
    mesh: bool,
) -> Iterator[tuple[Member, ...]]:
    """The best-ranked set, then the same with its smallest member replaced by the largest outside, step by step."""
    chosen = list(start)
    yield tuple(chosen)
    inside = {member.node_id for member in chosen}
    for incoming in by_memory:
        if incoming.node_id in inside:
            continue
        replaceable = [member for member in chosen if member.node_id not in fixed]
        if not replaceable:
            return
        weakest = min(replaceable, key=lambda member: (member.usable, member.node_id))
        if incoming.usable <= weakest.usable:
            return
        others = inside - {weakest.node_id}
        sits = (
            others <= linked.get(incoming.node_id, frozenset())
            if mesh
            else (incoming.node_id in linked.get(chosen[0].node_id, frozenset()))
        )
        if not sits:
            continue
        chosen[chosen.index(weakest)] = incoming
        inside = others | {incoming.node_id}
        yield tuple(chosen)

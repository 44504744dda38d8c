"""Which node sets to try at a width: all when they are few, else the most promising, grown along the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
_SEARCHED_SETS: Final = 256
"""Up to this many, all are tried when none of the most promising works. C(12, 3) = 220."""
_RING_STEPS: Final = 300
"""Most steps of looking for a ring from one node."""
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
    first, and then all others when they are not many. Otherwise the number of sets grows with the width, not with
    the number of subsets.
    """
    if few_sets(members, width):
        for chosen in combinations(members.by_rank, width):
            if required <= {member.node_id for member in chosen}:
                yield chosen
        return
    linked = linked_nodes(work, shape)
    mesh = shape.span is not Span.STAR
    ring = shape.span is Span.RING and shape.meta is not InstanceMeta.JACCL
    kept = [member for member in members.by_rank if member.node_id in required]
    grow = _grow_ring if ring else partial(_grow, mesh=mesh)
    best = grow(members.by_rank, members.rank_of, members.by_id, kept, width, linked)
    if best is not None:
        fixed = required if mesh else required | {best[0].node_id}
        yield from _strengthened(best, members.by_memory, fixed, linked, mesh=mesh)
        most = grow(members.by_memory, members.memory_rank_of, members.by_id, kept, width, linked)
        if most is not None:
            yield tuple(most)
    if comb(len(members.by_rank), width) <= _SEARCHED_SETS:
        needed = work.weight_bytes(0, work.card.n_layers)
        for chosen in combinations(members.by_rank, width):
            if sum(member.all_bytes for member in chosen) >= needed:
                ids = {member.node_id for member in chosen}
                if required <= ids:
                    yield chosen


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


def _grow_ring(
    order: Sequence[Member],
    place: Mapping[str, int],
    by_id: Mapping[str, Member],
    kept: Sequence[Member],
    width: int,
    linked: Linked,
) -> list[Member] | None:
    """The first closed ring of that width: a chain of the best neighbours of each other that comes back."""
    wanted = {member.node_id for member in kept}
    for anchor in kept[:1] or order[:_ANCHORS]:
        near = linked.get(anchor.node_id, frozenset())
        steps = _RING_STEPS
        stack = [[anchor.node_id]]
        while stack and steps:
            steps -= 1
            chain = stack.pop()
            if len(chain) == width:
                if chain[-1] in near and wanted <= set(chain):
                    return [by_id[node_id] for node_id in chain]
                continue
            if len(wanted - set(chain)) > width - len(chain):
                continue
            following = [n for n in linked.get(chain[-1], ()) if n in place and n not in chain]
            if len(chain) == width - 1:
                following = [n for n in following if n in near]
            following.sort(key=lambda n: (n not in wanted, place[n]), reverse=True)
            stack.extend([*chain, node_id] for node_id in following)
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

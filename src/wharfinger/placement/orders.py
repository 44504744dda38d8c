"""Orders of ranks over a node set, best links first, and what the links lack when there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Final

from wharfinger.placement import codes
from wharfinger.placement.backends import Span
from wharfinger.placement.members import Member, largest
from wharfinger.placement.shapes import Shape
from wharfinger.placement.types import InstanceMeta
from wharfinger.placement.workspace import Workspace

_EXHAUSTIVE_ORDERS: Final = 4
"""Up to this many nodes, every order of ranks is tried before a set is refused. 4! = 24."""


@dataclass(frozen=True, slots=True)
class LinkProblem:
    """What the links of some nodes lack."""

    code: str
    missing: tuple[str, ...] = ()
    """Facts about them that have not been observed, when that is all."""


def rank_orders(
    work: Workspace, shape: Shape, members: Sequence[Member]
) -> Iterable[tuple[Member, ...]] | LinkProblem:
    """Rank orders to try, or what the links lack."""
    if shape.span is Span.STAR:
        return _star_orders(work, members)
    by_id = {member.node_id: member for member in members}
    ids = sorted(by_id)
    if shape.meta is InstanceMeta.JACCL:
        if not _mesh(ids, work.links.rdma_mutual):
            return rdma_problem(work, ids)
        ring: Sequence[str] | None = ids
    elif shape.span is Span.MESH and not _mesh(ids, work.links.mutual):
        return link_problem(work, ids)
    else:
        ring = work.links.ring(ids)
    if ring is None:
        return link_problem(work, ids)
    return _ring_orders(work, shape, tuple(by_id[node_id] for node_id in ring))


def order_problem(work: Workspace, shape: Shape, order: Sequence[Member]) -> str | None:
    """Code of what the links lack for exactly this order; ``None`` when they suffice."""
    ids = [member.node_id for member in order]
    if shape.span is Span.STAR:
        reached = all(work.links.best(ids[0], donor, routable=True) for donor in ids[1:])
        if reached:
            return None
        local = all(work.links.best(ids[0], donor) for donor in ids[1:])
        return codes.NO_ROUTABLE_ADDRESS if local else star_problem(work, ids).code
    if shape.meta is InstanceMeta.JACCL:
        return None if _mesh(ids, work.links.rdma_mutual) else rdma_problem(work, ids).code
    linked = _mesh(ids, work.links.mutual) if shape.span is Span.MESH else work.links.closed(ids)
    return None if linked else link_problem(work, ids).code


def _ring_orders(work: Workspace, shape: Shape, ring: tuple[Member, ...]) -> Iterator[tuple[Member, ...]]:
    """The ring as found, its turns in both directions, then other closed rings of few or sorted members."""
    tried: set[tuple[str, ...]] = set()
    free = shape.span is Span.MESH or shape.meta is InstanceMeta.JACCL
    for order in _turns_and_others(ring):
        ids = tuple(member.node_id for member in order)
        if ids not in tried and (free or work.links.closed(ids)):
            tried.add(ids)
            yield order


def _turns_and_others(ring: tuple[Member, ...]) -> Iterator[tuple[Member, ...]]:
    width = len(ring)
    for turned in (ring, ring[::-1]):
        for start in range(width):
            yield turned[start:] + turned[:start]
    if width <= _EXHAUSTIVE_ORDERS:
        yield from permutations(ring)
    else:
        by_size = tuple(largest(ring))
        yield from (by_size, by_size[::-1])


def _star_orders(work: Workspace, members: Sequence[Member]) -> Iterable[tuple[Member, ...]] | LinkProblem:
    """Driver first: the largest that reaches every donor; more of the files on disk breaks ties."""
    model_id = work.card.model_id
    by_size = largest(members)
    drivers = sorted(
        members, key=lambda m: (-m.usable, -m.node.local_artifacts.get(model_id, 0.0), m.node_id)
    )
    reaching: list[tuple[Member, tuple[Member, ...]]] = []
    local_only = False
    for driver in drivers:
        donors = tuple(member for member in by_size if member is not driver)
        if all(work.links.best(driver.node_id, donor.node_id, routable=True) for donor in donors):
            reaching.append((driver, donors))
        elif all(work.links.best(driver.node_id, donor.node_id) for donor in donors):
            local_only = True
    if reaching:
        return _driven(reaching)
    if local_only:
        return LinkProblem(codes.NO_ROUTABLE_ADDRESS)
    return star_problem(work, [member.node_id for member in members])


def _driven(reaching: Sequence[tuple[Member, tuple[Member, ...]]]) -> Iterator[tuple[Member, ...]]:
    """Each driver with its donors, largest first, then in other orders."""
    for driver, donors in reaching:
        few = len(donors) < _EXHAUSTIVE_ORDERS
        for tail in permutations(donors) if few else (donors, donors[::-1]):
            yield (driver, *tail)


def _mesh(ids: Sequence[str], linked: dict[str, frozenset[str]]) -> bool:
    return all(right in linked.get(left, ()) for left, right in combinations(ids, 2))


def link_problem(work: Workspace, ids: Sequence[str]) -> LinkProblem:
    """Why neighbours are not linked: not observed at all, of unknown address, or missing."""
    if not all(work.links.observed_from(node_id) for node_id in ids):
        return LinkProblem(codes.LINKS_UNKNOWN, ("links",))
    known = work.links.all_addressed
    if not known and any(work.links.unaddressed(left, right) for left, right in combinations(ids, 2)):
        return LinkProblem(codes.LINKS_UNKNOWN, ("link_address",))
    return LinkProblem(codes.LINK_MISSING)


def star_problem(work: Workspace, ids: Sequence[str]) -> LinkProblem:
    """Why no driver reaches every donor."""
    if not all(work.links.observed_from(node_id) for node_id in ids):
        return LinkProblem(codes.LINKS_UNKNOWN, ("links",))
    known = work.links.all_addressed
    if not known and any(work.links.unaddressed_from(left, right) for left, right in permutations(ids, 2)):
        return LinkProblem(codes.LINKS_UNKNOWN, ("link_address",))
    return LinkProblem(codes.LINK_MISSING)


def rdma_problem(work: Workspace, ids: Sequence[str]) -> LinkProblem:
    """Why nodes do not reach each other over RDMA: interfaces of unknown name, or none."""
    known = work.links.all_named
    if not known and any(work.links.unnamed_rdma(left, right) for left, right in combinations(ids, 2)):
        return LinkProblem(codes.LINKS_UNKNOWN, ("rdma_interface",))
    if not work.links.all_addressed and any(work.links.unaddressed(a, b) for a, b in combinations(ids, 2)):
        return LinkProblem(codes.LINKS_UNKNOWN, ("link_address",))
    return LinkProblem(codes.RDMA_MISSING)

"""Node sets: which to try at a width, how their links must look, and whether they hold the model.

Sets, never cycles: a set is tried once, and its ring order is chosen afterwards by the best links. Small choices
are tried whole; beyond that the sets with most memory and with the best ranks are grown along the links, so that the
work grows with the number of nodes and not with the number of their subsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import comb
from typing import Final

from wharfinger.placement import backends, codes
from wharfinger.placement.backends import DeviceUse, Span
from wharfinger.placement.fit import Arrangement, Fit, Shortage, Stage, fit
from wharfinger.placement.members import Member, largest
from wharfinger.placement.ranking import Candidate
from wharfinger.placement.split import tensor_divides
from wharfinger.placement.types import InstanceMeta, PlanRequest, Sharding
from wharfinger.placement.window import WindowGoal
from wharfinger.placement.workspace import Workspace

EXHAUSTIVE_SETS: Final = 64
"""Up to this many sets of a width, all are tried."""
_EXHAUSTIVE_ORDERS: Final = 4
"""Up to this many nodes, every order of ranks is tried before a set is refused. 4! = 24."""


@dataclass(frozen=True, slots=True)
class SetRefusal:
    """Why a set of nodes is out."""

    code: str
    members: tuple[Member, ...] = ()
    shortage: Shortage | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of set is looked for."""

    tag: str
    sharding: Sharding
    meta: InstanceMeta
    span: Span
    goal: WindowGoal


def shape_for(tag: str, request: PlanRequest, goal: WindowGoal) -> Shape | str:
    """The shape a backend gives the request, or the code that rules the backend out."""
    span = backends.span_of(tag)
    if span is Span.STAR:
        # A GGUF model over several machines is always llama.cpp RPC, whichever meta was asked for.
        if request.sharding is Sharding.TENSOR:
            return codes.TENSOR_OVER_RPC
        return Shape(tag, Sharding.PIPELINE, InstanceMeta.RPC, span, goal)
    if request.meta is InstanceMeta.RPC or (request.meta is InstanceMeta.JACCL and span is not Span.RING):
        return codes.META_NOT_APPLICABLE
    return Shape(tag, request.sharding, request.meta, span, goal)


def candidate_sets(
    work: Workspace, shape: Shape, members: Sequence[Member], width: int, required: frozenset[str]
) -> Iterator[tuple[Member, ...]]:
    """Sets of ``width`` members to try; all that are linked when there are few, else the most promising ones."""
    if comb(len(members), width) <= EXHAUSTIVE_SETS:
        for chosen in combinations(members, width):
            if required <= {member.node_id for member in chosen}:
                yield chosen
        return
    seen: set[frozenset[str]] = set()
    for chosen in _grown(work, shape, members, width, required):
        ids = frozenset(member.node_id for member in chosen)
        if ids not in seen:
            seen.add(ids)
            yield chosen


def _grown(
    work: Workspace, shape: Shape, members: Sequence[Member], width: int, required: frozenset[str]
) -> Iterator[tuple[Member, ...]]:
    linked = work.links.rdma_mutual if shape.meta is InstanceMeta.JACCL else work.links.mutual
    by_memory = largest(members)
    by_rank = sorted(members, key=lambda member: member.rank_key)
    kept = [member for member in members if member.node_id in required]
    for order in (by_rank, by_memory):
        grown = None
        for anchor in kept[:1] or order:
            grown = _grow(anchor, order, kept, width, linked)
            if grown is not None:
                break
        if grown is None:
            return  # no fully linked set of this width holds the anchors tried
        if order is by_rank:
            yield from _strengthened(grown, by_memory, frozenset(required), linked)
        else:
            yield tuple(grown)


def _grow(
    anchor: Member,
    order: Sequence[Member],
    kept: Sequence[Member],
    width: int,
    linked: dict[str, frozenset[str]],
) -> list[Member] | None:
    """The first fully linked set of that width found along the order, starting from the anchor."""
    chosen = [anchor]
    allowed = linked.get(anchor.node_id, frozenset())
    for member in (*kept, *order):
        if len(chosen) == width:
            break
        if member.node_id in allowed:
            chosen.append(member)
            allowed &= linked.get(member.node_id, frozenset())
    complete = {member.node_id for member in kept} <= {member.node_id for member in chosen}
    return chosen if len(chosen) == width and complete else None


def _strengthened(
    start: Sequence[Member],
    by_memory: Sequence[Member],
    required: frozenset[str],
    linked: dict[str, frozenset[str]],
) -> Iterator[tuple[Member, ...]]:
    """The best-ranked set, then the same with its smallest member replaced by the largest outside, step by step."""
    chosen = list(start)
    yield tuple(chosen)
    for incoming in by_memory:
        if incoming in chosen:
            continue
        replaceable = [member for member in chosen if member.node_id not in required]
        if not replaceable:
            return
        weakest = min(replaceable, key=lambda member: (member.usable, member.node_id))
        if incoming.usable <= weakest.usable:
            return
        others = {member.node_id for member in chosen if member is not weakest}
        if not others <= linked.get(incoming.node_id, frozenset()):
            continue
        chosen[chosen.index(weakest)] = incoming
        yield tuple(chosen)


def fit_set(work: Workspace, shape: Shape, members: Sequence[Member]) -> Candidate | SetRefusal:
    """Whether a set is linked as the engine needs and holds the model; the candidate is in rank order."""
    card = work.card
    if shape.sharding is Sharding.PIPELINE and len(members) > card.n_layers:
        return SetRefusal(codes.TOO_FEW_LAYERS)
    if shape.sharding is Sharding.TENSOR and not _divides(work, len(members)):
        return SetRefusal(codes.TENSOR_INDIVISIBLE)
    orders = _orders(work, shape, members)
    if isinstance(orders, str):
        return SetRefusal(orders, tuple(members))
    nearest: SetRefusal | None = None
    for order in orders:
        for arrangement in _arrangements(work, shape, order):
            outcome = fit(work, arrangement, shape.goal)
            if isinstance(outcome, Fit):
                nodes = tuple(member.node for member in order)
                return Candidate(nodes, outcome, shape.sharding, shape.meta)
            if nearest is None or nearest.shortage is None or outcome.short_by < nearest.shortage.short_by:
                nearest = SetRefusal(codes.MEMORY_SHORT, tuple(order), outcome)
        if _hopeless(work, shape, members):
            break
    return nearest or SetRefusal(codes.TENSOR_INDIVISIBLE, tuple(members))


def _divides(work: Workspace, width: int) -> bool:
    card = work.card
    return tensor_divides(width, card.hidden_size, card.num_attention_heads, card.num_key_value_heads)


def _hopeless(work: Workspace, shape: Shape, members: Sequence[Member]) -> bool:
    """No order of ranks can help: the weights alone are more than the set brings, or every rank holds the same."""
    if shape.sharding is Sharding.TENSOR:
        return True
    if backends.device_use(shape.tag) is DeviceUse.TENSOR:
        brought = sum(pool.usable_bytes or 0 for member in members for pool in member.pools)
    else:
        brought = sum(member.usable for member in members)
    return work.weight_bytes(0, work.card.n_layers) > brought


def _orders(work: Workspace, shape: Shape, members: Sequence[Member]) -> Iterable[tuple[Member, ...]] | str:
    """Rank orders to try, best links first; or the code of what the links lack."""
    by_id = {member.node_id: member for member in members}
    ids = sorted(by_id)
    if shape.span is Span.STAR:
        return _star_orders(work, members)
    if shape.meta is InstanceMeta.JACCL and not _mesh(ids, work.links.rdma_mutual):
        return codes.RDMA_MISSING
    if shape.span is Span.MESH and not _mesh(ids, work.links.mutual):
        return _link_code(work, ids)
    ring = work.links.ring(ids) if shape.meta is not InstanceMeta.JACCL else tuple(ids)
    if ring is None:
        return _link_code(work, ids)
    ranked = tuple(by_id[node_id] for node_id in ring)
    return _ring_orders(work, shape, ranked)


def _ring_orders(work: Workspace, shape: Shape, ring: tuple[Member, ...]) -> Iterator[tuple[Member, ...]]:
    """The ring as found, its turns in both directions, then other closed rings of few or sorted members."""
    width = len(ring)
    tried: set[tuple[str, ...]] = set()

    def fresh(order: tuple[Member, ...]) -> bool:
        ids = tuple(member.node_id for member in order)
        if ids in tried:
            return False
        tried.add(ids)
        return True

    for turned in (ring, ring[::-1]):
        for start in range(width):
            order = turned[start:] + turned[:start]
            if fresh(order):
                yield order
    free = shape.span is Span.MESH or shape.meta is InstanceMeta.JACCL
    more = (
        permutations(ring)
        if width <= _EXHAUSTIVE_ORDERS
        else (tuple(largest(ring)), tuple(largest(ring)[::-1]))
    )
    for order in more:
        if fresh(order) and (free or work.links.closed([member.node_id for member in order])):
            yield order


def _star_orders(work: Workspace, members: Sequence[Member]) -> list[tuple[Member, ...]] | str:
    """Driver first: the largest that reaches every donor over a routable address; more files on disk break ties."""
    model_id = work.card.model_id
    drivers = sorted(
        members,
        key=lambda m: (-m.usable, -m.node.local_artifacts.get(model_id, 0.0), m.node_id),
    )
    orders: list[tuple[Member, ...]] = []
    local_only = False
    for driver in drivers:
        donors = [member for member in largest(members) if member is not driver]
        if all(work.links.best(driver.node_id, donor.node_id, routable=True) for donor in donors):
            tails = (
                permutations(donors)
                if len(members) <= _EXHAUSTIVE_ORDERS
                else (tuple(donors), tuple(donors[::-1]))
            )
            orders.extend((driver, *tail) for tail in tails)
        elif all(work.links.best(driver.node_id, donor.node_id) for donor in donors):
            local_only = True
    if orders:
        return orders
    return (
        codes.NO_ROUTABLE_ADDRESS if local_only else _link_code(work, [member.node_id for member in members])
    )


def _mesh(ids: Sequence[str], linked: dict[str, frozenset[str]]) -> bool:
    return all(right in linked.get(left, ()) for left, right in combinations(ids, 2))


def _link_code(work: Workspace, ids: Iterable[str]) -> str:
    """Links still unknown when some node has none observed at all, else missing."""
    return (
        codes.LINK_MISSING
        if all(work.links.observed_from(node_id) for node_id in ids)
        else codes.LINKS_UNKNOWN
    )


def _arrangements(work: Workspace, shape: Shape, order: Sequence[Member]) -> Iterator[Arrangement]:
    """Ways to use the devices of the members in this order, fewest devices first."""
    hosts = tuple(member.host for member in order)
    use = backends.device_use(shape.tag)
    if use is DeviceUse.LAYERS:
        yield _layered(work, shape, order)
        return
    most = min(len(member.pools) for member in order) if use is DeviceUse.TENSOR else 1
    for count in range(1, most + 1):
        ways = count * len(order) if shape.sharding is Sharding.TENSOR else count
        if count > 1 and not _divides(work, ways):
            continue
        stages = tuple(
            Stage.of(index, sorted(member.pools[:count], key=lambda pool: pool.device_index or 0))
            for index, member in enumerate(order)
        )
        yield Arrangement(shape.tag, shape.sharding, stages, hosts)


def _layered(work: Workspace, shape: Shape, order: Sequence[Member]) -> Arrangement:
    """Every device of every member is a stage; llama.cpp lists the donors' devices before the driver's own."""
    budget = work.card.n_layers - len(order)
    by_member: list[tuple[Stage, ...]] = []
    for index, member in enumerate(order):
        extra = min(budget, len(member.pools) - 1)
        budget -= extra
        pools = sorted(member.pools[: 1 + extra], key=lambda pool: pool.device_index or 0)
        by_member.append(tuple(Stage.of(index, (pool,)) for pool in pools))
    driver, *donors = by_member
    stages = tuple(stage for member_stages in (*donors, driver) for stage in member_stages)
    return Arrangement(shape.tag, Sharding.PIPELINE, stages, tuple(member.host for member in order), driver=0)

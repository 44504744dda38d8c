"""Whether a set of nodes holds a model together, and with which devices and cut.

Sets, never cycles: a set is tried once, and its ring order is chosen afterwards by the best links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wharfinger.placement import backends, codes
from wharfinger.placement.backends import DeviceUse
from wharfinger.placement.fit import Arrangement, Fit, Shortage, Stage, fit
from wharfinger.placement.members import Member
from wharfinger.placement.memory.interface import Pool
from wharfinger.placement.orders import LinkProblem, rank_orders
from wharfinger.placement.ranking import Candidate
from wharfinger.placement.shapes import Shape
from wharfinger.placement.single import indivisible
from wharfinger.placement.split import tensor_divides
from wharfinger.placement.types import Sharding
from wharfinger.placement.workspace import Workspace


@dataclass(frozen=True, slots=True)
class SetRefusal:
    """Why a set of nodes is out."""

    code: str
    node_ids: tuple[str, ...] = ()
    """Nodes of the set in rank order; for missing links, the nodes that lack them."""
    shortage: Shortage | None = None
    missing: tuple[str, ...] = ()
    """Facts about the links that have not been observed."""


def fit_set(work: Workspace, shape: Shape, members: Sequence[Member]) -> Candidate | SetRefusal:
    """Whether a set is linked as the engine needs and holds the model; the candidate is in rank order."""
    orders = rank_orders(work, shape, members)
    if isinstance(orders, LinkProblem):
        return SetRefusal(orders.code, _ids(members), missing=orders.missing)
    nearest: SetRefusal | None = None
    for order in _unlike(orders):
        outcome = fit_order(work, shape, order)
        if isinstance(outcome, Candidate):
            taken = work.free_port(outcome.members) is None
            return SetRefusal(codes.NO_FREE_PORT, _ids(order)) if taken else outcome
        if nearest is None or _short_by(outcome) < _short_by(nearest):
            nearest = outcome
        if shape.sharding is Sharding.TENSOR or _too_heavy(work, members):
            break  # no other order can help
    assert nearest is not None, "a linked set has at least one order"
    return nearest


def _unlike(orders: Iterable[tuple[Member, ...]]) -> Iterator[tuple[Member, ...]]:
    """The orders without those that only swap members with equal memory: they fit alike."""
    kinds: dict[str, object] = {}
    seen: set[tuple[object, ...]] = set()
    orders = iter(orders)
    first = next(orders)
    yield first  # most sets need no other
    for order in orders:
        if not kinds:
            kinds = {member.node_id: _kind(member) for member in order}
            seen.add(tuple(kinds[member.node_id] for member in first))
        own = tuple(kinds[member.node_id] for member in order)
        if own not in seen:
            seen.add(own)
            yield order


def _kind(member: Member) -> object:
    """What a fit reads of a member."""
    pools = tuple((p.device_index, p.usable_bytes, p.deficit_bytes, p.domain) for p in member.pools)
    return (member.tag, member.host, pools)


def fit_order(work: Workspace, shape: Shape, order: Sequence[Member]) -> Candidate | SetRefusal:
    """Whether the members hold the model in this order of ranks, with the fewest devices that do."""
    if shape.sharding is Sharding.PIPELINE and (code := pipeline_problem(work, len(order))) is not None:
        return SetRefusal(code, _ids(order))
    nearest: Shortage | None = None
    for arrangement in _arrangements(work, shape, order):
        outcome = fit(work, arrangement, shape.goal)
        if isinstance(outcome, Fit):
            return Candidate(tuple(member.node for member in order), outcome, shape.sharding, shape.meta)
        if nearest is None or outcome.short_by < nearest.short_by:
            nearest = outcome
    if nearest is None:
        return SetRefusal(codes.TENSOR_INDIVISIBLE, _ids(order))
    return SetRefusal(codes.MEMORY_SHORT, _ids(order), nearest)


def _ids(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(member.node_id for member in members)


def _short_by(refusal: SetRefusal) -> int:
    return refusal.shortage.short_by if refusal.shortage is not None else 2**63


def pipeline_problem(work: Workspace, stages: int) -> str | None:
    """Code of why the layers cannot be cut over that many stages of several nodes; ``None`` when they can."""
    if stages > work.card.n_layers:
        return codes.TOO_FEW_LAYERS
    latest = work.card.placement.max_pipeline_split_layer
    return codes.SPLIT_LIMITED if latest is not None and stages - 1 > latest else None


def divides(work: Workspace, width: int) -> bool:
    """Whether every layer can be cut over ``width`` tensor ranks."""
    card = work.card
    return tensor_divides(width, card.hidden_size, card.num_attention_heads, card.num_key_value_heads)


def _too_heavy(work: Workspace, members: Sequence[Member]) -> bool:
    return work.weight_bytes(0, work.card.n_layers) > sum(member.all_bytes for member in members)


def _arrangements(work: Workspace, shape: Shape, order: Sequence[Member]) -> Iterator[Arrangement]:
    """Ways to use the devices of the members in this order."""
    hosts = tuple(member.host for member in order)
    use = backends.device_use(shape.tag)
    if use is DeviceUse.LAYERS:
        yield from _layered(work, shape, order)
        return
    most = min(len(member.pools) for member in order) if use is DeviceUse.TENSOR else 1
    for count in range(1, most + 1):
        if shape.sharding is Sharding.TENSOR:
            if not divides(work, count * len(order)):
                continue
        elif count > 1 and indivisible(work.card, count):
            continue
        stages = tuple(Stage.of(index, _by_index(member.pools[:count])) for index, member in enumerate(order))
        yield Arrangement(shape.tag, shape.sharding, stages, hosts, tags=member_tags(shape, order))


def _layered(work: Workspace, shape: Shape, order: Sequence[Member]) -> Iterator[Arrangement]:
    """Devices as stages: one per member first, then one more each, as far as they hold a layer at all.

    llama.cpp lists the donors' devices before the driver's own, so the driver's come last.
    """
    useful = [_useful(work, shape, member) for member in order]
    hosts = tuple(member.host for member in order)
    for count in range(1, max(len(pools) for pools in useful) + 1):
        by_member = [
            [Stage.of(index, (pool,)) for pool in _by_index(pools[:count])]
            for index, pools in enumerate(useful)
        ]
        driver, *donors = by_member
        stages = tuple(stage for member_stages in (*donors, driver) for stage in member_stages)
        if pipeline_problem(work, len(stages)) is not None:
            return
        tags = member_tags(shape, order)
        yield Arrangement(shape.tag, Sharding.PIPELINE, stages, hosts, driver=0, tags=tags)


def _useful(work: Workspace, shape: Shape, member: Member) -> Sequence[Pool]:
    """Pools of a member that hold a layer at all."""
    one_layer = work.sized(member.tag, 0, 1, 1, False, shape.goal.floor).device_bytes
    return [pool for pool in member.pools if (pool.usable_bytes or 0) >= one_layer] or [member.pools[0]]


def member_tags(shape: Shape, order: Sequence[Member]) -> tuple[str, ...]:
    """Each member's backend where they may differ."""
    tags = tuple(member.tag for member in order)
    return () if all(tag == shape.tag for tag in tags) else tags


def _by_index(pools: Sequence[Pool]) -> list[Pool]:
    return sorted(pools, key=lambda pool: pool.device_index or 0)

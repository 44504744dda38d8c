"""Fitting a model onto an ordered arrangement of memory pools.

A *stage* holds a contiguous range of layers; its pools share every layer of the range by tensor. Stages belong to
*members* (nodes, in rank order). What a shard needs of RAM beside its device is charged once per member. Pools of one
memory (RAM and devices that share it) must hold together what is charged to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from wharfinger.placement.memory import MAX_CONTEXT_TOKENS
from wharfinger.placement.memory.interface import RAM_DOMAIN, Pool
from wharfinger.placement.split import boundaries, largest_remainder, pack
from wharfinger.placement.types import DeviceCharge, MemoryPart, Sharding
from wharfinger.placement.window import WindowGoal, largest_window
from wharfinger.placement.workspace import ENGINE_FLOOR, HostMemory, Sized, Workspace

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """Pools of one member that hold one range of layers together."""

    member: int
    pools: tuple[Pool, ...]
    usable: int
    """The smallest pool's bytes: each holds an equal part."""
    ram_pools: int
    """How many of the pools are, or share, the node's RAM."""
    ram_left: int
    """What the RAM has by the strictest rule of those pools; 0 without one."""

    @classmethod
    def of(cls, member: int, pools: Sequence[Pool]) -> Stage:
        """A stage over measured pools."""
        in_ram = [pool.left_bytes for pool in pools if _in_ram(pool)]
        usable = min([pool.usable_bytes or 0 for pool in pools])
        return cls(member, tuple(pools), usable, len(in_ram), min(in_ram, default=0))


@dataclass(frozen=True)
class Arrangement:
    """Stages in layer order, with the memory each member has beside its devices."""

    tag: str
    sharding: Sharding
    stages: tuple[Stage, ...]
    hosts: tuple[HostMemory, ...]
    """By member."""
    driver: int | None = None
    """llama.cpp RPC: the member that reads the file and so holds the embedding, whatever layers it has."""
    tags: tuple[str, ...] = ()
    """By member, where unlike machines run one engine; ``tag`` is then the engine. Empty: ``tag`` is everybody's."""

    def tag_of(self, member: int) -> str:
        """The backend of a member."""
        return self.tags[member] if self.tags else self.tag

    @cached_property
    def cuts(self) -> tuple[tuple[int, bool], ...]:
        """By stage: how many ways its layers are cut, and whether it holds the token embedding."""
        if self.sharding is Sharding.TENSOR:
            ranks = sum(len(stage.pools) for stage in self.stages)
            return ((ranks, True),) * len(self.stages)
        reader = 0
        if self.driver is not None:
            reader = next(i for i, stage in enumerate(self.stages) if stage.member == self.driver)
        return tuple((len(stage.pools), index == reader) for index, stage in enumerate(self.stages))


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitting arrangement: what each member is charged and the windows that follow."""

    arrangement: Arrangement
    ranges: Ranges
    charges: tuple[tuple[DeviceCharge, ...], ...]
    context_tokens: int | None
    max_context_tokens: int | None
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemberShortage:
    """What one member lacks in an arrangement that does not fit."""

    needed: int
    usable: int
    """What the pools that are too small have, negative where claims exceed what there is."""
    parts: tuple[MemoryPart, ...]
    """What is needed of the pools that are too small."""
    pools: tuple[int | None, ...] = ()
    """Device indices of the pools that are too small (``None``: RAM); all pools when it is the operator's cap."""

    @property
    def short_by(self) -> int:
        """Bytes missing over the pools that are too small; giving each this much more makes the member fit."""
        return self.needed - self.usable


@dataclass(frozen=True, slots=True)
class Shortage:
    """An arrangement that does not fit, member by member (``None``: that member is fine)."""

    arrangement: Arrangement
    members: tuple[MemberShortage | None, ...]

    @property
    def short_by(self) -> int:
        """Bytes missing over all members."""
        return sum(member.short_by for member in self.members if member)


def fit(work: Workspace, arrangement: Arrangement, goal: WindowGoal) -> Fit | Shortage:
    """Place all layers on the arrangement with the largest window of the goal that fits.

    Raises:
        ValueError: fewer layers than stages (callers check this first).
    """
    charges = goal.charges
    for charged in charges:
        ranges = _place(work, arrangement, charged)
        if ranges is not None:
            fitted = _finish(work, arrangement, ranges, goal, charged)
            return fitted if charged == charges[0] else _placed_again(work, fitted, goal)
    return _shortage(work, arrangement, _proportional(work, arrangement), goal.floor)


def _placed_again(work: Workspace, fitted: Fit, goal: WindowGoal) -> Fit:
    """The fit with its cut made for the window it ended with, so that asking for that window gives the same cut."""
    context = fitted.context_tokens
    ranges = None if context is None else _place(work, fitted.arrangement, context)
    if context is None or ranges is None or ranges == fitted.ranges:
        return fitted
    return _finish(work, fitted.arrangement, ranges, replace(goal, requested=context), context)


def fit_ranges(work: Workspace, arrangement: Arrangement, ranges: Ranges, goal: WindowGoal) -> Fit | Shortage:
    """Like :func:`fit` with the cut given, for exact placements."""
    for charged in goal.charges:
        if _slack(work, arrangement, ranges, charged) >= 0:
            return _finish(work, arrangement, ranges, goal, charged)
    return _shortage(work, arrangement, ranges, goal.floor)


def _place(work: Workspace, arrangement: Arrangement, context: int) -> Ranges | None:
    ranges = _proportional(work, arrangement)
    if _slack(work, arrangement, ranges, context) >= 0:
        return ranges
    if arrangement.sharding is Sharding.TENSOR or len(arrangement.stages) == 1:
        return None

    def fits(index: int, start: int, end: int) -> bool:
        stage, (width, first) = arrangement.stages[index], arrangement.cuts[index]
        sized = work.sized(arrangement.tag_of(stage.member), start, end, width, first, context)
        return _stage_slack(arrangement.hosts[stage.member], stage, sized) >= 0

    packed = pack(work.card.n_layers, len(arrangement.stages), fits, _max_start(work, arrangement))
    return packed if packed is not None and _slack(work, arrangement, packed, context) >= 0 else None


def _proportional(work: Workspace, arrangement: Arrangement) -> Ranges:
    n_layers, stages = work.card.n_layers, arrangement.stages
    if arrangement.sharding is Sharding.TENSOR or len(stages) == 1:
        return ((0, n_layers),) * len(stages)
    weights = [stage.usable * len(stage.pools) for stage in stages]
    counts = largest_remainder(n_layers, weights if any(weights) else [1] * len(stages))
    return boundaries(counts, _max_start(work, arrangement))


def _max_start(work: Workspace, arrangement: Arrangement) -> int | None:
    return work.card.placement.max_pipeline_split_layer if len(arrangement.hosts) > 1 else None


def _slack(work: Workspace, arrangement: Arrangement, ranges: Ranges, context: int) -> int:
    """The smallest number of bytes left anywhere; negative when something does not fit."""
    hosts = arrangement.hosts
    if len(arrangement.stages) == len(hosts):
        return min(
            [
                _stage_slack(
                    hosts[stage.member],
                    stage,
                    work.sized(arrangement.tag_of(stage.member), start, end, width, first, context),
                )
                for stage, (start, end), (width, first) in zip(
                    arrangement.stages, ranges, arrangement.cuts, strict=True
                )
            ]
        )
    members = _by_member(work, arrangement, ranges, context)
    return min(_member_slack(host, held) for host, held in zip(hosts, members, strict=True))


def _by_member(
    work: Workspace, arrangement: Arrangement, ranges: Ranges, context: int
) -> list[list[tuple[Stage, Sized]]]:
    members: list[list[tuple[Stage, Sized]]] = [[] for _ in arrangement.hosts]
    for stage, (start, end), (width, first) in zip(arrangement.stages, ranges, arrangement.cuts, strict=True):
        sized = work.sized(arrangement.tag_of(stage.member), start, end, width, first, context)
        members[stage.member].append((stage, sized))
    return members


def _stage_slack(host: HostMemory, stage: Stage, sized: Sized) -> int:
    """Bytes left of a member with one stage: the case of almost every probe, so without lists."""
    device_bytes, host_bytes = sized.device_bytes, sized.host_bytes
    slack = stage.usable - device_bytes
    if stage.ram_pools:
        slack = min(slack, stage.ram_left - device_bytes * stage.ram_pools - host_bytes)
    elif host.usable is not None and host_bytes:
        slack = min(slack, host.usable - host_bytes)
    if host.cap_left is not None:
        slack = min(slack, host.cap_left - device_bytes * len(stage.pools) - host_bytes)
    return slack


def _member_slack(host: HostMemory, held: Sequence[tuple[Stage, Sized]]) -> int:
    if len(held) == 1:
        return _stage_slack(host, *held[0])
    host_bytes = host_bytes_of(held)
    slack = min(stage.usable - sized.device_bytes for stage, sized in held)
    if any(stage.ram_pools for stage, _ in held):
        slack = min(slack, _ram_left(held) - _ram_bytes(held) - host_bytes)
    elif host.usable is not None and host_bytes:
        slack = min(slack, host.usable - host_bytes)
    if host.cap_left is not None:
        device_bytes = sum(sized.device_bytes * len(stage.pools) for stage, sized in held)
        slack = min(slack, host.cap_left - device_bytes - host_bytes)
    return slack


def _ram_bytes(held: Sequence[tuple[Stage, Sized]]) -> int:
    """Bytes of device parts that lie in RAM."""
    return sum(sized.device_bytes * stage.ram_pools for stage, sized in held)


def _ram_left(held: Sequence[tuple[Stage, Sized]]) -> int:
    """What the RAM domain has: the strictest rule of the pools used."""
    return min(stage.ram_left for stage, _ in held if stage.ram_pools)


def _in_ram(pool: Pool) -> bool:
    return pool.domain == RAM_DOMAIN


def host_bytes_of(held: Sequence[tuple[Stage, Sized]]) -> int:
    """RAM of one member: the parts of all its stages, the engine's process counted once."""
    if len(held) == 1:
        return held[0][1].host_bytes
    floors = [sized.host_floor_bytes for _, sized in held]
    return sum(sized.host_bytes for _, sized in held) - sum(floors) + max(floors)


def _finish(work: Workspace, arrangement: Arrangement, ranges: Ranges, goal: WindowGoal, charged: int) -> Fit:
    if work.kv_bytes_per_token(arrangement.tag) is None:
        charges, flags = _charges(work, arrangement, ranges, charged)
        return Fit(arrangement, ranges, charges, goal.requested or goal.limit, goal.limit, flags)
    ceiling = _ceiling(work, arrangement, ranges, goal, charged)
    if goal.requested is not None:
        context = goal.requested
    elif goal.reserves and goal.want is not None:
        charged = context = min(goal.want, ceiling)
    else:
        context = ceiling
    charges, flags = _charges(work, arrangement, ranges, charged)
    return Fit(arrangement, ranges, charges, context, ceiling, flags)


def _ceiling(
    work: Workspace, arrangement: Arrangement, ranges: Ranges, goal: WindowGoal, charged: int
) -> int:
    """Largest window all stages hold, capped by card and engine."""
    highest = MAX_CONTEXT_TOKENS if goal.limit is None else goal.limit
    if len(arrangement.stages) == 1:
        key = (arrangement.tag, ranges[0], arrangement.cuts[0])
        probed = work.probed_windows.setdefault(key, [])
    else:
        probed = []
    return largest_window(
        lambda context: _slack(work, arrangement, ranges, context), charged, max(charged, highest), probed
    )


def _charges(
    work: Workspace, arrangement: Arrangement, ranges: Ranges, context: int
) -> tuple[tuple[tuple[DeviceCharge, ...], ...], tuple[str, ...]]:
    members: list[tuple[DeviceCharge, ...]] = []
    flags: set[str] = set()
    starts = iter(ranges)
    held_by_member = _by_member(work, arrangement, ranges, context)
    ranges_by_member: list[list[tuple[int, int]]] = [[] for _ in arrangement.hosts]
    for stage in arrangement.stages:
        ranges_by_member[stage.member].append(next(starts))
    for host, held, own_ranges in zip(arrangement.hosts, held_by_member, ranges_by_member, strict=True):
        host_parts = merged_host_parts(held)
        charges: list[DeviceCharge] = []
        for (stage, sized), (start, end) in zip(held, own_ranges, strict=True):
            flags.update(sized.flags)
            for pool in stage.pools:
                parts = sized.parts
                if host_parts and _in_ram(pool):
                    parts, host_parts = merge_parts((*parts, *host_parts)), ()
                charges.append(DeviceCharge(pool.device_index, parts, pool.usable_bytes or 0, start, end))
        if host_parts and host.usable is not None:
            charges.append(DeviceCharge(None, host_parts, host.usable))
        members.append(tuple(charges))
    return tuple(members), tuple(sorted(flags))


def merged_host_parts(held: Sequence[tuple[Stage, Sized]]) -> tuple[MemoryPart, ...]:
    """The host parts of one member's stages by name, the engine's process counted once."""
    if len(held) == 1:
        return held[0][1].host_parts
    floor = max((sized.host_floor_bytes for _, sized in held), default=0)
    others = merge_parts(
        [part for _, sized in held for part in sized.host_parts if part.name != ENGINE_FLOOR]
    )
    return (*others, MemoryPart(ENGINE_FLOOR, floor)) if floor else others


def merge_parts(parts: Sequence[MemoryPart]) -> tuple[MemoryPart, ...]:
    """Parts of the same name added up, in the order names first appear."""
    sums: dict[str, int] = {}
    for part in parts:
        sums[part.name] = sums.get(part.name, 0) + part.size_bytes
    return tuple(MemoryPart(name, size) for name, size in sums.items())


def _shortage(work: Workspace, arrangement: Arrangement, ranges: Ranges, context: int) -> Shortage:
    members = _by_member(work, arrangement, ranges, context)
    return Shortage(
        arrangement,
        tuple(_member_shortage(host, held) for host, held in zip(arrangement.hosts, members, strict=True)),
    )


def _member_shortage(host: HostMemory, held: Sequence[tuple[Stage, Sized]]) -> MemberShortage | None:
    """What is missing where it is missing: pools with room to spare do not make up for those without."""
    host_parts = merged_host_parts(held)
    limits = _limits(host, held, host_parts)
    short = [limit for limit in limits if limit.short_by > 0]
    if not short and host.cap_left is None:
        return None
    together = (
        short[0]
        if len(short) == 1
        else MemberShortage(
            sum(limit.needed for limit in short),
            sum(limit.usable for limit in short),
            merge_parts([part for limit in short for part in limit.parts]),
            tuple(index for limit in short for index in limit.pools),
        )
    )
    if host.cap_left is not None:
        parts = [part for stage, sized in held for part in sized.parts * len(stage.pools)]
        parts.extend(host_parts)
        needed = sum(part.size_bytes for part in parts)
        indices = dict.fromkeys(index for limit in limits for index in limit.pools)
        capped = MemberShortage(needed, host.cap_left, merge_parts(parts), tuple(indices))
        together = max(together, capped, key=lambda limit: limit.short_by)
    return together if together.short_by > 0 else None


def _limits(
    host: HostMemory, held: Sequence[tuple[Stage, Sized]], host_parts: tuple[MemoryPart, ...]
) -> list[MemberShortage]:
    """Each memory of a member with what it must hold, whether or not it does."""
    limits: list[MemberShortage] = []
    in_ram: list[MemoryPart] = []
    ram_pools: list[int | None] = []
    for stage, sized in held:
        for pool in stage.pools:
            if _in_ram(pool):
                in_ram.extend(sized.parts)
                ram_pools.append(pool.device_index)
            else:
                limits.append(
                    MemberShortage(sized.device_bytes, pool.left_bytes, sized.parts, (pool.device_index,))
                )
    ram_bytes = sum([part.size_bytes for part in (*in_ram, *host_parts)])
    if ram_pools:
        alone = len(ram_pools) == 1 and not host_parts  # then there is nothing to add up
        parts = tuple(in_ram) if alone else merge_parts((*in_ram, *host_parts))
        limits.append(MemberShortage(ram_bytes, _ram_left(held), parts, tuple(ram_pools)))
    elif host.usable is not None and ram_bytes:
        limits.append(MemberShortage(ram_bytes, host.usable, host_parts, (None,)))
    return limits

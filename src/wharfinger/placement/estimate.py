"""Which other node sets are likely to rank before one that fits: by a cheap estimate of their speed.

The estimate shares the weights by usable memory, as the split does, and leaves links out. It only decides what is
tried; what is chosen is compared by the score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import combinations
from math import comb
from typing import Final

from wharfinger.placement.members import Member, MemberIndex
from wharfinger.placement.types import Sharding

_COMPARED_SETS: Final = 1001
"""Up to this many sets of a width, all are estimated. C(14, 4)."""
_TRIED: Final = 12
"""Most estimated sets that are fitted and scored."""

Estimate = tuple[float, float, float]
"""Seconds per byte, less files present, more load: smaller is better."""


def alike(members: MemberIndex) -> bool:
    """Whether members differ in nothing but memory, so that the largest set is the best of a width."""
    return len({member.rank_key[:4] for member in members.by_rank}) <= 1


def estimate(members: Sequence[Member], sharding: Sharding) -> Estimate:
    """How good a set is likely to be."""
    files = load = seconds = 0.0
    total = sum(member.usable for member in members) or 1
    for member in members:
        unknown, bandwidth, absent, busy = member.rank_key[:4]
        files += absent
        load += busy
        if unknown:
            seconds = float("inf")
        elif sharding is Sharding.TENSOR:
            seconds = max(seconds, -1 / bandwidth)
        else:
            seconds -= member.usable / total / bandwidth
    return (seconds, files, load)


def better_sets(
    members: MemberIndex, fitting: Sequence[Member], sharding: Sharding, required: frozenset[str], needed: int
) -> Iterator[tuple[Member, ...]]:
    """Sets estimated to be better than one that fits, the best first; of many sets only single swaps.

    Args:
        needed: bytes a set must bring at least.
    """
    if alike(members):
        return
    width, present = len(fitting), estimate(fitting, sharding)
    if comb(len(members.by_rank), width) <= _COMPARED_SETS:
        sets: Iterator[tuple[Member, ...]] = combinations(members.by_rank, width)
    else:
        sets = _swapped(members, fitting)
    entries: list[tuple[Estimate, tuple[str, ...], tuple[Member, ...]]] = []
    for chosen in sets:
        if sum(member.all_bytes for member in chosen) < needed:
            continue
        estimated = estimate(chosen, sharding)
        if estimated < present:
            ids = tuple(sorted(member.node_id for member in chosen))
            if required <= set(ids):
                entries.append((estimated, ids, chosen))
    for _, _, chosen in nsmallest(_TRIED, entries, key=lambda entry: entry[:2]):
        yield chosen


def _swapped(members: MemberIndex, fitting: Sequence[Member]) -> Iterator[tuple[Member, ...]]:
    inside = {member.node_id for member in fitting}
    for incoming in members.by_rank:
        if incoming.node_id not in inside:
            for index in range(len(fitting)):
                yield (*fitting[:index], incoming, *fitting[index + 1 :])

"""Cutting layers over ranks: largest remainder first, any cut that fits when that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Fits = Callable[[int, int, int], bool]
"""``fits(stage, start, end)``: whether the stage can hold these layers. Must be monotone: a stage that holds a
range also holds every part of it."""


def largest_remainder(n_layers: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Layers per rank in proportion to ``weights`` (usable bytes), each rank at least one.

    Floors of the exact shares; what is left goes to the largest fractions, earlier ranks first on ties; then every
    empty rank takes one layer from the fullest.

    Raises:
        ValueError: no ranks, no layers, fewer layers than ranks, or weights without a positive sum.
    """
    if not weights:
        raise ValueError("weights is empty: at least one rank is needed")
    if n_layers < len(weights):
        raise ValueError(f"n_layers is {n_layers} but {len(weights)} ranks need at least one layer each")
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights {list(weights)} must not be negative and must have a positive sum")
    counts = [n_layers * weight // total for weight in weights]
    by_fraction = sorted(range(len(weights)), key=lambda i: (-(n_layers * weights[i] % total), i))
    for i in by_fraction[: n_layers - sum(counts)]:
        counts[i] += 1
    while 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] = 1
    return tuple(counts)


def boundaries(counts: Sequence[int], max_start: int | None = None) -> tuple[tuple[int, int], ...]:
    """Half-open layer ranges of the counts; no range but the first starts after ``max_start``.

    Raises:
        ValueError: ``max_start`` leaves fewer starts than there are ranges after the first.
    """
    if max_start is not None and len(counts) - 1 > max_start:
        raise ValueError(f"max_start is {max_start}; {len(counts)} ranges need at least {len(counts) - 1}")
    starts = [0]
    for count in counts[:-1]:
        starts.append(starts[-1] + count)
    if max_start is not None:
        limit = max_start
        for i in range(len(starts) - 1, 0, -1):
            starts[i] = max(i, min(starts[i], limit))
            limit = starts[i] - 1
    return tuple(zip(starts, [*starts[1:], sum(counts)], strict=True))


def pack(
    n_layers: int, stages: int, fits: Fits, max_start: int | None = None
) -> tuple[tuple[int, int], ...] | None:
    """Ranges that fit, whenever any contiguous cut with a layer on every stage does, for this order of stages.

    Follows, stage by stage, every boundary that can be reached. ``fits`` is asked about twice per layer and stage.
    """
    if not _covers(n_layers, stages, fits):
        return None
    reached: list[dict[int, int]] = [{0: 0}]
    for stage in range(stages):
        left = stages - stage - 1
        limit = n_layers - left
        if left and max_start is not None:
            limit = min(limit, max_start - (left - 1))
        reached.append(_reach(stage, reached[-1], limit, fits))
    if n_layers not in reached[-1]:
        return None
    ranges: list[tuple[int, int]] = []
    end = n_layers
    for starts in reversed(reached[1:]):
        ranges.append((starts[end], end))
        end = starts[end]
    return tuple(reversed(ranges))


def _covers(n_layers: int, stages: int, fits: Fits) -> bool:
    """Whether the stages could hold everything if some were allowed to stay empty: cheap, and necessary."""
    start = 0
    for stage in range(stages):
        low, high = start, n_layers
        while low < high:
            middle = (low + high + 1) // 2
            if fits(stage, start, middle):
                low = middle
            else:
                high = middle - 1
        start = low
    return start == n_layers


def _reach(stage: int, starts: Iterable[int], limit: int, fits: Fits) -> dict[int, int]:
    """Boundaries a stage can end at, each with a boundary it can begin at."""
    ends: dict[int, int] = {}
    end = 0
    for start in sorted(starts):
        first = max(end, start) + 1
        end = max(end, start)
        while end < limit and fits(stage, start, end + 1):
            end += 1
        ends.update(dict.fromkeys(range(first, end + 1), start))
    return ends


def tensor_divides(width: int, hidden_size: int, heads: int | None, kv_heads: int | None) -> bool:
    """Whether every layer can be cut into ``width`` equal parts; unknown head counts do not block."""
    return all(count is None or count % width == 0 for count in (hidden_size, heads, kv_heads))

"""Add up tensor sizes by the rank that must hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from wharfinger.catalog.card import Weights


class Group(StrEnum):
    """Where a tensor of no layer belongs."""

    EMBEDDING = "embedding"
    HEAD = "head"
    """The output matrix."""
    OUTPUT = "output"
    """What comes with the head: final norms, classifiers."""
    OTHER = "other"


def add_up(sizes: Iterable[tuple[int | Group, int]], n_layers: int, *, has_head: bool) -> Weights:
    """Weights from ``(layer index or group, bytes)`` pairs.

    ``has_head`` says that the architecture predicts tokens: with no head matrix of its own it then uses the
    embedding table, which the last rank needs again.
    """
    total: Counter[int | Group] = Counter()
    for place, size_bytes in sizes:
        total[place] += size_bytes
    return Weights(
        layer_bytes=tuple(total[index] for index in range(n_layers)),
        embedding_bytes=total[Group.EMBEDDING],
        output_bytes=total[Group.HEAD] + total[Group.OUTPUT],
        output_norm_bytes=total[Group.OUTPUT],
        other_bytes=total[Group.OTHER],
        tied_output=has_head and total[Group.HEAD] == 0 and total[Group.EMBEDDING] > 0,
    )


def dominant(sizes: Iterable[tuple[str, int]]) -> str:
    """The name with most bytes; empty for none."""
    total: Counter[str] = Counter()
    for name, size_bytes in sizes:
        total[name] += size_bytes
    return max(total, key=lambda name: (total[name], name), default="")

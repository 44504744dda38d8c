"""Cutting layers over ranks."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import ask, card, fleet, mac, mesh
from wharfinger.placement.planner import plan
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.split import boundaries, largest_remainder, pack, tensor_divides
from wharfinger.placement.types import PlanRequest


@pytest.mark.parametrize(
    ("layers", "weights", "expected"),
    [
        (80, (480, 240, 120), (46, 23, 11)),
        (32, (12, 18), (13, 19)),
        (61, (192, 96), (41, 20)),
        (36, (576, 288), (24, 12)),
        (20, (9750, 125, 125), (18, 1, 1)),
        (12, (1, 1, 2), (3, 3, 6)),
        (3, (1000, 1, 1), (1, 1, 1)),
        (4, (5, 5, 5), (2, 1, 1)),
    ],
)
def test_v19_largest_remainder_vectors(
    layers: int, weights: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Instances notes 2.5, extreme imbalance and ties (earlier ranks first)."""
    assert largest_remainder(layers, weights) == expected


@pytest.mark.parametrize(
    ("layers", "weights", "message"),
    [
        (4, (), "weights is empty"),
        (0, (1,), "n_layers is 0"),
        (-3, (1,), "n_layers is -3"),
        (2, (1, 1, 1), "3 ranks need at least one layer each"),
        (4, (0, 0), "positive sum"),
        (4, (5, -1), "must not be negative"),
    ],
)
def test_v19_largest_remainder_errors(layers: int, weights: tuple[int, ...], message: str) -> None:
    """Instances notes 6.4.19."""
    with pytest.raises(ValueError, match=message):
        largest_remainder(layers, weights)


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=8).filter(any),
    st.integers(8, 120),
)
def test_largest_remainder_is_within_a_layer_of_the_exact_share(weights: list[int], layers: int) -> None:
    """Every rank gets at least one layer, and but for those raised to one it is its share rounded."""
    counts = largest_remainder(layers, weights)
    assert sum(counts) == layers
    assert min(counts) >= 1
    raised = sum(layers * weight // sum(weights) == 0 for weight in weights)
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - layers * weight / sum(weights)) <= 1 + raised


def test_boundaries_do_not_start_after_the_latest_allowed_layer() -> None:
    """``max_pipeline_split_layer`` moves boundaries to the left, each rank keeping a layer."""
    assert boundaries((4, 4, 4)) == ((0, 4), (4, 8), (8, 12))
    assert boundaries((4, 4, 4), 6) == ((0, 4), (4, 6), (6, 12))
    assert boundaries((4, 4, 4), 2) == ((0, 1), (1, 2), (2, 12))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.lists(st.integers(1, 25), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_pack_finds_a_cut_exactly_when_there_is_one(layers: list[int], budgets: list[int], head: int) -> None:
    """Compared with every contiguous cut; the last rank also holds a head."""
    n_layers, ranks = len(layers), len(budgets)

    def fits(stage: int, start: int, end: int) -> bool:
        return sum(layers[start:end]) + (head if end == n_layers else 0) <= budgets[stage]

    possible = False
    for cuts in combinations(range(1, n_layers), ranks - 1):
        edges = (0, *cuts, n_layers)
        possible = possible or all(fits(i, edges[i], edges[i + 1]) for i in range(ranks))
    found = pack(n_layers, ranks, fits)
    assert (found is not None) is possible
    if found is not None:
        assert found[0][0] == 0
        assert found[-1][1] == n_layers
        assert all(fits(i, *each) for i, each in enumerate(found))


@pytest.mark.parametrize(
    ("width", "hidden", "heads", "kv_heads", "expected"),
    [
        (2, 4096, 32, 8, True),
        (3, 4096, 32, 8, False),
        (4, 2048, None, 2, False),
        (2, 1, None, None, False),
        (5, 2048, None, 20, False),
        (4, 2048, None, 20, True),
        (8, 2880, 64, 8, True),
        (3, 2880, None, 8, False),
        (4, 4096, 30, 8, False),
    ],
)
def test_tensor_divides(
    width: int, hidden: int, heads: int | None, kv_heads: int | None, expected: bool
) -> None:
    """Hidden size, heads and KV heads must all divide (instances notes 3.6); unknown heads do not block."""
    assert tensor_divides(width, hidden, heads, kv_heads) is expected


def test_a_latest_start_before_the_last_rank_is_refused() -> None:
    """Four ranks start at 0, 1, 2 and 3 at the earliest: a limit of 2 has room for three."""
    with pytest.raises(ValueError, match="max_start is 2; 4 ranges need at least 3"):
        boundaries((4, 4, 4, 4), 2)
    model = card()
    limited = model.model_copy(
        update={"placement": model.placement.model_copy(update={"max_pipeline_split_layer": 2})}
    )
    names = ("a", "b", "c", "d")
    four = fleet(*map(mac, names), links=mesh(*names))
    best = plan(four, limited, ask(min_nodes=3)).best
    assert best is not None
    assert [rank.start_layer for rank in best.ranks] == [0, 1, 2]
    refusal = plan(four, limited, ask(min_nodes=4)).refusal
    assert refusal is not None
    assert refusal.code == "split_limited"
    assert "no rank start after layer 2" in refusal.message


@pytest.mark.parametrize("asked", [ask(min_nodes=3, max_nodes=2), ask(required_node_ids="ab", max_nodes=1)])
def test_bounds_that_contradict_each_other_have_a_code(asked: PlanRequest) -> None:
    """Neither a plan of the wrong width nor a reason that blames the nodes."""
    pair = fleet(mac("a"), mac("b"), mac("c"), links=mesh("a", "b", "c"))
    refusal = plan(pair, card(), asked).refusal
    assert refusal is not None
    assert refusal.code == "node_bounds_conflict"
    assert refusal.message.startswith(f"max_nodes is {asked.max_nodes}; at least ")
    rows = preview_answer(pair, card(), asked).rows
    assert [row.refusal and row.refusal.code for row in rows] == ["node_bounds_conflict"]

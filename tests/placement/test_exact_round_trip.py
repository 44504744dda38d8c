"""What the planner planned passes the exact check as it was planned."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from placement_strategies import REQUESTS, cards, fleets

from support.fleets import ask, card, fleet, mac
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.types import FleetSnapshot, Plan, PlanRequest, PlanResult

LONG = card(n_layers=32, layer_mib=300, context_length=131072)


def given_back(snapshot: FleetSnapshot, model: ModelCard, planned: Plan, window: int | None) -> PlanResult:
    """The plan's own placement, checked as a client would send it."""
    shards = tuple(
        ExactShard(rank.node_id, rank.start_layer, rank.end_layer, rank.backend) for rank in planned.ranks
    )
    placement = ExactPlacement(shards, planned.sharding, planned.meta, planned.card_digest, window)
    return check_exact(snapshot, model, placement, ask())


@settings(max_examples=120)
@given(fleets(), cards(), REQUESTS)
def test_a_plan_passes_with_its_ranks_charges_and_window(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest
) -> None:
    """With the window wished for, or with none as it was planned."""
    for planned in plan(snapshot, model, asked).plans:
        checked = given_back(snapshot, model, planned, asked.context_tokens).best
        assert checked is not None
        assert checked.ranks == planned.ranks
        assert checked.context_tokens == planned.context_tokens


@settings(max_examples=120)
@given(fleets(), cards(), REQUESTS)
def test_the_window_a_plan_carries_is_charged(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest
) -> None:
    """A row posted as it is has the same window; engines that reserve theirs take the same bytes."""
    for planned in plan(snapshot, model, asked).plans:
        checked = given_back(snapshot, model, planned, planned.context_tokens).best
        assert checked is not None
        assert checked.context_tokens == planned.context_tokens
        if planned.reserves_context_at_load or asked.context_tokens is not None:
            assert checked.ranks == planned.ranks
        else:
            assert all(checked.memory_by_node[i] >= size for i, size in planned.memory_by_node.items())


def test_a_mac_is_charged_the_window_it_was_asked() -> None:
    """MLX grows, so nobody's wish costs 8,192 tokens, but a wish costs all of it."""
    snapshot = fleet(mac("a"))
    planned = plan(snapshot, LONG, ask(context_tokens=131072)).best
    assert planned is not None
    assert planned.ranks[0].needed_bytes > plan(snapshot, LONG, ask()).plans[0].ranks[0].needed_bytes
    checked = given_back(snapshot, LONG, planned, planned.context_tokens).best
    assert checked is not None
    assert checked.ranks == planned.ranks
    assert checked.context_tokens == planned.context_tokens == 131072


def test_a_window_that_does_not_fit_is_reduced_and_what_is_left_is_charged() -> None:
    """The cap is not a wish: less is stamped, and exactly that is reserved."""
    snapshot = fleet(mac("a", 24))
    given = ExactPlacement((ExactShard("a", 0, 32),), context_tokens=131072)
    checked = check_exact(snapshot, LONG, given, ask()).best
    assert checked is not None
    assert checked.context_tokens is not None
    assert 8192 < checked.context_tokens < 131072
    asked = plan(snapshot, LONG, ask(context_tokens=checked.context_tokens)).best
    assert asked is not None
    assert checked.ranks == asked.ranks
    more = replace(given, context_tokens=checked.context_tokens + 1)
    assert plan(snapshot, LONG, ask(context_tokens=more.context_tokens)).best is None

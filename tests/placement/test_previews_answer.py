"""One previews call: rows of the sharding asked for, and the reasons of nodes a launch would give."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import REQUESTS, cards, fleets

from support.fleets import ask, card, fleet, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.planner import plan
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.types import FleetSnapshot, PlanRequest, Sharding


@settings(max_examples=60)
@given(fleets(), cards(), REQUESTS, st.sampled_from(Sharding))
def test_an_answer_holds_what_previews_and_plan_hold(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest, sharding: Sharding
) -> None:
    """Rows with plans are those of the sharding; the nodes' reasons are a launch's."""
    whole = preview_answer(snapshot, model, asked)
    part = preview_answer(snapshot, model, asked, sharding=sharding)
    launch = plan(snapshot, model, asked)
    assert whole.node_refusals == part.node_refusals == launch.node_refusals
    assert all(row.sharding is sharding for row in part.rows)
    assert [row for row in part.rows if row.plan] == [
        row for row in whole.rows if row.plan and row.sharding is sharding
    ]


def test_the_first_refusal_left_by_the_sharding_has_the_suggestions() -> None:
    """No tensor plan for a card without tensor support: the tensor row says what would help."""
    pair = fleet(mac("a"), mac("b"), links=mesh("a", "b"))
    answer = preview_answer(pair, card(supports_tensor=False), ask(), sharding=Sharding.TENSOR)
    assert [row.plan for row in answer.rows] == [None, None]
    first = answer.rows[0].refusal
    assert first is not None
    assert first.code == "tensor_unsupported"
    assert [suggestion.kind for suggestion in first.suggestions] == ["lower_min_nodes", "pipeline_sharding"]
    assert answer.rows[1].refusal is not None
    assert answer.rows[1].refusal.suggestions == ()


def test_a_fleet_without_nodes_has_no_answer() -> None:
    """Nothing to show and nobody to explain."""
    answer = preview_answer(fleet(), card(), ask())
    assert (answer.rows, answer.node_refusals) == ((), ())

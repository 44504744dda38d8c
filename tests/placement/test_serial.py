"""Stored plans and requests come back equal; refusals are plain JSON."""

from __future__ import annotations

import json
from dataclasses import fields

from hypothesis import given, settings
from placement_strategies import REQUESTS, cards, fleets

from support.fleets import ask, card, fleet, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.planner import plan
from wharfinger.placement.serial import (
    plan_from_json,
    plan_to_json,
    refusal_to_json,
    request_to_json,
)
from wharfinger.placement.types import FleetSnapshot, InstanceMeta, PlanRequest


@settings(max_examples=60)
@given(fleets(), cards(), REQUESTS)
def test_round_trip(snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest) -> None:
    """Through JSON text and back."""
    result = plan(snapshot, model, asked)
    for chosen in result.plans:
        assert plan_from_json(json.loads(json.dumps(plan_to_json(chosen)))) == chosen
    if result.refusal is not None:
        document = json.loads(json.dumps(refusal_to_json(result.refusal)))
        assert document["code"] == result.refusal.code
        assert len(document["nodes"]) == len(result.refusal.nodes)


def test_equal_requests_give_equal_documents() -> None:
    """Whatever the order of their sets; every field is written."""
    ids = [f"n{i}" for i in range(20)]
    document = request_to_json(ask(excluded_node_ids=ids, required_node_ids=("b", "a"), context_tokens=4096))
    assert document["excluded_node_ids"] == sorted(ids)
    assert document["required_node_ids"] == ["a", "b"]
    assert document == request_to_json(
        ask(excluded_node_ids=ids[::-1], required_node_ids=("a", "b"), context_tokens=4096)
    )
    assert document.keys() == {field.name for field in fields(PlanRequest)}


def test_rdma_facts_survive() -> None:
    """Matrix with null diagonal and coordinators."""
    pair = fleet(mac("a"), mac("b"), links=mesh("a", "b", rdma=True))
    best = plan(pair, card(), ask(min_nodes=2, meta=InstanceMeta.JACCL)).best
    assert best is not None
    document = plan_to_json(best)
    assert document["rdma_interfaces"] == [[None, "rdma_a_b"], ["rdma_b_a", None]]
    assert document["memory_by_node"] == best.memory_by_node
    assert plan_from_json(json.loads(json.dumps(document))) == best

"""Fleets with more node sets than are all compared: the choice against every set, and rings that are no cliques."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from support.fleets import ask, card, fleet, mac, mesh
from wharfinger.placement.planner import plan
from wharfinger.placement.types import FleetSnapshot, NodeFacts, Plan


def passes(chosen: Plan) -> float:
    """Expected passes per second."""
    value = next(part.value for part in chosen.score if part.name == "expected_passes_per_s")
    assert value is not None
    return value


def unlike(seed: int, number: int) -> tuple[NodeFacts, ...]:
    """Machines of different memory and bandwidth."""
    random = Random(seed)
    nodes: list[NodeFacts] = []
    for index in range(number):
        node = mac(f"n{index:02d}", random.choice((16, 24, 32, 48, 64)))
        speed = random.choice((100e9, 200e9, 400e9, 800e9))
        device = replace(node.devices[0], name="?", bandwidth_bytes_per_s=speed)
        nodes.append(replace(node, devices=(device,)))
    return tuple(nodes)


@pytest.mark.parametrize(("seed", "number"), [(1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14)])
def test_the_fastest_set_of_the_width_is_chosen(seed: int, number: int) -> None:
    """Against a launch pinned to each set of three."""
    nodes = unlike(seed, number)
    names = [node.node_id for node in nodes]
    snapshot = fleet(*nodes, links=mesh(*names))
    model = card(n_layers=24, layer_mib=900)
    asked = ask(min_nodes=3, max_nodes=3)
    chosen = plan(snapshot, model, asked).best
    assert chosen is not None
    speeds = [
        passes(best)
        for trio in combinations(names, 3)
        if (best := plan(snapshot, model, replace(asked, required_node_ids=frozenset(trio))).best)
    ]
    assert passes(chosen) == pytest.approx(max(speeds))


def ringed(number: int) -> FleetSnapshot:
    """Each machine is linked with the next two on either side, so no four are a clique."""
    names = [f"n{index:02d}" for index in range(number)]
    links = [
        link
        for index in range(number)
        for step in (1, 2)
        for link in mesh(names[index], names[(index + step) % number])
    ]
    return fleet(*(mac(name, 24) for name in names), links=links)


def test_a_ring_needs_neighbours_and_no_clique() -> None:
    """Twelve half linked machines, four of which hold the model: n0, n1, n3, n2 are a ring."""
    chosen = plan(ringed(12), card(n_layers=48, layer_mib=1050), ask()).best
    assert chosen is not None
    assert len(chosen.ranks) == 4
    for asked in range(5, 9):
        wider = plan(ringed(14), card(n_layers=48, layer_mib=1050), ask(min_nodes=asked)).best
        assert wider is not None
        assert len(wider.ranks) == asked

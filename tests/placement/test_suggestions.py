"""Suggestions: several instances to stop, twins of machines, and no dependence on the order of facts."""

from __future__ import annotations

from itertools import permutations

from support.fleets import GIB, ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.placement.planner import plan
from wharfinger.placement.types import FleetSnapshot, InstanceFacts, LinkFacts, Refusal, ReservationFacts

MODEL = card(layer_mib=500, backends=("llama_cpp-cuda",))
"""About 18 GiB on one device."""


def refused(snapshot: FleetSnapshot) -> Refusal:
    """The refusal of the model."""
    refusal = plan(snapshot, MODEL, ask()).refusal
    assert refusal is not None
    return refusal


def busy(sizes_gib: dict[str, float]) -> FleetSnapshot:
    """One 24 GiB card with instances of the given sizes."""
    reservations = [ReservationFacts(name, "a", 0, int(size * GIB)) for name, size in sizes_gib.items()]
    running = [InstanceFacts(name, "other", ("a",)) for name in sizes_gib]
    return fleet(gpu_server("a"), reservations=reservations, instances=running)


def test_several_instances_are_suggested_when_no_single_one_is_enough() -> None:
    """5, 5 and 6 GiB on 21.6: what is said to stop is enough, and every smaller group is not."""
    sizes = {"x": 5.0, "y": 5.0, "z": 6.0}
    stops = [s for s in refused(busy(sizes)).suggestions if s.kind.startswith("stop")]
    assert [(s.kind, s.instance_id) for s in stops] == [("stop_instances", None)]
    named = stops[0].instance_ids
    left = {name: size for name, size in sizes.items() if name not in named}
    assert plan(busy(left), MODEL, ask()).plans
    for spared in named:
        assert not plan(busy(left | {spared: sizes[spared]}), MODEL, ask()).plans


def test_instances_that_need_not_stop_are_spared() -> None:
    """2 GiB is in nobody's way; the two of 7 GiB must both go."""
    stops = [s for s in refused(busy({"small": 2, "x": 7, "y": 7})).suggestions if s.kind.startswith("stop")]
    assert [s.instance_ids for s in stops] == [("x", "y")]
    assert stops[0].message == "stop instances x, y (14.0 GiB together)"


def test_a_single_instance_that_is_enough_is_named_alone() -> None:
    """Nothing is said about stopping more."""
    stops = [s for s in refused(busy({"x": 15, "y": 1})).suggestions if s.kind.startswith("stop")]
    assert [(s.kind, s.instance_id) for s in stops] == [("stop_instance", "x")]


def test_a_twin_is_linked_like_the_best_link_whatever_the_order_of_links() -> None:
    """The refusal is equal for every order of the same links, one way or both."""
    links = [
        LinkFacts("a", "b", "wifi", "10.0.0.2"),
        LinkFacts("b", "a", "wifi", "10.0.0.1"),
        LinkFacts("a", "c", "thunderbolt", "169.254.0.3", rdma=True, rdma_interface="en5"),
        LinkFacts("c", "a", "thunderbolt", None),
    ]
    nodes = (mac("a", 24), mac("b", 16), cpu_server("c", 16))
    model = card(layer_mib=1000)
    answers = {repr(plan(fleet(*nodes, links=order), model, ask()).refusal) for order in permutations(links)}
    assert len(answers) == 1


def test_a_twin_does_not_take_the_id_of_another_node() -> None:
    """``a+1`` is there already, and full."""
    nodes = (mac("a", 24), mac("a+1", 24, 2))
    result = plan(fleet(*nodes, links=mesh("a", "a+1")), card(layer_mib=900), ask())
    assert result.refusal is not None
    assert [(s.kind, s.node_id) for s in result.refusal.suggestions] == [("add_node", "a")]

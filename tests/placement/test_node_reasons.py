"""Each node's own reason: not chosen, cannot span, not linked; and names that say which node is meant."""

from __future__ import annotations

from dataclasses import replace

from support.fleets import ask, card, fleet, gpu_server, mac, mesh
from wharfinger.placement.planner import plan
from wharfinger.placement.types import InstanceMeta, LinkFacts

BOTH = card(backends=("llama_server", "llama_cpp"))


def reasons(*args: object, **kwargs: object) -> dict[str, str]:
    """Codes by node."""
    result = plan(*args, **kwargs)  # type: ignore[arg-type]
    return {node.node_id: node.code for node in result.node_refusals}


def test_a_node_that_was_not_chosen_would_do() -> None:
    """Others were ranked first."""
    names = ("a", "b", "c")
    result = plan(fleet(*(mac(name) for name in names), links=mesh(*names)), card(), ask(min_nodes=2))
    assert result.best is not None
    (left,) = result.node_refusals
    assert (left.code, left.message) == ("node_not_chosen", "c would do; others were ranked first")


def test_nodes_that_cannot_take_part_in_a_set_say_why() -> None:
    """One has an engine for one machine only, one no link."""
    nodes = [gpu_server(name, backends=("llama_server-cuda",)) for name in ("a", "b", "d")]
    lone = gpu_server("c", backends=("llama_cpp-cuda",))
    snapshot = fleet(*nodes, lone, links=mesh("a", "b", "c"))
    result = plan(snapshot, BOTH, ask(min_nodes=2))
    assert result.best is not None
    assert result.best.node_ids == ("a", "b")
    assert {node.node_id: node.code for node in result.node_refusals} == {
        "c": "engine_cannot_span",
        "d": "link_missing",
    }


def test_rdma_and_common_engines_are_told_by_node() -> None:
    """Refusals of a set list its nodes."""
    pair = fleet(mac("a"), mac("b"), links=mesh("a", "b"))
    refusal = plan(pair, card(), ask(min_nodes=2, meta=InstanceMeta.JACCL)).refusal
    assert refusal is not None
    assert [(node.node_id, node.code) for node in refusal.nodes] == [
        ("a", "rdma_missing"),
        ("b", "rdma_missing"),
    ]
    model = card(backends=("mlx", "llama_server"))
    unlike = fleet(mac("a"), gpu_server("b", backends=("llama_server-cuda",)), links=mesh("a", "b"))
    refusal = plan(unlike, model, ask(min_nodes=2)).refusal
    assert refusal is not None
    assert refusal.code == "no_common_engine"
    assert {node.node_id: node.code for node in refusal.nodes} == dict.fromkeys("ab", "no_common_engine")


def test_equal_names_carry_the_id() -> None:
    """Two machines called studio."""
    twins = [replace(mac(node_id, 8), name="studio") for node_id in ("n1", "n2")]
    refusal = plan(fleet(*twins, mac("n3", 4)), card(layer_mib=900), ask(max_nodes=1)).refusal
    assert refusal is not None
    assert [node.node_name for node in refusal.nodes] == ["studio (n1)", "studio (n2)", "n3"]
    assert "least short: studio (n1)" in refusal.message


def test_a_name_is_never_written_as_a_host() -> None:
    """A link whose address is not known makes no plan, so no plan needs to guess one."""
    links = [LinkFacts("a", "b", "ethernet"), LinkFacts("b", "a", "ethernet", "10.0.0.1")]
    for meta in (InstanceMeta.RING, InstanceMeta.JACCL):
        assert plan(fleet(mac("a"), mac("b"), links=links), card(), ask(min_nodes=2, meta=meta)).best is None
    best = plan(fleet(mac("a"), mac("b"), links=mesh("a", "b")), card(), ask(min_nodes=2)).best
    assert best is not None
    hosts = {host for row in best.hosts_by_node.values() for host, _ in row}
    assert hosts == {"0.0.0.0", "10.0.0.1", "10.0.0.2"}

"""What is said when no set of nodes works: the widths that were tried, the limit, shared ports, the meta."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.fleets import ask, card, fleet, gpu_server, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.types import FleetSnapshot, InstanceMeta, NodeFacts, PlanRequest, Refusal
from wharfinger.placement.units import gib

RPC = ("llama_server-cuda",)
HUGE = card(n_layers=80, layer_mib=2000)
"""156 GiB."""


def refused(snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest | None = None) -> Refusal:
    """The refusal of a plan."""
    result = plan(snapshot, model, asked or ask())
    assert result.refusal is not None, result.best
    return result.refusal


def macs(count: int, ram_gib: float) -> FleetSnapshot:
    """Linked Macs."""
    names = [f"n{i:02d}" for i in range(count)]
    return fleet(*(mac(name, ram_gib) for name in names), links=mesh(*names))


def rpc_servers(*names: str, **values: Any) -> tuple[NodeFacts, ...]:
    """Servers that can share a GGUF model."""
    return tuple(gpu_server(name, backends=RPC, **values) for name in names)


def test_the_widths_that_were_tried_are_told() -> None:
    """Five nodes: pairs to all five; bounded from above and below; one width; a node without the engine aside."""
    five = macs(5, 8)
    assert refused(five, HUGE).message.endswith("; together: no set of 2 to 5 linked nodes holds it")
    assert "no set of 2 to 3 linked nodes holds it" in refused(five, HUGE, ask(max_nodes=3)).message
    assert refused(five, HUGE, ask(min_nodes=4)).message.startswith(
        "no 4 or more of 5 nodes can run this together: no set of 4 to 5 linked nodes holds it; 5 short of memory "
    )
    other = replace(five, nodes=(*five.nodes, gpu_server("x", backends=("llama_cpp-cuda",))))
    assert "no set of 2 to 5 linked nodes holds it" in refused(other, HUGE).message


def test_the_limit_of_widths_is_told_where_it_bites_and_a_wider_set_suggested() -> None:
    """40 Macs of 8 GB: two layers fit each, so all 40 are needed, and no set beyond 32 is tried unasked."""
    many = macs(40, 8)
    refusal = refused(many, HUGE)
    assert refusal.code == "memory_short"
    assert refusal.message.endswith(
        "together: no set of 2 to 32 linked nodes holds it; wider ones are tried only where min_nodes asks for them"
    )
    assert [(s.kind, s.message) for s in refusal.suggestions if s.kind == "raise_min_nodes"] == [
        ("raise_min_nodes", "ask for min_nodes 40")
    ]
    best = plan(many, HUGE, ask(min_nodes=40)).best
    assert best is not None
    assert len(best.ranks) == 40
    hopeless = refused(many, card(n_layers=80, layer_mib=4000))
    assert not any(s.kind == "raise_min_nodes" for s in hopeless.suggestions)


def test_a_set_without_a_common_port_is_refused() -> None:
    """One has the lower half of the range in use, the other the upper; a third node makes a set."""
    low, high = frozenset(range(24000, 28000)), frozenset(range(28000, 32000))
    pair = fleet(mac("a", 24, used_ports=low), mac("b", 24, used_ports=high), links=mesh("a", "b"))
    refusal = refused(pair, card(), ask(min_nodes=2))
    assert (refusal.code, refusal.category) == ("no_free_port", "no_valid_placement")
    assert refusal.message.startswith(
        "no 2 of 2 nodes can run this together: no set of 2 nodes that holds it has a port of 24000..31999 free on "
        "all of them"
    )
    assert {node.node_id: node.code for node in refusal.nodes} == dict.fromkeys("ab", "no_free_port")
    given = ExactPlacement((ExactShard("a", 0, 16), ExactShard("b", 16, 32)))
    exact = check_exact(pair, card(), given, ask()).refusal
    assert exact is not None
    assert exact.code == "no_free_port"
    trio = fleet(*pair.nodes, mac("c", 24), links=mesh("a", "b", "c"))
    best = plan(trio, card(), ask(min_nodes=2)).best
    assert best is not None
    assert "c" in best.node_ids
    assert best.port in (24000, 28000)


def test_rpc_is_never_answered_with_a_ring_of_one() -> None:
    """2.2 step 17: LlamaRpc asked, one node would win. Published: refused; right: a set of two where there is one."""
    asked = ask(meta=InstanceMeta.RPC)
    model = card(backends=RPC)
    best = plan(fleet(*rpc_servers("a", "b"), links=mesh("a", "b")), model, asked).best
    assert best is not None
    assert (best.meta, len(best.ranks)) == (InstanceMeta.RPC, 2)
    for lone, of in (
        (fleet(*rpc_servers("a")), model),
        (fleet(mac("a"), mac("b"), links=mesh("a", "b")), card()),
    ):
        refusal = refused(lone, of, asked)
        assert refusal.code == "meta_not_applicable"
        assert refusal.message == (
            "LlamaRpc is for several nodes and none together would do; one alone is MlxRing"
        )
        assert preview_answer(lone, of, asked).node_refusals == plan(lone, of, asked).node_refusals
    unlinked = refused(fleet(*rpc_servers("a", "b")), model, asked)
    assert (unlinked.code, unlinked.category) == ("links_unknown", "placement_info_pending")
    given = ExactPlacement((ExactShard("a", 0, 32),), meta=InstanceMeta.RPC)
    exact = check_exact(fleet(*rpc_servers("a")), model, given, ask()).refusal
    assert exact is not None
    assert exact.code == "meta_not_applicable"


def test_a_request_that_is_wrong_in_itself_blames_no_node() -> None:
    """Two nodes of one: the one has no link, and that is not why."""
    refusal = refused(fleet(mac("a")), card(), ask(min_nodes=2))
    assert (refusal.code, refusal.nodes) == ("too_few_nodes", ())


def test_one_layer_is_singular() -> None:
    """Said as a person would."""
    pair = fleet(mac("a"), mac("b"), links=mesh("a", "b"))
    message = refused(pair, card(n_layers=1), ask(min_nodes=2)).message
    assert "1 layer cannot be cut over 2 ranks" in message


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (-30, "-30 bytes"),
        (1, "1 byte"),
        (104858, "0.10 MiB"),
        (921600, "0.88 MiB"),
        (430 << 20, "430 MiB"),
        ((1 << 30) - 1, "1.00 GiB"),
        (-(3 << 30), "-3.00 GiB"),
    ],
)
def test_small_sizes_do_not_read_as_nothing(size_bytes: int, text: str) -> None:
    """A shortage of 30 bytes was "-0.0 MiB"."""
    assert gib(size_bytes) == text

"""Pending or no: which missing facts could still make a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.types import FleetSnapshot, InstanceMeta, PlanRequest, Refusal, Sharding

WIDE = card(layer_mib=800)
"""25 GiB: two Macs of 24 GiB (18 usable) hold it, one does not."""
TWO = fleet(mac("a", 24), mac("b", 24))


def refused(snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest) -> Refusal:
    """The refusal of a plan."""
    refusal = plan(snapshot, model, asked).refusal
    assert refusal is not None
    return refusal


def missing(refusal: Refusal) -> dict[str, tuple[str, ...]]:
    """Missing facts by node."""
    return {node.node_id: node.missing_facts for node in refusal.nodes if node.missing_facts}


def test_links_that_were_not_observed_are_pending_where_they_would_help() -> None:
    """The nodes are named and keep their arithmetic; once linked it is planned."""
    refusal = refused(TWO, WIDE, ask())
    assert (refusal.code, refusal.category) == ("links_unknown", "placement_info_pending")
    assert missing(refusal) == {"a": ("links",), "b": ("links",)}
    assert all(node.short_by_bytes for node in refusal.nodes)
    assert refusal.message.endswith("together: links of a, b have not been observed yet")
    assert refusal.suggestions == ()
    assert plan(replace(TWO, links=mesh("a", "b")), WIDE, ask()).best is not None


def test_links_do_not_matter_where_the_memory_of_all_is_too_little() -> None:
    """80 GiB on two Macs of 24; and on one Mac with a machine that has no engine for it."""
    assert refused(TWO, card(layer_mib=2500), ask()).code == "memory_short"
    other = fleet(mac("a", 24), cpu_server("b", 512))
    assert refused(other, WIDE, ask()).code == "memory_short"
    assert refused(TWO, WIDE, ask(max_nodes=1)).code == "memory_short"


def test_one_unlinked_node_beside_two_that_are_linked() -> None:
    """The pair is too small; the third may help."""
    trio = fleet(mac("a", 24), mac("b", 8), mac("c", 24), links=mesh("a", "b"))
    refusal = refused(trio, WIDE, ask())
    assert refusal.code == "links_unknown"
    assert missing(refusal) == {"c": ("links",)}
    assert "links of c have not been observed yet" in refusal.message


def test_an_unmeasured_second_device_keeps_a_set_pending() -> None:
    """Two servers are short by what their second cards may have."""
    tags = ("llama_server-cuda",)
    servers = [gpu_server(name, (24, 24), backends=tags) for name in ("a", "b")]
    half = [
        replace(node, devices=(node.devices[0], replace(node.devices[1], used_bytes=None)))
        for node in servers
    ]
    model = card(n_layers=40, layer_mib=1500, backends=("llama_server",))
    for min_nodes in (1, 2):
        refusal = refused(fleet(*half, links=mesh("a", "b")), model, ask(min_nodes=min_nodes))
        assert (refusal.code, refusal.category) == ("memory_unknown", "placement_info_pending")
        assert missing(refusal) == {"a": ("devices[1].used_bytes",), "b": ("devices[1].used_bytes",)}
    assert plan(fleet(*servers, links=mesh("a", "b")), model, ask()).best is not None


@pytest.mark.parametrize(
    ("asked", "model", "code"),
    [
        (ask(min_nodes=2), card(backends=("llama_cpp",)), "engine_cannot_span"),
        (ask(min_nodes=2, sharding=Sharding.TENSOR), card(supports_tensor=False), "tensor_unsupported"),
        (ask(min_nodes=2, meta=InstanceMeta.RPC), card(), "meta_not_applicable"),
        (
            ask(min_nodes=2, sharding=Sharding.TENSOR),
            card(backends=("llama_server",)),
            "tensor_over_rpc",
        ),
    ],
)
def test_what_no_fact_changes_ranks_above_what_is_pending(
    asked: PlanRequest, model: ModelCard, code: str
) -> None:
    """A third node without memory figures does not hide it."""
    tags = frozenset({"mlx-metal", "llama_cpp-metal", "llama_server-metal"})
    names = ("a", "b", "c")
    nodes = [mac(name, backends=tags) for name in names]
    silent = replace(nodes[2], ram_available_bytes=None)
    refusal = refused(fleet(*nodes[:2], silent, links=mesh(*names)), model, asked)
    assert (refusal.code, refusal.category) == (code, "no_valid_placement")


def test_a_silent_node_that_is_too_small_is_ignored() -> None:
    """4 GiB in all cannot hold 25, whatever is free of it; 64 could."""
    for ram, code in ((4, "memory_short"), (64, "memory_unknown")):
        silent = replace(mac("b", ram), ram_available_bytes=None)
        refusal = refused(fleet(mac("a", 8), silent, links=mesh("a", "b")), WIDE, ask())
        assert refusal.code == code


def test_a_fleet_that_does_not_shard_refuses_instead_of_waiting() -> None:
    """Never pending; a node that holds it alone is planned, and what is too large for all is short."""
    alone = replace(TWO, links_supported=False)
    for asked in (ask(), ask(min_nodes=2), ask(required_node_ids={"a", "b"})):
        refusal = refused(alone, WIDE, asked)
        assert (refusal.code, refusal.category) == ("links_unsupported", "no_valid_placement")
        assert "models sharded over machines are not run yet" in refusal.message
        assert missing(refusal) == {}
    linked = replace(alone, links=mesh("a", "b"))
    assert refused(linked, WIDE, ask()).code == "links_unsupported"
    assert plan(alone, card(), ask()).best is not None
    assert refused(alone, card(layer_mib=2500), ask()).code == "memory_short"
    given = ExactPlacement((ExactShard("a", 0, 16), ExactShard("b", 16, 32)))
    refusal = check_exact(linked, WIDE, given, ask()).refusal
    assert refusal is not None
    assert refusal.code == "links_unsupported"


def test_a_window_that_fits_one_node_when_smaller_is_told_there_too() -> None:
    """Not being able to shard does not hide the window that would do."""
    model = card(layer_mib=400, context_length=131072)
    refusal = refused(replace(TWO, links_supported=False), model, ask(context_tokens=131072))
    assert refusal.code == "context_too_large"
    assert any(suggestion.kind == "lower_context" for suggestion in refusal.suggestions)


def test_windows_stay_inside_the_contract() -> None:
    """A card of 10,485,760 tokens is given windows that can be posted."""
    llama4 = card(layer_mib=10, kv_heads=1, context_length=10_485_760)
    best = plan(fleet(mac("a", 512)), llama4, ask()).best
    assert best is not None
    assert best.context_tokens == best.max_context_tokens == 1_048_576
    refusal = refused(fleet(mac("a", 512)), llama4, ask(context_tokens=2_000_000))
    assert (refusal.code, refusal.category) == ("context_out_of_range", "no_valid_placement")
    assert refusal.message == "context_tokens is 2000000; accepted are 256 to 1048576"


def test_a_card_without_a_window_says_so() -> None:
    """What is stamped is what memory allows; the plan flags it."""
    best = plan(fleet(mac("a")), card(context_length=0), ask()).best
    assert best is not None
    assert "context_length_unknown" in best.flags
    known = plan(fleet(mac("a")), card(), ask()).best
    assert known is not None
    assert known.flags == ("engine_floor_estimated",)


def test_weights_of_no_size_are_not_planned() -> None:
    """0 bytes would fit anywhere."""
    values = {**card().model_dump(by_alias=False), "weights": None, "storage_size": {"in_bytes": 0}}
    unknown = ModelCard.model_validate(values)
    refusal = refused(fleet(mac("a")), unknown, ask())
    assert (refusal.code, refusal.category) == ("weights_unknown", "no_valid_placement")
    assert refusal.suggestions == ()
    refusal = check_exact(fleet(mac("a")), unknown, ExactPlacement((ExactShard("a", 0, 32),)), ask()).refusal
    assert refusal is not None
    assert refusal.code == "weights_unknown"

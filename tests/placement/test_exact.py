"""Exact placements: what is checked, in which order, and what the plan then says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.fleets import GIB, ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceMeta,
    LinkFacts,
    PlanResult,
    ReservationFacts,
    Sharding,
)

MODEL = card()
PAIR = fleet(mac("a"), mac("b"), links=mesh("a", "b"))


def shards(*parts: tuple[str, int, int], backend: str | None = None) -> tuple[ExactShard, ...]:
    """Shards in rank order."""
    return tuple(ExactShard(node, start, end, backend) for node, start, end in parts)


def check(*parts: tuple[str, int, int], snapshot: FleetSnapshot = PAIR, **values: Any) -> PlanResult:
    """Check a placement of the model."""
    backend = values.pop("backend", None)
    model = values.pop("model", MODEL)
    asked = values.pop("asked", ask())
    return check_exact(snapshot, model, ExactPlacement(shards(*parts, backend=backend), **values), asked)


def test_a_small_models_own_window_is_accepted_below_the_usual_least() -> None:
    """What a preview of it stamps must be accepted."""
    model = card(context_length=128)
    stamped = plan(PAIR, model, ask()).plans[0].context_tokens
    assert stamped == 128
    given = check(("a", 0, 32), model=model, context_tokens=stamped).plans[0]
    assert given.context_tokens == 128
    refusal = check(("a", 0, 32), model=model, context_tokens=127).refusal
    assert refusal is not None
    assert refusal.code == "context_out_of_range"


@pytest.mark.parametrize(
    ("parts", "values", "code", "words"),
    [
        ((("a", 0, 32),), {"card_digest": "0" * 64}, "card_identity_mismatch", "is not the catalog's"),
        ((("a", 0, 32),), {"context_tokens": 0}, "context_not_positive", "must be positive"),
        ((("a", 0, 32),), {"context_tokens": -5}, "context_not_positive", "context_tokens is -5"),
        ((("a", 0, 32),), {"context_tokens": 255}, "context_out_of_range", "256 is the least"),
        (
            (("a", 0, 32),),
            {"sharding": Sharding.TENSOR, "model": card(supports_tensor=False)},
            "tensor_unsupported",
            "does not support tensor",
        ),
        ((), {}, "layers_not_covered", "no shards"),
        ((("x", 0, 32),), {}, "node_unknown", "x is not in the fleet"),
        ((("a", 0, 16), ("a", 16, 32)), {}, "node_repeated", "holds 2 shards"),
        ((("a", 0, 16), ("b", 17, 32)), {}, "layers_not_covered", "0..16, 17..32"),
        ((("a", 0, 16), ("b", 15, 32)), {}, "layers_not_covered", "once and in order"),
        ((("b", 16, 32), ("a", 0, 16)), {}, "layers_not_covered", "16..32, 0..16"),
        ((("a", 0, 16), ("b", 16, 31)), {}, "layers_not_covered", "0..32 must"),
        ((("a", 0, 32), ("b", 32, 32)), {}, "layers_not_covered", "32..32"),
        (
            (("a", 0, 16), ("b", 16, 32)),
            {"sharding": Sharding.TENSOR},
            "sharding_mismatch",
            "each hold 0..32",
        ),
        ((("a", 0, 16), ("b", 16, 32)), {"meta": InstanceMeta.RPC}, "sharding_mismatch", "donors 0..0"),
        (
            (("a", 0, 32), ("b", 0, 0)),
            {"meta": InstanceMeta.RPC},
            "meta_not_applicable",
            "LlamaRpc does not go",
        ),
        ((("a", 0, 16), ("b", 16, 32)), {"meta": InstanceMeta.JACCL}, "rdma_missing", "RDMA"),
        ((("a", 0, 32),), {"backend": "vllm-cuda"}, "engine_missing", "it could with: mlx-metal"),
        ((("a", 0, 32),), {"asked": ask(excluded_node_ids={"a"})}, "node_excluded", "excludes"),
    ],
)
def test_refusals(
    parts: tuple[tuple[str, int, int], ...], values: dict[str, Any], code: str, words: str
) -> None:
    """One code per check, and words that name what is wrong."""
    refusal = check(*parts, **values).refusal
    assert refusal is not None
    assert refusal.code == code
    assert words in refusal.message


def test_identity_has_its_own_category() -> None:
    """For the contract's header; the catalog's own digest passes."""
    refused = check(("a", 0, 32), card_digest="1" * 64).refusal
    assert refused is not None
    assert refused.category == "model_card_identity_mismatch"
    assert check(("a", 0, 32), card_digest=MODEL.digest).best is not None


def test_a_planned_placement_passes_as_it_was_planned() -> None:
    """Ranks, charges and windows are those of the plan."""
    for min_nodes in (1, 2):
        planned = plan(PAIR, MODEL, ask(min_nodes=min_nodes)).best
        assert planned is not None
        given = [(rank.node_id, rank.start_layer, rank.end_layer) for rank in planned.ranks]
        assert check(*given).best == planned


def test_a_tensor_placement_and_an_rpc_placement_pass_as_planned() -> None:
    """Ranks that hold everything; a driver and its donor."""
    tensor = plan(PAIR, MODEL, ask(min_nodes=2, sharding=Sharding.TENSOR)).best
    assert tensor is not None
    assert check(("a", 0, 32), ("b", 0, 32), sharding=Sharding.TENSOR).best == tensor
    model = card(backends=("llama_server-cuda",))
    servers = [gpu_server(name, (24, 24), backends=("llama_server-cuda",)) for name in ("a", "b")]
    snapshot = fleet(*servers, links=mesh("a", "b"))
    rpc = plan(snapshot, model, ask(min_nodes=2)).best
    assert rpc is not None
    given = check(("a", 0, 32), ("b", 0, 0), snapshot=snapshot, model=model, meta=InstanceMeta.RPC).best
    assert given == rpc


@pytest.mark.parametrize(("cap", "expected"), [(4096, 4096), (20000, 20000), (10**6, 32768), (None, 32768)])
def test_a_positive_window_is_a_cap(cap: int | None, expected: int) -> None:
    """It lowers the window and never raises it."""
    best = check(("a", 0, 32), context_tokens=cap).best
    assert best is not None
    assert best.context_tokens == expected


def test_existing_reservations_count() -> None:
    """40 GiB claimed of 48 leave no room, though nothing is used yet."""
    claimed = replace(PAIR, reservations=(ReservationFacts("i", "a", 0, 44 * GIB),))
    refusal = check(("a", 0, 32), snapshot=claimed).refusal
    assert refusal is not None
    assert refusal.code == "memory_short"
    assert refusal.nodes[0].usable_bytes == 4 * GIB
    assert check(("b", 0, 32), snapshot=claimed).best is not None


def test_each_node_of_a_pipeline_is_judged_alone() -> None:
    """The sum fits, the given share of the small node does not; the other cut does."""
    uneven = fleet(mac("a", 8), mac("b", 64), links=mesh("a", "b"))
    model = card(layer_mib=400)
    refusal = check(("a", 0, 16), ("b", 16, 32), snapshot=uneven, model=model).refusal
    assert refusal is not None
    assert [(node.node_id, node.code) for node in refusal.nodes] == [("a", "memory_short")]
    assert check(("a", 0, 8), ("b", 8, 32), snapshot=uneven, model=model).best is not None


def test_missing_facts_and_links() -> None:
    """Pending where memory is not known; refused where the given neighbours are not linked."""
    unmeasured = fleet(replace(mac("a"), ram_available_bytes=None))
    refusal = check(("a", 0, 32), snapshot=unmeasured).refusal
    assert refusal is not None
    assert (refusal.code, refusal.category) == ("memory_unknown", "placement_info_pending")
    unlinked = fleet(mac("a"), mac("b"), links=[LinkFacts("a", "b", "ethernet")])
    refusal = check(("a", 0, 16), ("b", 16, 32), snapshot=unlinked).refusal
    assert refusal is not None
    assert refusal.code == "link_missing"


def test_one_engine_serves_all_shards() -> None:
    """Each node may run its own backend of it; two engines are refused."""
    model = card(backends=("mlx", "llama_server"))
    mixed = fleet(
        mac("a"), cpu_server("b", 64, backends=frozenset({"llama_server-cpu"})), links=mesh("a", "b")
    )
    refusal = check(("a", 0, 16), ("b", 16, 32), snapshot=mixed, model=model).refusal
    assert refusal is not None
    assert refusal.code == "no_common_engine"
    named = ExactPlacement((ExactShard("a", 0, 16, "mlx-metal"), ExactShard("b", 16, 32, "mlx")))
    checked = check_exact(PAIR, MODEL, named, ask()).best
    assert checked is not None
    assert [rank.backend for rank in checked.ranks] == ["mlx-metal", "mlx-metal"]
    two = ExactPlacement((ExactShard("a", 0, 16, "mlx-metal"), ExactShard("b", 16, 32, "llama_server-cpu")))
    refusal = check_exact(mixed, model, two, ask()).refusal
    assert refusal is not None
    assert refusal.code == "no_common_engine"


def test_a_rank_may_not_start_after_the_card_allows() -> None:
    """``max_pipeline_split_layer``: the planner moves the boundary, an exact placement is told."""
    placement = MODEL.placement.model_copy(update={"max_pipeline_split_layer": 10})
    model = MODEL.model_copy(update={"placement": placement})
    planned = plan(PAIR, model, ask(min_nodes=2)).best
    assert planned is not None
    assert planned.ranks[1].start_layer == 10
    refusal = check(("a", 0, 16), ("b", 16, 32), model=model).refusal
    assert refusal is not None
    assert refusal.code == "sharding_mismatch"

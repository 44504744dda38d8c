"""Reports of the instances notes, 6.1 and 6.2, that concern placement. Numbers in the names are theirs.

Not here, because they concern running, not placing: 4 to 6, 8 to 12, 20 to 26, 33, 41 to 52, 59 to 63, 65, 66. 29 is
vector 1 of 6.4, 31 is vector 15; 37 is not offered: see docs/placement.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import GIB, ask, card, cpu_server, fleet, gpu_server, mac, mesh, table_card
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.serial import request_to_json
from wharfinger.placement.types import (
    InstanceFacts,
    InstanceMeta,
    LinkFacts,
    Plan,
    PlanResult,
    ReservationFacts,
    Sharding,
)


def best(result: PlanResult) -> Plan:
    """The plan, or a failure that shows the refusal."""
    assert result.best is not None, result.refusal
    return result.best


def code(result: PlanResult) -> str:
    """The refusal's code."""
    assert result.refusal is not None, result.best
    return result.refusal.code


def test_01_a_split_is_admitted_by_the_same_sums_its_nodes_are_charged() -> None:
    """#290: admitted on an estimate, refused by the worker. One figure serves both here."""
    pair = fleet(mac("a", 16), mac("b", 24), links=mesh("a", "b"))
    chosen = best(plan(pair, card(layer_mib=560), ask(min_nodes=2)))
    for rank in chosen.ranks:
        assert all(charge.needed_bytes <= charge.usable_bytes for charge in rank.charges)


def test_02_03_34_memory_of_a_stopped_instance_is_free_when_it_is_seen_to_be() -> None:
    """#314: launch right after delete. Published: 30 s of credit, then none. Ours: ledger and telemetry, no timer."""
    model = card(n_layers=30, layer_mib=500)
    released_but_still_used = fleet(mac("a", 32, 15))
    assert code(plan(released_but_still_used, model, ask())) == "memory_short"
    assert best(plan(fleet(mac("a", 32, 30)), model, ask()))


def test_07_every_unusable_node_says_why() -> None:
    """#388."""
    members = (
        mac("a", 8),
        gpu_server("b", backends=("vllm-cuda",)),
        replace(mac("c"), role="management"),
        replace(mac("d"), backends=None),
        replace(mac("e"), reachable=False),
    )
    result = plan(fleet(*members, mac("f", 64)), card(layer_mib=600), ask(excluded_node_ids={"g"}))
    assert best(result).node_ids == ("f",)
    assert {node.node_id: node.code for node in result.node_refusals} == {
        "a": "memory_short",
        "b": "engine_missing",
        "c": "role_not_serving",
        "d": "engines_unknown",
        "e": "node_unreachable",
    }
    assert all(node.message for node in result.node_refusals)


def test_13_14_the_window_advertised_is_the_window_served_and_memory_bounds_it() -> None:
    """#145, #362: GGUF ran with 8192 although the ceiling said more."""
    model = card(layer_mib=320, backends=("llama_cpp-cuda",), context_length=131072)
    chosen = best(plan(fleet(gpu_server("a", (16,))), model, ask()))
    assert chosen.context_tokens == chosen.max_context_tokens
    assert chosen.context_tokens is not None
    assert 8192 < chosen.context_tokens < 131072
    kv = {part.name: part.size_bytes for part in chosen.ranks[0].charges[0].parts}["kv_cache"]
    assert chosen.kv_bytes_per_token is not None
    assert kv >= chosen.context_tokens * chosen.kv_bytes_per_token


def test_15_a_gguf_larger_than_any_node_runs_over_rpc() -> None:
    """#328."""
    model = card(n_layers=40, layer_mib=900, backends=("llama_server-cuda",))
    servers = [gpu_server(name, (24,), backends=("llama_server-cuda",)) for name in ("a", "b")]
    chosen = best(plan(fleet(*servers, links=mesh("a", "b")), model, ask()))
    assert (chosen.meta, len(chosen.ranks)) == (InstanceMeta.RPC, 2)


def test_16_17_one_engine_spans_the_set_and_is_stamped_on_every_rank() -> None:
    """#330, #414: an engine the planner did not assume, and a set without a common one."""
    hybrid = card(n_layers=40, layer_mib=900, backends=("mlx", "llama_server"))
    mixed = fleet(
        mac("a", 24),
        gpu_server("b", (24,), backends=("llama_server-cuda",)),
        mac("c", 32),
        links=mesh("a", "b", "c"),
    )
    chosen = best(plan(mixed, hybrid, ask(min_nodes=2)))
    assert {rank.backend for rank in chosen.ranks} == {"mlx-metal"}
    assert set(chosen.node_ids) == {"a", "c"}


def test_18_every_other_host_that_passes_is_listed() -> None:
    """#557: the ranked winner hid other hosts."""
    rows = preview_answer(
        fleet(mac("a", 64), mac("b", 96), mac("c", 8), mac("d", 48)), card(layer_mib=600), ask()
    ).rows
    listed = [(row.plan.node_ids[0], row.alternative) for row in rows if row.plan is not None]
    assert listed == [("b", False), ("a", True), ("d", True)]


def test_19_exclusions_are_part_of_the_request_that_repair_plans_again() -> None:
    """#658: a repair landed on a node the user had excluded."""
    asked = ask(excluded_node_ids={"a"}, context_tokens=4096, min_nodes=1)
    assert request_to_json(asked)["excluded_node_ids"] == ["a"]
    assert best(plan(fleet(mac("a", 128), mac("b", 32)), card(), asked)).node_ids == ("b",)


def test_27_ports_stay_below_ephemeral_ranges_and_skip_those_in_use() -> None:
    """1.4.0: address in use."""
    node = replace(mac("a"), used_ports=frozenset({24000, 24001}))
    running = InstanceFacts("i", "m", ("a",), frozenset({24002}))
    elsewhere = InstanceFacts("j", "m", ("b",), frozenset({24003}))
    chosen = best(plan(fleet(node, instances=[running, elsewhere]), card(), ask()))
    assert chosen.port == 24003
    full = replace(mac("a"), used_ports=frozenset(range(24000, 32000)))
    assert code(plan(fleet(full), card(), ask())) == "no_free_port"


def test_28_a_16_and_24_gb_pair_is_judged_per_node() -> None:
    """Summed memory admits what the pair cannot hold: usable 12 + 18, tensor halves of more than 12."""
    model = card(layer_mib=700)
    pair = fleet(mac("a", 16), mac("b", 24), links=mesh("a", "b"))
    assert code(plan(pair, model, ask(min_nodes=2, sharding=Sharding.TENSOR))) == "memory_short"
    pipeline = best(plan(pair, model, ask(min_nodes=2)))
    layers = {rank.node_id: rank.end_layer - rank.start_layer for rank in pipeline.ranks}
    assert layers == {"a": 13, "b": 19}


def test_30_file_cache_counts_as_free() -> None:
    """An idle 24 GB Mac whose free pages look like 11.6: what the node reports as available decides, up to 0.75."""
    chosen = best(plan(fleet(mac("a", 24, 23)), card(layer_mib=400), ask()))
    assert chosen.ranks[0].charges[0].usable_bytes == 18 * GIB


def test_32_vllm_windows_are_capped() -> None:
    """A window of 262k made vLLM start in 90 minutes."""
    model = table_card("mlx-community/Qwen3.5-9B-4bit", placement=card(backends=("vllm-cuda",)).placement)
    chosen = best(plan(fleet(gpu_server("a", (80,), backends=("vllm-cuda",))), model, ask()))
    assert (chosen.context_tokens, chosen.max_context_tokens) == (32768, 32768)
    refused = plan(fleet(gpu_server("a", (80,), backends=("vllm-cuda",))), model, ask(context_tokens=65536))
    assert code(refused) == "context_too_large"


def test_35_a_small_model_is_not_refused_for_lack_of_cycles() -> None:
    """exo #1754: no links are needed for one node."""
    assert best(plan(fleet(mac("a", 16), mac("b", 16)), card(layer_mib=60), ask())).node_ids == ("a",)


def test_36_a_memory_refusal_is_part_of_what_is_shown() -> None:
    """exo #1089: the refusal was in a log. Previews are what the dashboard draws: the row and every node say it."""
    answer = preview_answer(fleet(mac("a", 8), mac("b", 8)), card(layer_mib=1280), ask(max_nodes=1))
    (row,) = answer.rows
    assert row.refusal is not None
    assert row.refusal.message == "0/2 nodes can run this: 2 short of memory (least short: a by 38.1 GiB)"
    assert [(node.node_id, node.code, node.needed_bytes) for node in answer.node_refusals] == [
        (node.node_id, "memory_short", node.needed_bytes) for node in row.refusal.nodes
    ]
    assert all(node.short_by_bytes == (node.needed_bytes or 0) - 6 * GIB for node in answer.node_refusals)


def test_38_available_not_total_memory() -> None:
    """exo PR 994."""
    assert code(plan(fleet(mac("a", 64, 10)), card(layer_mib=600), ask())) == "memory_short"


def test_39_unequal_ram_is_split_unequally() -> None:
    """exo #641, #394: the small node crashed."""
    pair = fleet(mac("a", 16), mac("b", 96), links=mesh("a", "b"))
    chosen = best(plan(pair, card(n_layers=40, layer_mib=700, kv_heads=1), ask(min_nodes=2)))
    assert {rank.node_id: rank.end_layer - rank.start_layer for rank in chosen.ranks} == {"a": 6, "b": 34}


def test_40_a_node_may_be_capped() -> None:
    """exo #118: a maximum of memory per node, over all pools, running instances included."""
    model = card(layer_mib=250)  # 7.8 GiB and overheads
    capped = replace(mac("a", 64), memory_cap_bytes=12 * GIB)
    assert best(plan(fleet(capped), model, ask())).memory_by_node["a"] <= 12 * GIB
    claimed = fleet(capped, reservations=[ReservationFacts("i", "a", 0, 4 * GIB, observed=True)])
    assert code(plan(claimed, model, ask())) == "memory_short"


def test_53_a_row_is_labelled_with_what_would_be_minted() -> None:
    """exo #1426: one single-node option appeared under four labels. It is listed once."""
    rows = preview_answer(fleet(mac("a"), mac("b"), links=mesh("a", "b", rdma=True)), card(), ask()).rows
    singles = [row for row in rows if row.plan is not None and len(row.plan.ranks) == 1]
    assert [(row.sharding, row.meta, row.alternative) for row in singles] == [
        (Sharding.PIPELINE, InstanceMeta.RING, False),
        (Sharding.PIPELINE, InstanceMeta.RING, True),
    ]
    for row in rows:
        assert row.plan is None or (row.sharding, row.meta) == (row.plan.sharding, row.plan.meta)


@pytest.mark.parametrize(
    ("model_id", "width", "expected"),
    [
        ("mlx-community/Qwen3.5-2B-4bit", 2, None),
        ("mlx-community/Qwen3.5-2B-4bit", 4, "tensor_indivisible"),
        ("mlx-community/Llama-3.2-1B-Instruct-4bit", 3, "tensor_indivisible"),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", 3, "tensor_indivisible"),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", 8, None),
        ("mlx-community/GLM-4.7-Flash-4bit", 4, None),
        ("mlx-community/GLM-4.7-Flash-4bit", 5, "tensor_indivisible"),
        ("mlx-community/gemma-4-31b-it-4bit", 2, "tensor_unsupported"),
        ("exolabs/FLUX.1-schnell-4bit", 2, "tensor_unsupported"),
    ],
)
def test_54_55_56_tensor_widths(model_id: str, width: int, expected: str | None) -> None:
    """exo PR 1669, #1315: KV heads < nodes crashed, three nodes looped. Widths are what divides (notes 3.6)."""
    names = [f"n{i}" for i in range(width)]
    result = plan(
        fleet(*(mac(name, 64) for name in names), links=mesh(*names)),
        table_card(model_id),
        ask(min_nodes=width, sharding=Sharding.TENSOR),
    )
    if expected is None:
        assert len(best(result).ranks) == width
        assert best(result).sharding is Sharding.TENSOR
    else:
        assert code(result) == expected


def test_57_layer_counts_by_hand() -> None:
    """exo PR 2253: exact placement takes the caller's cut."""
    pair = fleet(mac("a", 64), mac("b", 64), links=mesh("a", "b"))
    given = ExactPlacement((ExactShard("b", 0, 25), ExactShard("a", 25, 32)))
    chosen = best(check_exact(pair, card(), given, ask()))
    assert [(r.node_id, r.start_layer, r.end_layer) for r in chosen.ranks] == [("b", 0, 25), ("a", 25, 32)]


def test_58_memory_bandwidth_and_latency_rank() -> None:
    """exo #957, #701: of two hosts the faster memory first; of two pairs the faster links."""
    slow = mac("a", 64)
    slow = replace(slow, devices=(replace(slow.devices[0], name="Apple M4 Pro"),))
    chosen = best(plan(fleet(slow, mac("b", 64)), card(), ask()))
    assert chosen.node_ids == ("b",)
    speed = next(part for part in chosen.score if part.name == "expected_passes_per_s")
    assert speed.value == pytest.approx(546e9 / (3200 * 2**20))
    near = [replace(link, latency_s=0.0002) for link in mesh("a", "c")]
    far = [replace(link, latency_s=0.02) for link in mesh("a", "b")]
    pairs = fleet(mac("a", 24), mac("b", 24), mac("c", 24), links=[*near, *far])
    assert set(best(plan(pairs, card(layer_mib=700), ask())).node_ids) == {"a", "c"}


def test_58_an_unknown_bandwidth_ranks_after_known_ones_and_says_so() -> None:
    """Unknown is a value."""
    unknown = mac("a", 64)
    unknown = replace(unknown, devices=(replace(unknown.devices[0], name="Apple M9"),))
    result = plan(fleet(unknown, mac("b", 64)), card(), ask())
    assert [chosen.node_ids[0] for chosen in result.plans] == ["b", "a"]
    part = next(part for part in result.plans[1].score if part.name == "expected_passes_per_s")
    assert (part.value, part.detail) == (None, "bandwidth not known")


def test_64_gpu_memory_counts_and_a_cpu_build_is_sized_by_ram() -> None:
    """exo PR 2216: GPU memory not counted; a GPU machine with a CPU build only uses its RAM."""
    model = card(layer_mib=500, backends=("llama_cpp-cuda", "llama_cpp-cpu"))
    assert (
        best(plan(fleet(gpu_server("a", (24,), ram_gib=8)), model, ask())).ranks[0].backend
        == "llama_cpp-cuda"
    )
    cpu_build = gpu_server("a", (24,), ram_gib=8, backends=("llama_cpp-cpu",))
    assert code(plan(fleet(cpu_build), model, ask())) == "memory_short"
    assert best(plan(fleet(cpu_server("a", 64)), model, ask())).ranks[0].charges[0].device_index is None


def test_load_and_one_way_links() -> None:
    """8.3: existing load ranks; a link in one direction only is no pair."""
    busy = fleet(mac("a"), mac("b"), instances=[InstanceFacts("i", "m", ("a",))])
    assert best(plan(busy, card(), ask())).node_ids == ("b",)
    one_way = fleet(mac("a", 24), mac("b", 24), links=[LinkFacts("a", "b", "ethernet", "10.0.0.2")])
    assert code(plan(one_way, card(layer_mib=700), ask(min_nodes=2))) == "link_missing"


def test_deepseek_8_bit_is_not_banned() -> None:
    """2.2 step 12: one model was hard-coded as never placeable. Ours has no such list."""
    chosen = plan(fleet(mac("a", 2048)), table_card("mlx-community/DeepSeek-V3.1-8bit"), ask())
    assert best(chosen).node_ids == ("a",)

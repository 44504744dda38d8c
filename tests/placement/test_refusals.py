"""Refusals: the code, the one-line summary, missing facts and suggestions."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from support.fleets import GIB, ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.placement import codes
from wharfinger.placement.planner import plan
from wharfinger.placement.types import InstanceFacts, InstanceMeta, Refusal, ReservationFacts, Sharding
from wharfinger.placement.units import gib

ROOT = Path(__file__).parents[2]


def refused(*args: object, **kwargs: object) -> Refusal:
    """The refusal of a plan."""
    result = plan(*args, **kwargs)  # type: ignore[arg-type]
    assert result.refusal is not None, result.best
    return result.refusal


def test_the_summary_in_the_manner_of_kubernetes() -> None:
    """Groups by reason, the least short node named."""
    members = (
        mac("lab-1", 8),
        mac("lab-2", 16),
        mac("lab-3", 8),
        gpu_server("lab-4", backends=("vllm-cuda",)),
        gpu_server("lab-5", backends=("vllm-cuda",)),
    )
    refusal = refused(fleet(*members), card(layer_mib=350), ask())
    shown = re.sub(r"by [\d.]+ GiB", "by X", refusal.message)
    assert shown == (
        "0/5 nodes can run this: 3 short of memory (least short: lab-2 by X), 2 lack an engine for it; "
        "together: links of lab-1, lab-2, lab-3 have not been observed yet"
    )
    assert refusal.code == "links_unknown"
    least = next(node for node in refusal.nodes if node.node_id == "lab-2")
    assert f"by {gib(least.short_by_bytes or 0)}" in refusal.message
    assert [node.node_id for node in refusal.nodes] == ["lab-1", "lab-2", "lab-3", "lab-4", "lab-5"]
    assert refusal.nodes[3].message == "lab-4 has no engine for this: wanted mlx; has vllm-cuda"


@pytest.mark.parametrize(
    ("request_values", "code"),
    [
        ({"context_tokens": 0}, "context_not_positive"),
        ({"context_tokens": -1}, "context_not_positive"),
        ({"context_tokens": 40000}, "context_too_large"),
        ({"context_tokens": 255}, "context_out_of_range"),
        ({"context_tokens": 1048577}, "context_out_of_range"),
        ({"required_node_ids": {"zz"}}, "required_node_unknown"),
        ({"required_node_ids": {"a"}, "excluded_node_ids": {"a"}}, "required_node_excluded"),
        ({"backend": "vllm-cuda"}, "backend_not_accepted"),
        ({"min_nodes": 4}, "too_few_nodes"),
        ({"excluded_node_ids": {"a", "b", "c"}}, "all_nodes_excluded"),
        ({"excluded_node_ids": {"a", "b"}, "min_nodes": 2}, "all_nodes_excluded"),
        ({"min_nodes": 2, "meta": InstanceMeta.RPC}, "meta_not_applicable"),
        ({"min_nodes": 2, "meta": InstanceMeta.JACCL}, "rdma_missing"),
        ({"min_nodes": 3, "sharding": Sharding.TENSOR}, "tensor_indivisible"),
        ({"required_node_ids": {"c"}}, "memory_short"),
    ],
)
def test_what_the_request_itself_makes_impossible(request_values: dict[str, object], code: str) -> None:
    """Three linked Macs, one of them tiny."""
    trio = fleet(mac("a"), mac("b"), mac("c", 2), links=mesh("a", "b", "c"))
    asked = ask(**request_values)
    if code == "memory_short":
        asked = replace(asked, max_nodes=1)
    refusal = refused(trio, card(), asked)
    assert refusal.code == code
    assert refusal.category == "no_valid_placement"
    assert refusal.message


def test_an_empty_fleet_and_too_few_layers() -> None:
    """The two ends."""
    assert refused(fleet(), card(), ask()).code == "no_nodes"
    names = [f"n{i}" for i in range(5)]
    many = fleet(*(mac(name) for name in names), links=mesh(*names))
    assert refused(many, card(n_layers=4), ask(min_nodes=5)).code == "too_few_layers"


def test_minimum_vram_is_a_gate() -> None:
    """``min_vram_gib`` is declared by the contract and read by nobody; it is honoured here, per device."""
    model = card(backends=("vllm-cuda",), layer_mib=10)
    gated = model.model_copy(update={"placement": model.placement.model_copy(update={"min_vram_gib": 40.0})})
    assert refused(fleet(gpu_server("a", (24, 24), backends=("vllm-cuda",))), gated, ask()).code == "min_vram"
    assert plan(fleet(gpu_server("a", (48,), backends=("vllm-cuda",))), gated, ask()).best is not None


def test_a_card_may_cap_its_window() -> None:
    """``max_context_tokens`` likewise."""
    model = card(context_length=131072)
    capped = model.model_copy(
        update={"placement": model.placement.model_copy(update={"max_context_tokens": 5000})}
    )
    best = plan(fleet(mac("a")), capped, ask()).best
    assert best is not None
    assert best.context_tokens == best.max_context_tokens == 5000
    assert refused(fleet(mac("a")), capped, ask(context_tokens=5001)).code == "context_too_large"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"backends": None}, "backends"),
        ({"ram_total_bytes": None}, "ram_total_bytes"),
        ({"ram_available_bytes": None}, "ram_available_bytes"),
    ],
)
def test_a_missing_fact_is_named_with_its_node(change: dict[str, object], fact: str) -> None:
    """And the rest of the fleet does not turn pending into a no."""
    pair = fleet(replace(mac("a", 128), **change), mac("b", 4))  # type: ignore[arg-type]
    refusal = refused(pair, card(), ask())
    assert refusal.category == "placement_info_pending"
    assert [(node.node_id, node.missing_facts) for node in refusal.nodes if node.missing_facts] == [
        ("a", (fact,))
    ]
    assert f"a: {fact}" in refusal.message
    assert refusal.suggestions == ()


def test_missing_vram_is_named_by_device_and_a_gpu_engine_without_devices_is_pending() -> None:
    """VRAM is never taken from RAM instead."""
    node = gpu_server("a", (24, 24))
    half = replace(node, devices=(node.devices[0], replace(node.devices[1], total_bytes=None)))
    model = card(n_layers=40, layer_mib=900, backends=("llama_cpp-cuda",))
    refusal = refused(fleet(half), model, ask())
    assert (refusal.code, refusal.nodes[0].missing_facts) == ("memory_unknown", ("devices[1].total_bytes",))
    small = card(layer_mib=100, backends=("llama_cpp-cuda",))
    assert plan(fleet(half), small, ask()).best is not None  # the measured device is enough
    none = refused(fleet(replace(node, devices=())), small, ask())
    assert (none.code, none.nodes[0].missing_facts) == ("memory_unknown", ("devices",))


def test_a_window_that_fits_only_smaller() -> None:
    """The largest that fits is told, and it fits."""
    model = card(n_layers=32, layer_mib=200, context_length=131072)
    node = mac("a", 16)
    refusal = refused(fleet(node), model, ask(context_tokens=131072))
    assert refusal.code == "context_too_large"
    window = next(s.context_tokens for s in refusal.suggestions if s.kind == "lower_context")
    assert window is not None
    assert f"the largest that fits is {window}" in refusal.message
    assert plan(fleet(node), model, ask(context_tokens=window)).best is not None
    assert plan(fleet(node), model, ask(context_tokens=window + 256)).best is None


def test_stopping_an_instance_is_suggested_only_when_it_helps() -> None:
    """The smaller of two that would do first; the one too small not at all."""
    instances = [InstanceFacts(name, "other/model", ("a",)) for name in ("tiny", "large", "larger")]
    sizes = {"tiny": 1, "large": 14, "larger": 16}
    reservations = [ReservationFacts(name, "a", 0, size * GIB, observed=True) for name, size in sizes.items()]
    busy = fleet(mac("a", 64, 64 - sum(sizes.values())), reservations=reservations, instances=instances)
    refusal = refused(busy, card(n_layers=40, layer_mib=600), ask())
    stops = [s for s in refusal.suggestions if s.kind == "stop_instance"]
    assert [s.instance_id for s in stops] == ["large", "larger"]
    assert stops[0].message == "stop instance large (other/model, 14.0 GiB)"


def test_another_quantization_of_the_catalog() -> None:
    """The largest smaller one that fits; other models are not proposed."""

    def quant(name: str, layer_mib: int, base: str = "base") -> object:
        return card(layer_mib=layer_mib, model_id=f"t/{name}", base_model=base, quantization=name)

    catalog = [
        quant("bf16", 1600),
        quant("q8", 800),
        quant("q6", 400),
        quant("q4", 300),
        quant("q2", 100, "else"),
    ]
    refusal = refused(fleet(mac("a", 24)), catalog[1], ask(), catalog=catalog)
    (other,) = [s for s in refusal.suggestions if s.kind == "other_quantization"]
    assert other.model_id == "t/q6"
    assert other.message == "use t/q6 (q6, 12.5 GiB)"


def test_one_node_more_and_fewer_nodes_and_pipeline() -> None:
    """Each is planned before it is said."""
    alone = refused(fleet(mac("a", 24)), card(layer_mib=900), ask())
    assert [(s.kind, s.node_id) for s in alone.suggestions] == [("add_node", "a")]
    pair = fleet(mac("a"), mac("b"), links=mesh("a", "b"))
    wide = refused(pair, card(), ask(min_nodes=3))
    assert [s.kind for s in wide.suggestions] == ["lower_min_nodes", "add_node"]
    assert wide.suggestions[0].message == "ask for min_nodes 2"
    trio = fleet(mac("a"), mac("b"), mac("c"), links=mesh("a", "b", "c"))
    tensor = refused(trio, card(), ask(min_nodes=3, sharding=Sharding.TENSOR))
    assert {s.kind for s in tensor.suggestions} >= {"lower_min_nodes", "pipeline_sharding"}


def test_dropping_an_exclusion_is_suggested_only_when_it_helps() -> None:
    """The excluded small node would not help."""
    trio = fleet(mac("big"), mac("small", 2), cpu_server("c"))
    refusal = refused(trio, card(), ask(excluded_node_ids={"big", "small"}))
    assert [(s.kind, s.node_id) for s in refusal.suggestions if s.kind == "drop_exclusion"] == [
        ("drop_exclusion", "big")
    ]


def all_codes() -> set[str]:
    """Every code the module defines."""
    tree = ast.parse((ROOT / "src/wharfinger/placement/codes.py").read_text())
    return {
        node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant)
    }


def test_every_code_is_published_with_its_category() -> None:
    """``docs/placement.md`` lists each code; each has a meaning."""
    page = (ROOT / "docs/placement.md").read_text()
    categories = {codes.NO_VALID_PLACEMENT, codes.INFO_PENDING, codes.CARD_MISMATCH}
    fine = all_codes() - categories
    assert fine == set(codes.MEANINGS)
    for code in fine:
        assert f"| `{code}` | `{codes.category(code)}` |" in page, code


def test_placement_is_pure() -> None:
    """No module of the planner imports anything that does I/O, reads a clock or draws a number."""
    forbidden = {
        "os",
        "io",
        "time",
        "datetime",
        "random",
        "secrets",
        "socket",
        "asyncio",
        "pathlib",
        "subprocess",
    }
    for file in sorted((ROOT / "src/wharfinger/placement").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & forbidden, file
            assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("open", "print")), (
                file
            )


@pytest.mark.parametrize(
    ("cap", "reserved", "words"),
    [
        (8, 7, "usable 1.00 GiB (capped at 8.00 GiB, of which 7.00 GiB is reserved)"),
        (1, 2, "usable -1.00 GiB (capped at 1.00 GiB, of which 2.00 GiB is reserved)"),
        (1000, 7, "usable 41.0 GiB"),
    ],
)
def test_a_cap_is_named_where_it_is_what_refuses(cap: int, reserved: int, words: str) -> None:
    node = replace(cpu_server("a", 64), memory_cap_bytes=cap * GIB, backends=frozenset({"llama_cpp-cpu"}))
    claimed = [ReservationFacts("i", "a", None, reserved * GIB, observed=False)]
    refusal = refused(
        fleet(node, reservations=claimed), card(layer_mib=2000, backends=("llama_cpp-cpu",)), ask()
    )
    (told,) = refusal.nodes
    assert told.message.endswith(words), told.message

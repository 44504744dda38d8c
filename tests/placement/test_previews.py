"""Preview rows: which options, in which order, and what they charge."""

from __future__ import annotations

from support.fleets import ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.placement.planner import plan
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.types import InstanceMeta, PreviewRow, Sharding

RING, JACCL, RPC = InstanceMeta.RING, InstanceMeta.JACCL, InstanceMeta.RPC
PIPELINE, TENSOR = Sharding.PIPELINE, Sharding.TENSOR


def shapes(rows: tuple[PreviewRow, ...]) -> list[tuple[Sharding, InstanceMeta, int | str]]:
    """Shape of each row with its width, or the code of its refusal."""
    out: list[tuple[Sharding, InstanceMeta, int | str]] = []
    for row in rows:
        assert (row.plan is None) is not (row.refusal is None)
        if row.plan is not None:
            out.append((row.sharding, row.meta, len(row.plan.ranks)))
        elif row.refusal is not None:
            out.append((row.sharding, row.meta, row.refusal.code))
    return out


def test_three_linked_macs_give_one_row_per_different_option() -> None:
    """Widths 1 to 3, Tensor at 2 (3 divides nothing), no RDMA: and two more hosts."""
    names = ("a", "b", "c")
    rows = preview_answer(fleet(*(mac(name) for name in names), links=mesh(*names)), card(), ask()).rows
    assert shapes(rows) == [
        (PIPELINE, RING, 1),
        (PIPELINE, RING, 2),
        (PIPELINE, RING, 3),
        (TENSOR, RING, 2),
        (PIPELINE, RING, 1),
        (PIPELINE, RING, 1),
        (PIPELINE, JACCL, "rdma_missing"),
        (TENSOR, JACCL, "rdma_missing"),
    ]
    assert [row.alternative for row in rows] == [False] * 4 + [True] * 2 + [False] * 2


def test_rdma_adds_its_own_rows() -> None:
    """A mesh of two gives Jaccl in both shardings."""
    rows = preview_answer(fleet(mac("a"), mac("b"), links=mesh("a", "b", rdma=True)), card(), ask()).rows
    assert shapes(rows)[1:5] == [
        (PIPELINE, RING, 2),
        (PIPELINE, JACCL, 2),
        (TENSOR, RING, 2),
        (TENSOR, JACCL, 2),
    ]


def test_a_gguf_set_is_minted_as_rpc_and_listed_once() -> None:
    """Asked as Ring and as Jaccl, it is one option."""
    servers = [gpu_server(name, backends=("llama_server-cuda",)) for name in ("a", "b")]
    model = card(backends=("llama_server-cuda",))
    rows = preview_answer(fleet(*servers, links=mesh("a", "b")), model, ask()).rows
    assert shapes(rows) == [
        (PIPELINE, RING, 1),
        (PIPELINE, RPC, 2),
        (PIPELINE, RING, 1),
        (TENSOR, RING, "tensor_over_rpc"),
        (TENSOR, JACCL, "tensor_over_rpc"),
    ]


def test_the_first_row_is_the_quick_launch() -> None:
    """And rows charge what the plan charges."""
    pair = fleet(mac("a", 32), mac("b", 64), links=mesh("a", "b"))
    rows = preview_answer(pair, card(), ask()).rows
    best = plan(pair, card(), ask()).best
    assert best is not None
    assert rows[0].plan == best
    assert rows[0].plan is not None
    assert rows[0].plan.memory_by_node == {"b": best.ranks[0].needed_bytes}


def test_excluded_nodes_are_in_no_row() -> None:
    """Alternatives included."""
    names = ("a", "b", "c")
    rows = preview_answer(
        fleet(*(mac(name) for name in names), links=mesh(*names)), card(), ask(excluded_node_ids={"b"})
    ).rows
    used = {node for row in rows if row.plan is not None for node in row.plan.node_ids}
    assert used == {"a", "c"}


def test_required_nodes_leave_alternatives_out() -> None:
    """One required node may serve alone or in a set; every row holds it."""
    names = ("a", "b", "c")
    rows = preview_answer(
        fleet(*(mac(name) for name in names), links=mesh(*names)), card(), ask(required_node_ids={"b"})
    ).rows
    assert not any(row.alternative for row in rows)
    assert all("b" in row.plan.node_ids for row in rows if row.plan is not None)
    assert shapes(rows)[0] == (PIPELINE, RING, 1)
    two = preview_answer(
        fleet(*(mac(name) for name in names), links=mesh(*names)), card(), ask(required_node_ids={"b", "c"})
    ).rows
    assert shapes(two)[:2] == [(PIPELINE, RING, 2), (PIPELINE, RING, 3)]


def test_refusals_carry_suggestions_when_nothing_fits() -> None:
    """One fleet, no option: the first row says what would help."""
    rows = preview_answer(
        fleet(cpu_server("a", 8)), card(backends=("llama_cpp-cpu",), layer_mib=180), ask()
    ).rows
    assert shapes(rows) == [(PIPELINE, RING, "memory_short")]
    assert rows[0].refusal is not None
    assert [s.kind for s in rows[0].refusal.suggestions] == ["lower_context"]


def test_no_nodes_no_rows() -> None:
    """The contract's answer for an empty fleet."""
    assert preview_answer(fleet(), card(), ask()).rows == ()


def test_windows_of_growing_and_reserving_engines() -> None:
    """5.5: an engine that reserves gets the fleet's default, one that grows its ceiling."""
    model = card(backends=("mlx", "llama_server-cuda"), context_length=262144, kv_heads=1, layer_mib=20)
    both = fleet(mac("a", 64), gpu_server("b", (80,), backends=("llama_server-cuda",)))
    rows = preview_answer(both, model, ask(default_context_tokens=16384)).rows
    plans = {row.plan.ranks[0].backend: row.plan for row in rows if row.plan is not None}
    served, grown = plans["llama_server-cuda"], plans["mlx-metal"]
    assert (served.context_tokens, served.max_context_tokens) == (16384, 262144)
    assert served.reserves_context_at_load
    assert grown.context_tokens == grown.max_context_tokens == 262144
    assert not grown.reserves_context_at_load


def test_widths_are_bounded() -> None:
    """Twelve linked machines: widths 1 to 5 and no more; wider ones launch with min_nodes."""
    names = [f"n{i:02d}" for i in range(12)]
    linked = fleet(*(mac(name) for name in names), links=mesh(*names))
    rows = preview_answer(linked, card(), ask()).rows
    widths = [
        len(row.plan.ranks) for row in rows if row.plan and row.sharding is PIPELINE and not row.alternative
    ]
    assert widths == [1, 2, 3, 4, 5]
    wide = plan(linked, card(), ask(min_nodes=12)).best
    assert wide is not None
    assert len(wide.ranks) == 12

"""What the panels are made of: bars, reasons, groups, events and the small words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharfinger.access.principals import Principal, Role
from wharfinger.fleet.agent import DeviceReport, EngineReport, NodeReport
from wharfinger.placement.types import InstanceMeta, Refusal, ReservationFacts, ScorePart, Sharding
from wharfinger.placement.units import gib
from wharfinger.web.board import Board
from wharfinger.web.events import changes, message
from wharfinger.web.nodes import STEP_BYTES, memory_bar, node_views
from wharfinger.web.plans import launch_request
from wharfinger.web.rendering import ago, render, tokens
from wharfinger.web.routes import parse_wish
from wharfinger.web.scores import ScoreLine, score_lines
from wharfinger.workflows.fleet_view import SeenNode

GIB = 1 << 30
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADMIN = Principal("k", "someone", Role.ADMIN)


def reservation(size_bytes: int, observed: bool, device_index: int | None = None) -> ReservationFacts:
    return ReservationFacts("inst_1", "node_1", device_index, size_bytes, observed)


def report(**changes: object) -> NodeReport:
    values: dict[str, object] = {
        "node_id": "node_1",
        "name": "lab-1",
        "at": NOW,
        "os": "Linux 6.1",
        "architecture": "x86_64",
        "cpu_model": "EPYC",
        "cpu_count": 8,
        "cpu_percent": 12.4,
        "load_1m": 0.5,
        "ram_total_bytes": 64 * GIB,
        "ram_available_bytes": 48 * GIB,
        "swap_total_bytes": None,
        "swap_available_bytes": None,
        "disk_total_bytes": 500 * GIB,
        "disk_free_bytes": 100 * GIB,
        "engines": (EngineReport(engine="llama_cpp", backends=("llama_cpp-cpu",), version="1", build="b7"),),
    }
    return NodeReport.model_validate(values | changes)


def seen(silent_s: float = 1.0, **changes: object) -> SeenNode:
    return SeenNode(report(**changes), NOW, silent_s)


def test_a_bar_draws_seen_reservations_inside_what_is_used_and_others_on_top() -> None:
    bar = memory_bar(
        "RAM", "", 100 * GIB, 40 * GIB, [reservation(30 * GIB, True), reservation(20 * GIB, False)], None
    )
    assert [(s.kind, s.size_bytes, s.start, s.width) for s in bar.segments] == [
        ("used", 10 * GIB, 0.0, 10.0),
        ("held", 30 * GIB, 10.0, 30.0),
        ("promised", 20 * GIB, 40.0, 20.0),
    ]
    assert (bar.used_bytes, bar.reserved_bytes, bar.free_bytes) == (40 * GIB, 50 * GIB, 40 * GIB)


@pytest.mark.parametrize(
    ("reserved", "figures"),
    [
        ([], ["16 in use", "nothing reserved", "48 free", "of 64"]),
        ([reservation(4 * GIB, True)], ["16 in use, of which 4 reserved by instances", "48 free", "of 64"]),
        ([reservation(4 * GIB, False)], ["16 in use", "4 reserved, not in use yet", "44 free", "of 64"]),
        (
            [reservation(4 * GIB, True), reservation(8 * GIB, False)],
            ["16 in use, of which 4 reserved by instances", "8 reserved, not in use yet", "40 free", "of 64"],
        ),
        (
            [reservation(20 * GIB, True)],
            ["16 in use, less than the 20 reserved by instances", "48 free", "of 64"],
        ),
    ],
)
def test_the_figures_of_a_pool_count_nothing_twice(
    reserved: list[ReservationFacts], figures: list[str]
) -> None:
    text = render("_nodes.html", {"board": board(nodes=node_views([seen()], reserved))})
    (shown,) = re.findall(r'<p class="figures">(.*?)</p>', text, re.DOTALL)
    lines = [re.sub(r"<[^>]*>", "", line) for line in re.findall(r"<span>(.*?)</span>", shown, re.DOTALL)]
    in_gib = [re.sub(r"\d+", lambda found: gib(int(found[0]) * GIB), figure) for figure in figures]
    assert [" ".join(line.split()) for line in lines] == in_gib


@pytest.mark.parametrize("cap_bytes", [None, GIB])
def test_a_memory_cap_is_shown(cap_bytes: int | None) -> None:
    text = render("_nodes.html", {"board": board(nodes=node_views([seen(memory_cap_bytes=cap_bytes)], []))})
    assert (f"Memory for models capped at {gib(GIB)}" in text) is (cap_bytes is not None)
    assert ("capped" in text) is (cap_bytes is not None)


@given(
    total=st.integers(1, 1 << 45),
    used=st.integers(0, 1 << 46),
    reserved=st.lists(st.tuples(st.integers(0, 1 << 45), st.booleans()), max_size=6),
)
def test_a_bar_never_overflows(total: int, used: int, reserved: list[tuple[int, bool]]) -> None:
    bar = memory_bar("RAM", "", total, used, [reservation(size, seen) for size, seen in reserved], None)
    assert bar.used_bytes is not None
    assert bar.free_bytes is not None
    drawn = sum(segment.size_bytes for segment in bar.segments)
    assert drawn + bar.free_bytes == total
    assert bar.free_bytes >= 0
    assert all(segment.size_bytes > 0 for segment in bar.segments)
    assert all(s.start >= 0 and s.start + s.width <= 100.03 for s in bar.segments)  # each is rounded to 0.01


@pytest.mark.parametrize(("total", "used"), [(None, None), (None, 5), (5, None)])
def test_an_unmeasured_pool_says_so_and_why(total: int | None, used: int | None) -> None:
    bar = memory_bar("GPU 0", "card", total, used, [reservation(GIB, False)], "NVML failed")
    assert (bar.used_bytes, bar.free_bytes, bar.segments) == (None, None, ())
    assert (bar.reason, bar.reserved_bytes) == ("NVML failed", GIB)


def test_an_unmeasured_gpu_is_shown_as_not_measured() -> None:
    device = DeviceReport(index=0, name="H200", vendor="nvidia", compute="cuda", memory_kind="discrete")
    (node,) = node_views([seen(devices=(device,), missing={"devices.0.memory": "Not Supported"})], [])
    text = render("_nodes.html", {"board": board(nodes=(node,))})
    assert "GPU 0" in text
    assert "not measured: Not Supported" in text
    assert "0.0 MiB" not in text


def test_each_gpu_has_its_own_bar_with_its_own_reservations() -> None:
    devices = tuple(
        DeviceReport(
            index=index, name="H200", vendor="nvidia", compute="cuda", memory_kind="discrete",
            total_bytes=140 * GIB, used_bytes=index * GIB,
        )
        for index in range(2)
    )  # fmt: skip
    own = [reservation(7 * GIB, False, 1), reservation(3 * GIB, False, None)]
    (node,) = node_views([seen(devices=devices)], own)
    assert [(bar.label, bar.used_bytes, bar.reserved_bytes) for bar in node.bars] == [
        ("RAM", 16 * GIB, 3 * GIB),
        ("GPU 0", 0, 0),
        ("GPU 1", GIB, 7 * GIB),
    ]


def test_small_changes_are_no_news() -> None:
    before = node_views([seen(ram_available_bytes=48 * GIB, cpu_percent=12.4)], [])
    after = node_views(
        [seen(silent_s=4.0, ram_available_bytes=48 * GIB - STEP_BYTES // 2, cpu_percent=11.0)], []
    )
    assert before == after


@pytest.mark.parametrize(
    ("node", "level", "messages"),
    [
        (seen(), "ok", []),
        (seen(silent_s=12), "warn", ["not heard of for more than 10 s"]),
        (seen(silent_s=16), "error", ["not heard of for more than 15 s"]),
        (seen(disk_free_bytes=GIB), "error", ["1.0 GiB of disk left"]),
        (seen(disk_free_bytes=9 * GIB), "warn", ["9.0 GiB of disk left"]),
        (seen(disk_free_bytes=None), "ok", []),
        (seen(engines=()), "warn", ["no engine found"]),
        (seen(silent_s=16, engines=()), "error", ["not heard of for more than 15 s", "no engine found"]),
    ],
)
def test_health(node: SeenNode, level: str, messages: list[str]) -> None:
    (view,) = node_views([node], [])
    assert view.level == level
    assert [reason.message for reason in view.reasons] == messages


def board(**changes: object) -> Board:
    values: dict[str, object] = {
        "nodes": (), "instances": (), "operations": (), "chat_models": (), "ledger": (),
    }  # fmt: skip
    return Board(**(values | changes))  # type: ignore[arg-type]


def test_only_what_changed_is_sent() -> None:
    old = board()
    assert changes(old, board(), ADMIN) == []
    (only,) = changes(old, board(chat_models=("m<1>",)), ADMIN)
    assert only == "event: chat-models\ndata: <option>m&lt;1&gt;</option>\n\n"
    (trigger,) = changes(old, board(ledger=(reservation(1, True),)), ADMIN)
    assert trigger == "event: placement\ndata:\n\n"
    assert len(changes(None, board(), ADMIN)) == 4


@given(st.text())
def test_an_event_holds_any_text(text: str) -> None:
    lines = message("nodes", text).split("\n")
    assert lines[0] == "event: nodes"
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data:") for line in lines[1:-2])
    assert not any("\r" in line for line in lines)


def test_times_and_tokens() -> None:
    for passed_s, text in (
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (7199, "1 h"),
        (90_000, "1 d"),
        (-5, "0 s"),
    ):
        assert ago(NOW - timedelta(seconds=passed_s), NOW) == text
    assert (tokens(32768), tokens(None)) == ("32,768", "not known")


@pytest.mark.parametrize(("text", "wish"), [("", None), (" ", None), ("256", 256), ("1,048,576", 1_048_576)])
def test_a_wish_is_read(text: str, wish: int | None) -> None:
    assert parse_wish(text) == wish


@pytest.mark.parametrize("text", ["255", "1048577", "many", "-300", "3e4", "²56"])
def test_a_wish_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="256 to 1,048,576"):
        parse_wish(text)


def test_a_launch_asks_for_exactly_its_row() -> None:
    request = launch_request(["b", "a"], "Tensor", "MlxJaccl", "mlx-metal", 4096)
    assert request.required_node_ids == {"a", "b"}
    assert (request.min_nodes, request.max_nodes) == (2, 2)
    assert (request.sharding, request.meta) == (Sharding.TENSOR, InstanceMeta.JACCL)
    assert (request.backend, request.context_tokens) == ("mlx-metal", 4096)


@pytest.mark.parametrize(
    ("part", "label", "text"),
    [
        (
            ScorePart("fits_without_eviction", 1.0, "memory is free now"),
            "nothing to stop first",
            "memory is free now",
        ),
        (ScorePart("backend_preference", 3), "engine preference", "3"),
        (ScorePart("width", -1), "nodes taken", "1 node"),
        (ScorePart("width", -3), "nodes taken", "3 nodes"),
        (
            ScorePart("expected_passes_per_s", None, "bandwidth not known"),
            "speed expected",
            "bandwidth not known",
        ),
        (
            ScorePart("expected_passes_per_s", 12.5, "bound by links"),
            "speed expected",
            "12.5 passes over the weights a second · bound by links",
        ),
        (ScorePart("files_present", -0.0), "files there already", "0 %"),
        (ScorePart("files_present", 0.5), "files there already", "50 %"),
        (ScorePart("load", -0.0), "load", "nothing runs there"),
        (ScorePart("load", -1.0), "load", "1 running instance or request"),
        (ScorePart("load", -2.0), "load", "2 running instances and requests"),
        (ScorePart("free_memory_bytes", 3 * GIB), "memory left over", gib(3 * GIB)),
        (ScorePart("node_id", None, "node_a, node_b"), "node id", "node_a, node_b"),
        (ScorePart("some_new_part", -0.0), "some new part", "0"),
    ],
)
def test_a_score_is_told_in_words(part: ScorePart, label: str, text: str) -> None:
    assert score_lines([part]) == (ScoreLine(label, text),)


def test_equal_refusals_are_shown_once() -> None:
    from wharfinger.catalog.card import ByteSize, ModelCard
    from wharfinger.placement.types import PreviewRow
    from wharfinger.web.plans import preview_of

    card = ModelCard(model_id="m", storage_size=ByteSize(in_bytes=1), n_layers=2, hidden_size=8)
    same, other = (
        Refusal(code, "no_valid_placement", f"no: {code}") for code in ("memory_short", "no_nodes")
    )
    rows = [
        PreviewRow(Sharding.PIPELINE, InstanceMeta.RING, None, same),
        PreviewRow(Sharding.TENSOR, InstanceMeta.RING, None, same),
        PreviewRow(Sharding.PIPELINE, InstanceMeta.RPC, None, other),
    ]
    found = preview_of(card, rows, None, {})
    assert [(r.shapes, r.refusal.code) for r in found.refused] == [
        (("one node", "Tensor · MlxRing"), "memory_short"),
        (("Pipeline · LlamaRpc",), "no_nodes"),
    ]
    assert found.options == ()
    assert found.summary == "2 layers · window not known"

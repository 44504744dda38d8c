"""Expected speed: what is read per token, and bandwidths that are no figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import GIB, MIB, ask, card, fleet, mac
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.backends import preferring
from wharfinger.placement.planner import plan
from wharfinger.placement.types import NodeFacts

BANDWIDTH = 400e9


def timed(name: str, bandwidth: float | None) -> NodeFacts:
    """A 64 GiB machine whose device reports the bandwidth and has a name nobody knows."""
    node = mac(name)
    return replace(node, devices=(replace(node.devices[0], name="?", bandwidth_bytes_per_s=bandwidth),))


def passes(model: ModelCard, bandwidth: float | None = BANDWIDTH) -> float | None:
    """Expected passes per second on one machine."""
    best = plan(fleet(timed("a", bandwidth)), model, ask()).best
    assert best is not None
    return next(part.value for part in best.score if part.name == "expected_passes_per_s")


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, None])
def test_a_bandwidth_that_is_not_positive_is_unknown(bandwidth: float | None) -> None:
    """Some drivers report 0; it once divided by zero. Unknown ranks after known."""
    assert passes(card(), bandwidth) is None
    result = plan(fleet(timed("a", bandwidth), timed("b", 1e9)), card(), ask())
    assert [chosen.node_ids for chosen in result.plans] == [("b",), ("a",)]


def test_the_output_head_is_read_for_every_token_and_the_input_table_is_not() -> None:
    """32 layers of 100 MiB and a head of 800 MiB; a tied head reads the embedding table."""
    untied = card(embedding_mib=800, output_mib=800)
    assert passes(untied) == pytest.approx(BANDWIDTH / ((3200 + 800) * MIB))
    assert passes(card(embedding_mib=800)) == pytest.approx(BANDWIDTH / (3200 * MIB))
    weights = card(embedding_mib=800).weights
    assert weights is not None
    tied = card(weights=weights.model_copy(update={"tied_output": True}))
    assert passes(tied) == pytest.approx(BANDWIDTH / (4000 * MIB))


def test_only_the_experts_used_are_read() -> None:
    """8 of 128 experts of width 768, hidden size 2048, 32 heads of 128 and 4 KV heads of 128."""
    model = card(
        layer_mib=640,
        n_layers=48,
        hidden_size=2048,
        kv_heads=4,
        feed_forward_size=768,
        n_experts=128,
        n_experts_used=8,
    )
    attention = 2 * 32 * 128 + 2 * 4 * 128
    share = (attention + 8 * 3 * 768) / (attention + 128 * 3 * 768)
    assert share == pytest.approx(0.0907, abs=1e-3)
    assert passes(model) == pytest.approx(BANDWIDTH / (48 * 640 * MIB * share))
    assert passes(model.model_copy(update={"n_experts": None})) == pytest.approx(BANDWIDTH / (30 * GIB))


@pytest.mark.parametrize(
    ("preferred", "order"),
    [
        (
            ("llama_server-cuda", "llama_cpp-cuda", "llama_server-cpu", "llama_cpp-cpu"),
            ("llama_cpp-cuda", "llama_cpp-cpu", "llama_cpp", "llama_server-cuda", "llama_server-cpu"),
        ),
        (("mlx", "llama_cpp"), ("llama_cpp", "mlx")),
        ((), ("llama_cpp",)),
    ],
)
def test_engines_that_are_preferred_come_before_the_cards_others(
    preferred: tuple[str, ...], order: tuple[str, ...]
) -> None:
    model = card()
    wishes = model.placement.model_copy(update={"backend_preference": preferred})
    made = preferring(model.model_copy(update={"placement": wishes}), ("llama_cpp",))
    assert made.placement.backend_preference == order
    assert made.placement.compatible_backends == model.placement.compatible_backends

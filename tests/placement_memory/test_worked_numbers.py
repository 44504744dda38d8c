"""The worked numbers of the system that inspired the contract, and of its peers, beside the right ones.

That system took every head as 128 elements, every layer as full attention, one fixed window of 8,192 tokens, and
1.30 (MLX) or 1.10 (GGUF) times the weights plus 256 MiB. Its figures are kept here as data; ours follow each model.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.model_shapes import SHAPES, latent, revised
from support.windows import largest_context
from wharfinger.catalog.card import ByteSize, ModelCard
from wharfinger.placement.memory import (
    ShardShape,
    footprint,
    kv_bytes_per_token,
    kv_cache_bytes,
    usable,
)
from wharfinger.placement.types import DeviceFacts, MemoryKind, NodeFacts, ServingSettings

GIB = 1 << 30
SETTINGS = ServingSettings()


@dataclass(frozen=True)
class Worked:
    """One row of the original's worked numbers, in GiB, with ours."""

    shape: str
    weights: float
    kv: float
    """The original's cache at 8,192 tokens."""
    need: float
    our_kv: float
    """The cache a full window of 8,192 tokens takes in MLX, recurrent state included."""
    was_right: bool
    """Whether the original's cache figure was right."""


WORKED = [
    Worked("llama-3.2-1b", 0.680, 0.500, 1.634, 0.250, False),  # heads of 64, not 128
    Worked("qwen3.5-9b", 5.541, 0.500, 7.954, 0.297, False),  # 8 of 32 layers attend, heads of 256
    Worked("nemotron-nano-9b-v2", 4.659, 0.0, 6.307, 0.259, False),  # unknown KV heads counted as no cache
    Worked("gpt-oss-20b", 11.200, 0.750, 15.560, 0.240, False),  # half the layers slide, heads of 64
    Worked("qwen3-30b-a3b", 16.403, 0.750, 22.324, 0.750, True),
    Worked("qwen3.5-35b-a3b", 19.713, 0.312, 22.247, 0.216, False),  # Ornith: 10 of 40 layers attend
    Worked("llama-3.3-70b", 37.860, 2.500, 51.968, 2.500, True),
    Worked("gpt-oss-120b", 65.800, 1.125, 86.915, 0.360, False),
    Worked("qwen3-235b-a22b", 132.000, 1.469, 173.319, 1.469, True),
    Worked(
        "deepseek-v3.1", 378.000, 30.500, 522.150, 0.536, False
    ),  # latent attention taken as 128 full heads
]


def _original_kv_gib(card: ModelCard, kv_heads: int | None) -> float:
    return 2 * card.n_layers * 8192 * (kv_heads or 0) * 128 * 2 / GIB


@pytest.mark.parametrize("row", WORKED, ids=lambda row: row.shape)
def test_worked_numbers(row: Worked) -> None:
    card = SHAPES[row.shape]
    listed_heads = {"nemotron-nano-9b-v2": None, "deepseek-v3.1": 128}.get(
        row.shape, card.num_key_value_heads
    )
    overhead = 1.10 if row.shape == "qwen3.5-35b-a3b" else 1.30
    # The original's arithmetic really gives its figures.
    assert _original_kv_gib(card, listed_heads) == pytest.approx(row.kv, abs=0.001)
    assert row.weights * overhead + row.kv + 0.25 == pytest.approx(row.need, abs=0.002)

    parts = {
        part.name: part.size_bytes
        for part in footprint(card, "mlx", ShardShape(0, card.n_layers), 8192, SETTINGS).parts
    }
    cache = parts["kv_cache"] + parts.get("recurrent_state", 0)
    assert cache / GIB == pytest.approx(row.our_kv, abs=0.001)
    assert (abs(row.our_kv - row.kv) < 0.001) is row.was_right


ONE_FORMULA = [
    # unsloth PR 4757: model, window, GB of the one formula, GB really; bytes a token and fixed bytes by our rule
    ("gemma-3-27b", 131_072, 81.38, 10.41),
    ("qwen3.5-27b", 262_144, 53.25, 16.00),
    ("deepseek-v3.1", 163_840, 2.08, 10.72),
    ("kimi-k2", 262_144, 6.67, 17.16),
    ("qwen3-0.6b", 40_960, 2.19, 4.38),
]


@pytest.mark.parametrize(("shape", "window", "one_formula", "real"), ONE_FORMULA)
def test_one_formula_errors(shape: str, window: int, one_formula: float, real: float) -> None:
    """GiB, although their source writes GB. MLX's cache is what the model needs, plus the step of its prompt."""
    card = SHAPES[shape]
    settings = ServingSettings(batch_tokens=256)
    found, flags = kv_cache_bytes(card, "mlx", ShardShape(0, card.n_layers), window, settings)
    assert flags == ()
    assert found / GIB == pytest.approx(real, rel=0.02)
    assert abs(one_formula / real - 1) > 0.45


def test_glm_5_counts_its_draft_layer() -> None:
    """The same source says 17.18 for GLM-5: 78 layers and the one layer of its built-in draft head."""
    card = SHAPES["glm-5"]
    with_draft = revised(card, n_layers=79, layers=(latent(),) * 79)
    found, _ = kv_cache_bytes(with_draft, "mlx", ShardShape(0, 79), 202_752, SETTINGS)
    assert found / GIB == pytest.approx(17.18, abs=0.01)


def test_gemma_3_27b_at_128k() -> None:
    """gpustack #2101: 139 GB shown for a q8 model at 128k, 32 GB really used at 85k."""
    card = revised(SHAPES["gemma-3-27b"], storage_size=ByteSize(in_bytes=28_700_000_000))
    need = footprint(card, "llama_server-cuda", ShardShape(0, 62), 85_000, SETTINGS)
    assert 30e9 < need.device_bytes < 40e9
    at_full = footprint(card, "llama_server-cuda", ShardShape(0, 62), 131_072, SETTINGS)
    assert at_full.device_bytes < 45e9


def test_hybrid_is_not_counted_as_64_attention_layers() -> None:
    """lmstudio #1862: 75 GB shown, 47 GB real; 16 GiB of cache and 0.6 GiB of states at four slots of 65,536."""
    card = SHAPES["qwen3.5-27b"]
    settings = ServingSettings(slots=4)
    need = footprint(card, "llama_cpp-metal", ShardShape(0, 64), 65_536, settings)
    parts = {part.name: part.size_bytes for part in need.parts}
    assert parts["kv_cache"] == 16 * GIB
    assert parts["recurrent_state"] / GIB == pytest.approx(0.6, abs=0.03)


def test_gqa_is_counted_by_kv_heads() -> None:
    """Xinference's formula took 32 query heads where 8 KV heads are kept: 2.0 against 1.0 GiB at 8,192 tokens."""
    found, _ = kv_cache_bytes(SHAPES["llama-3.1-8b"], "llama_cpp-cuda", ShardShape(0, 32), 8192, SETTINGS)
    assert found == 1 * GIB


def test_embedding_model_is_not_sized_like_a_chat_model() -> None:
    """gpustack #4583: no cache, and well under a gibibyte in all."""
    need = footprint(SHAPES["bge-small-en-v1.5"], "llama_cpp-cpu", ShardShape(0, 12), 512, SETTINGS)
    assert {part.name for part in need.parts} == {"weights", "compute_buffers", "engine_floor"}
    assert need.device_bytes < 0.4 * GIB


def test_model_that_leaves_no_room_for_its_window_is_seen_before_loading() -> None:
    """omlx #947: a 28 GB model on 32 GB loads and dies on the first long prompt."""
    card = revised(SHAPES["qwen3-32b"], storage_size=ByteSize(in_bytes=28 * 10**9))
    node = NodeFacts("mac", "mac", ram_total_bytes=32 * GIB, ram_available_bytes=30 * GIB)
    (pool,) = usable(node, "mlx", ())
    assert pool.usable_bytes == 24 * GIB
    assert largest_context(card, "mlx", ShardShape(0, 64), 24 * GIB, SETTINGS) == 0


@pytest.mark.parametrize(
    ("shape", "ram_gib", "original", "ours"),
    [
        # 1.3's window = (0.75 RAM - 1.30 weights - 256 MiB) / its bytes a token
        ("qwen3.5-9b", 16, 74_484, 150_000),
        ("qwen3.5-9b", 24, 172_788, 262_144),
        ("llama-3.3-70b", 64, 0, 22_000),
        ("llama-3.3-70b", 96, 73_831, 90_000),
        ("qwen3-30b-a3b", 36, 40_960, 40_960),
    ],
)
def test_context_limits(shape: str, ram_gib: int, original: int, ours: int) -> None:
    """Windows on one Apple machine, beside the original's.

    Its 1.30 over the weights stood for buffers that do not grow with the model; we name a floor, activations and
    5 % of kept buffers instead, so large models get more room, and hybrids are charged for the layers that attend.
    """
    card = SHAPES[shape]
    per_token = 2 * card.n_layers * (card.num_key_value_heads or 0) * 128 * 2
    budget = int(0.75 * ram_gib * GIB)
    formula = max(0, int((budget - 1.30 * card.storage_size.in_bytes - 256 * 2**20) // per_token))
    assert min(formula, card.context_length) == pytest.approx(original, rel=0.002, abs=1)
    found = largest_context(card, "mlx", ShardShape(0, card.n_layers), budget, SETTINGS)
    assert found is not None
    assert found == pytest.approx(ours, rel=0.15)


def test_unknown_kv_heads_are_never_free() -> None:
    """The original counted 0 bytes and no ceiling where KV heads are unknown; we take every attention head."""
    card = ModelCard(
        model_id="a/unknown",
        storage_size=ByteSize(in_bytes=4 * GIB),
        n_layers=36,
        hidden_size=2560,
        num_attention_heads=32,
    )
    assert kv_bytes_per_token(card, "mlx", SETTINGS) == 36 * 2 * 32 * 128 * 2
    need = footprint(card, "mlx", ShardShape(0, 36), 8192, SETTINGS)
    assert set(need.flags) == {
        "layer_weights_unknown",
        "kv_geometry_unknown",
        "kv_heads_unknown",
        "head_dim_unknown",
        "engine_floor_estimated",
    }
    nothing_known = revised(card, num_attention_heads=None)
    assert kv_bytes_per_token(nothing_known, "mlx", SETTINGS) == 36 * 2 * 20 * 128 * 2


def test_cuda_8_gib_card_holds_no_32b_model() -> None:
    """GPUStack: with the hub unreachable it claimed 2 GiB and put a 32B model on one small card."""
    device = DeviceFacts(0, "RTX 4080", "cuda", MemoryKind.DISCRETE, 16 * GIB, 0)
    node = NodeFacts("gpu", "gpu", devices=(device,))
    (pool,) = usable(node, "vllm-cuda", ())
    need = footprint(SHAPES["qwen3-32b"], "vllm-cuda", ShardShape(0, 64), 256, SETTINGS)
    assert pool.usable_bytes is not None
    assert need.device_bytes > pool.usable_bytes

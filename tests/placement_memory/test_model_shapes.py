"""Cache sizes of public models by each engine's rule, against figures worked out by hand from their configurations."""

from __future__ import annotations

import pytest

from support.model_shapes import SHAPES
from wharfinger.placement.memory import ShardShape, footprint, kv_bytes_per_token, kv_cache_bytes
from wharfinger.placement.types import ServingSettings

MIB = 1 << 20

BYTES_PER_TOKEN = {
    # name: (llama.cpp: full and latent layers grow, vLLM: every attention layer holds a token inside its window)
    "llama-3.2-1b": (32_768, 32_768),
    "llama-3.1-8b": (131_072, 131_072),
    "llama-3.3-70b": (327_680, 327_680),
    "llama-3.2-11b-vision": (131_072, 131_072),
    "llama-4-scout": (49_152, 196_608),
    "mistral-7b-v0.3": (131_072, 131_072),
    "mixtral-8x7b": (131_072, 131_072),
    "qwen2.5-7b": (57_344, 57_344),
    "qwen3-0.6b": (114_688, 114_688),
    "qwen3-32b": (262_144, 262_144),
    "qwen3-30b-a3b": (98_304, 98_304),
    "qwen3-235b-a22b": (192_512, 192_512),
    "qwen3-next-80b-a3b": (24_576, 24_576),
    "qwen3.5-9b": (32_768, 32_768),
    "qwen3.5-27b": (65_536, 65_536),
    "qwen3.5-35b-a3b": (20_480, 20_480),
    "gemma-2-9b": (172_032, 344_064),
    "gemma-3-27b": (81_920, 507_904),
    "deepseek-v2-lite": (31_104, 31_104),
    "deepseek-v3.1": (70_272, 70_272),
    "kimi-k2": (70_272, 70_272),
    "glm-5": (89_856, 89_856),
    "glm-4.5-air": (188_416, 188_416),
    "gpt-oss-20b": (24_576, 49_152),
    "gpt-oss-120b": (36_864, 73_728),
    "minimax-m2": (253_952, 253_952),
    "phi-4": (204_800, 204_800),
    "phi-3-mini-4k": (393_216, 393_216),
    "falcon-mamba-7b": (0, 0),
    "nemotron-nano-9b-v2": (16_384, 16_384),
    "granite-4.0-h-small": (16_384, 16_384),
    "lfm2-1.2b": (12_288, 12_288),
    "bge-small-en-v1.5": (0, 0),
    "all-minilm-l6-v2": (0, 0),
    "whisper-large-v3": (163_840, 163_840),
}

RECURRENT_BYTES_PER_SLOT = {
    # llama.cpp keeps both states in 32 bits.
    "qwen3-next-80b-a3b": 36 * 4 * (24_576 + 524_288),
    "qwen3.5-27b": 48 * 4 * (30_720 + 786_432),
    "falcon-mamba-7b": 64 * 4 * (24_576 + 131_072),
    "nemotron-nano-9b-v2": 27 * 4 * (36_864 + 1_310_720),
    "granite-4.0-h-small": 36 * 4 * (25_344 + 1_048_576),
    "lfm2-1.2b": 10 * 4 * 4_096,
}

LLAMA_CPP_TOTALS = [
    # name, window, slots, cache type, bytes of the token cache
    ("llama-3.1-8b", 8192, 1, "f16", 1024 * MIB),
    ("llama-3.1-8b", 8192, 4, "f16", 4096 * MIB),
    ("llama-3.1-8b", 8192, 1, "q8_0", 544 * MIB),
    ("llama-3.1-8b", 8192, 1, "q4_0", 288 * MIB),
    ("qwen2.5-7b", 32768, 1, "f16", 1792 * MIB),
    # Sliding layers: 1024 + 512 cells and 4096 + 512 cells, the full ones the window.
    ("gemma-3-27b", 32768, 1, "f16", 10 * 256 * MIB + 52 * 12 * MIB),
    ("gemma-2-9b", 8192, 1, "f16", 21 * 64 * MIB + 21 * 36 * MIB),
    ("gpt-oss-20b", 8192, 2, "f16", 2 * (12 * 16 * MIB + 12 * 768 * 2048)),
    ("deepseek-v3.1", 4096, 1, "f16", 61 * 4096 * 1152),
    # 8,000 tokens are padded to 8,192 cells.
    ("llama-3.1-8b", 8000, 1, "f16", 1024 * MIB),
]


def _whole(name: str) -> ShardShape:
    return ShardShape(0, SHAPES[name].n_layers)


def test_every_shape_has_a_hand_worked_figure() -> None:
    assert set(BYTES_PER_TOKEN) == set(SHAPES)
    assert len(SHAPES) >= 20


@pytest.mark.parametrize("name", SHAPES)
def test_bytes_per_token(name: str) -> None:
    llama_cpp, vllm = BYTES_PER_TOKEN[name]
    card, settings = SHAPES[name], ServingSettings()
    assert kv_bytes_per_token(card, "llama_cpp-cpu", settings) == llama_cpp
    assert kv_bytes_per_token(card, "llama_server-cuda", settings) == llama_cpp
    assert kv_bytes_per_token(card, "vllm-cuda", settings) == vllm
    assert kv_bytes_per_token(card, "mlx", settings) == llama_cpp


@pytest.mark.parametrize("name", RECURRENT_BYTES_PER_SLOT)
def test_recurrent_states_are_per_slot_and_do_not_grow_with_the_window(name: str) -> None:
    for slots, window in ((1, 4096), (4, 65_536)):
        parts = footprint(
            SHAPES[name], "llama_cpp-cpu", _whole(name), window, ServingSettings(slots=slots)
        ).parts
        found = {part.name: part.size_bytes for part in parts}["recurrent_state"]
        assert found == slots * RECURRENT_BYTES_PER_SLOT[name]


@pytest.mark.parametrize(("name", "window", "slots", "cache_type", "expected"), LLAMA_CPP_TOTALS)
def test_llama_cpp_totals(name: str, window: int, slots: int, cache_type: str, expected: int) -> None:
    settings = ServingSettings(slots=slots, cache_type_k=cache_type, cache_type_v=cache_type)
    assert kv_cache_bytes(SHAPES[name], "llama_cpp-cuda", _whole(name), window, settings) == (expected, ())


def test_cross_attention_has_a_fixed_size() -> None:
    """Llama 3.2 Vision: 8 layers keep 6,404 image tokens; Whisper's decoder keeps 1,500 audio frames per layer."""
    settings = ServingSettings()
    vision, _ = kv_cache_bytes(
        SHAPES["llama-3.2-11b-vision"], "llama_cpp-cpu", _whole("llama-3.2-11b-vision"), 8192, settings
    )
    assert vision == 4096 * (32 * 8192 + 8 * 6404)
    whisper, _ = kv_cache_bytes(SHAPES["whisper-large-v3"], "mlx", _whole("whisper-large-v3"), 448, settings)
    assert whisper == 32 * 5120 * (512 + 1536)  # both rounded up to MLX's step of 256


def test_tensor_shards_hold_their_heads_and_a_latent_whole() -> None:
    settings = ServingSettings()
    llama, _ = kv_cache_bytes(
        SHAPES["llama-3.3-70b"], "vllm-cuda", ShardShape(0, 80, tensor_width=8), 8192, settings
    )
    assert llama == 8192 * 327_680 // 8
    # 4 KV heads on 8 ranks: every rank still holds one.
    qwen, _ = kv_cache_bytes(
        SHAPES["qwen3-30b-a3b"], "vllm-cuda", ShardShape(0, 48, tensor_width=8), 8192, settings
    )
    assert qwen == 8192 * 98_304 // 4
    deepseek, _ = kv_cache_bytes(
        SHAPES["deepseek-v3.1"], "vllm-cuda", ShardShape(0, 61, tensor_width=8), 8192, settings
    )
    assert deepseek == 8192 * 70_272


def test_pipeline_shards_add_up_to_the_whole() -> None:
    settings = ServingSettings()
    for name in ("gemma-3-27b", "qwen3.5-27b", "nemotron-nano-9b-v2", "deepseek-v3.1"):
        card = SHAPES[name]
        cut = card.n_layers // 3
        whole, _ = kv_cache_bytes(card, "llama_server-cuda", _whole(name), 16_384, settings)
        parts = [
            kv_cache_bytes(card, "llama_server-cuda", ShardShape(start, end), 16_384, settings)[0]
            for start, end in ((0, cut), (cut, card.n_layers))
        ]
        assert sum(parts) == whole

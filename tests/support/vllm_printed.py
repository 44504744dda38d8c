"""What a running vLLM 0.32 (CPU, 1 GiB of cache) printed of its cache for tiny models, row by row."""

from __future__ import annotations

from support.model_shapes import full, latent, sliding
from wharfinger.catalog.card import LayerGeometry
from wharfinger.placement.memory.rules import LayerCounts
from wharfinger.placement.memory.vllm import VllmRule, page_pool
from wharfinger.placement.types import ServingSettings

PRINTED: list[tuple[str, list[tuple[LayerGeometry, int]], int, int, int, float]] = [
    # shape, layers as (geometry, number), block size, window, tokens printed, concurrency printed
    ("llama", [(full(2, 32), 2)], 128, 1024, 2_097_152, 2048.00),
    ("qwen3", [(full(2, 64), 3)], 128, 4096, 699_008, 170.66),
    ("qwen3-moe", [(full(2, 64), 3)], 128, 4096, 699_008, 170.66),
    ("gemma-3", [(full(1, 64), 2), (sliding(1, 64, 512), 10)], 128, 4096, 489_845, 119.59),
    ("gpt-oss", [(full(2, 64), 2), (sliding(2, 64, 128), 2)], 128, 4096, 671_088, 163.84),
    # The latent cache ran with blocks of 16: 1,398,096 is no multiple of 128, and 128 would give 1,398,016.
    ("deepseek-v2", [(latent(64, 32), 4)], 16, 4096, 1_398_096, 341.33),
]


def blocks_per_sequence(layers: LayerCounts, context_tokens: int, settings: ServingSettings) -> int:
    """Most blocks one sequence of a full window holds at once, by what the planner charges for it."""
    held = VllmRule().cache(layers, 1, context_tokens, settings)
    return (held.kv + held.recurrent) // page_pool(layers, 1, settings).block_bytes


def concurrency(
    layers: LayerCounts, budget_bytes: int, context_tokens: int, settings: ServingSettings
) -> float:
    """Full windows that fit at once: vLLM prints this as "Maximum concurrency"."""
    blocks = budget_bytes // page_pool(layers, 1, settings).block_bytes
    return blocks / blocks_per_sequence(layers, context_tokens, settings)


def printed_tokens(
    layers: LayerCounts, budget_bytes: int, context_tokens: int, settings: ServingSettings
) -> int:
    """vLLM's "KV cache size" line: full windows that fit, times the window."""
    blocks = budget_bytes // page_pool(layers, 1, settings).block_bytes
    return blocks * context_tokens // blocks_per_sequence(layers, context_tokens, settings)

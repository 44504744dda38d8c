"""vLLM's paged cache: what a running vLLM 0.32 (CPU, 1 GiB of cache) printed, row by row to the block."""

from __future__ import annotations

import pytest

from support.model_shapes import SHAPES, delta_net, full, sliding
from support.vllm_printed import PRINTED, blocks_per_sequence, concurrency, printed_tokens
from support.windows import largest_context
from wharfinger.catalog.card import LayerGeometry
from wharfinger.placement.memory import ShardShape, kv_cache_bytes
from wharfinger.placement.memory.profile import profile_of
from wharfinger.placement.memory.vllm import page_pool
from wharfinger.placement.types import ServingSettings

GIB = 1 << 30


@pytest.mark.parametrize(("name", "layers", "block", "window", "tokens", "windows"), PRINTED)
def test_printed_tokens_and_concurrency(
    name: str,
    layers: list[tuple[LayerGeometry, int]],
    block: int,
    window: int,
    tokens: int,
    windows: float,
) -> None:
    settings = ServingSettings(block_tokens=block)
    assert printed_tokens(layers, GIB, window, settings) == tokens
    assert round(concurrency(layers, GIB, window, settings), 2) == windows


def test_gemma_3_sliding_layer_takes_21_blocks() -> None:
    """ceil((512 - 1 + 2048) / 128) + 1 = 21 blocks of 128 = 2,688 tokens: neither the window nor the length."""
    layers, settings = [(full(1, 64), 2), (sliding(1, 64, 512), 10)], ServingSettings(block_tokens=128)
    pool = page_pool(layers, 1, settings)
    assert (pool.group_layers, [number for _, number in pool.groups]) == (2, [1, 5])
    assert blocks_per_sequence(layers, 4096, settings) == 32 + 5 * 21


def test_gpt_oss_120b_prints_78384_tokens_in_5_38_gib() -> None:
    """hf-mem #60: 73,728 bytes a token over all 36 layers, not the 36,864 of the full ones alone.

    That vLLM printed tokens as blocks divided by groups; two groups of 18 layers share the pool.
    """
    card, settings = SHAPES["gpt-oss-120b"], ServingSettings()
    pool = page_pool(profile_of(card).counts(0, 36), 1, settings)
    assert (pool.group_layers, [number for _, number in pool.groups]) == (18, [1, 1])
    budget = 78_384 * 73_728
    assert round(budget / GIB, 2) == 5.38
    assert budget // pool.block_bytes // len(pool.groups) * settings.block_tokens == 78_384
    assert (budget - 1) // pool.block_bytes // len(pool.groups) * settings.block_tokens < 78_384


def test_gpt_oss_20b_short_windows_cost_full_pages() -> None:
    """hf-mem PR 70: 8k x 32 is 12.00 GiB when sliding layers keep the whole window, 6.09 when they keep 128.

    vLLM 0.32's hybrid manager is between the two: a sliding layer of one request holds at most
    ceil((127 + 2048) / 16) + 1 = 137 blocks of its 512.
    """
    card, settings = SHAPES["gpt-oss-20b"], ServingSettings(slots=32)
    found, _ = kv_cache_bytes(card, "vllm-cuda", ShardShape(0, 24), 8192, settings)
    block = 16 * 2 * 8 * 64 * 2 * 12
    assert found == 32 * (512 + 137) * block
    assert 32 * (512 + 512) * block == 12 * GIB


def test_hybrid_stretches_the_block_to_one_state() -> None:
    """A page must hold a whole recurrent state, so attention blocks grow (Qwen3-Next: 2 KV heads of 256)."""
    layers = [(full(2, 256), 12), (delta_net(16, 32), 36)]
    pool = page_pool(layers, 1, ServingSettings())
    state_bytes = 2 * 24_576 + 4 * 524_288
    assert pool.block_tokens == 1056  # ceil(2,146,304 / 2,048) = 1,048 rounded up to 16
    assert pool.page_bytes == 1056 * 2048 >= state_bytes
    assert (pool.group_layers, [number for _, number in pool.groups]) == (12, [1, 3])
    assert blocks_per_sequence(layers, 32_768, ServingSettings()) == 32 + 3


def test_window_vllm_accepts_is_found_exactly() -> None:
    """The largest window fits and one token more does not, by pages and not by bytes per token."""
    card, settings = SHAPES["gpt-oss-120b"], ServingSettings()
    shape = ShardShape(0, 36)
    budget = 80 * GIB
    window = largest_context(card, "vllm-cuda", shape, budget, settings)
    assert window is not None
    assert window == 131_072
    tight = 67 * GIB + 2 * GIB
    window = largest_context(card, "vllm-cuda", shape, tight, settings)
    assert window is not None
    assert window % settings.block_tokens == 0
    cost, _ = kv_cache_bytes(card, "vllm-cuda", shape, window, settings)
    more, _ = kv_cache_bytes(card, "vllm-cuda", shape, window + 1, settings)
    assert more - cost == 18 * 16 * 2048

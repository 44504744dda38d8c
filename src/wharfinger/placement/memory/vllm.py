"""vLLM: a pool of equal pages, handed out in blocks of ``block_tokens`` tokens.

Layers that store alike form a group; groups are cut to one size (the smallest kind's number of layers, or the
largest's when they are close) so that one page serves any of them. A sequence takes pages for its whole window in
full and latent layers, for ``window - 1 + batch`` tokens and one page more in sliding layers, and one page for a
recurrent state, to which the block size is then stretched. Seen in vLLM 0.32; see ``tests/placement_memory``.

The figure holds when the engine is told the pool's size (``--kv-cache-memory-bytes``); left alone it takes what is
left of ``--gpu-memory-utilization`` (0.90) of the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.placement.memory.elements import MIB, ceil_div, round_up
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import MemoryProfile
from wharfinger.placement.memory.rules import (
    CacheBytes,
    EngineRule,
    LayerCounts,
    Placed,
    activation_bytes,
    attention_row_bytes,
    state_elements,
    tokens_bytes,
)
from wharfinger.placement.types import ServingSettings

WINDOW_CAP_TOKENS = 32_768
"""Largest window the instances contract stamps on an instance served by vLLM alone."""

_CLOSE_KINDS = 1.25
"""When the most frequent kind has fewer layers than this times the rarest, one group per kind wastes less."""
_BLOCK_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class PagePool:
    """How a model's cache is paged."""

    block_tokens: int
    page_bytes: int
    """One block of one layer."""
    group_layers: int
    """Layers that share a page table; a page is really this many pages, one per layer."""
    groups: tuple[tuple[LayerGeometry, int], ...]
    """Each kind of layer with its number of groups."""

    @property
    def block_bytes(self) -> int:
        """What the pool gives away at once."""
        return self.page_bytes * self.group_layers


def page_pool(layers: LayerCounts, tensor_width: int, settings: ServingSettings) -> PagePool:
    """The pages of a shard.

    Layers of one page size and kind belong together. The page is the largest any kind needs; smaller ones are
    padded to it.
    """
    if not layers:
        return PagePool(settings.block_tokens, 0, 0, ())
    rows = [attention_row_bytes(layer, tensor_width, settings) for layer, _ in layers if _is_attention(layer)]
    states = [_state_bytes(layer, tensor_width) for layer, _ in layers if not _is_attention(layer)]
    block_tokens = settings.block_tokens
    if states and rows:
        # The attention block grows until its page holds a whole state.
        needed_tokens = ceil_div(max(states), max(rows))
        block_tokens = max(block_tokens, round_up(needed_tokens, _BLOCK_ALIGNMENT))
    page_bytes = max([row * block_tokens for row in rows] + states)
    numbers = [number for _, number in layers]
    group_layers = max(numbers) if max(numbers) < min(numbers) * _CLOSE_KINDS else min(numbers)
    groups = tuple((layer, ceil_div(number, group_layers)) for layer, number in layers)
    return PagePool(block_tokens, page_bytes, group_layers, groups)


def _is_attention(layer: LayerGeometry) -> bool:
    return layer.kind is not LayerKind.RECURRENT


def _state_bytes(layer: LayerGeometry, tensor_width: int) -> int:
    # The convolution is kept in the model's 16-bit type, the recurrent state in 32 bits (the larger of two choices).
    conv, recurrent = state_elements(layer, tensor_width)
    return 2 * conv + 4 * recurrent


def _group_blocks(layer: LayerGeometry, block_tokens: int, context_tokens: int, batch_tokens: int) -> int:
    match layer.kind:
        case LayerKind.RECURRENT:
            return 1
        case LayerKind.SLIDING:
            held = min((layer.window_tokens or 0) - 1 + batch_tokens, context_tokens)
            return ceil_div(held, block_tokens) + 1
        case LayerKind.CROSS:
            return ceil_div(layer.cross_tokens or 0, block_tokens)
        case _:
            return ceil_div(context_tokens, block_tokens)


class VllmRule(EngineRule):
    """See the module's text."""

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Pages of ``slots`` full windows; the pages of recurrent states are named apart."""
        pool = page_pool(layers, tensor_width, settings)
        kv_blocks = state_blocks = 0
        for layer, number in pool.groups:
            blocks = number * _group_blocks(layer, pool.block_tokens, context_tokens, settings.batch_tokens)
            if layer.kind is LayerKind.RECURRENT:
                state_blocks += blocks
            else:
                kv_blocks += blocks
        return CacheBytes(
            kv_blocks * settings.slots * pool.block_bytes, state_blocks * settings.slots * pool.block_bytes
        )

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """Every attention layer, sliding ones too: while a token is inside its window it has a place in each."""
        return tokens_bytes(layers, settings, (LayerKind.FULL, LayerKind.SLIDING, LayerKind.LATENT))

    def compute(
        self,
        profile: MemoryProfile,
        shape: ShardShape,
        context_tokens: int,
        settings: ServingSettings,
        accelerated: bool,
    ) -> Placed:
        """16-bit activations of one batch, and the sampler's 32-bit logits with a sorted copy of each row."""
        logits = settings.slots * profile.vocab_size * 4 * 4 if shape.last else 0
        return Placed(activation_bytes(profile, settings.batch_tokens, 2) + logits)

    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """CUDA context, libraries and captured graphs on a GPU; two Python processes with torch on the host."""
        return Placed(1536 * MIB, 3072 * MIB) if accelerated else Placed(3072 * MIB)

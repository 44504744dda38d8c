"""llama.cpp, in process (``llama_cpp``) or as its server (``llama_server``), on CPU, GPU or over RPC.

The window is per slot and slots do not share cells: the engine is started with ``context_tokens * slots`` in all.
"""

from __future__ import annotations

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.placement.memory.elements import MIB, ceil_div, round_up
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import MemoryProfile
from wharfinger.placement.memory.rules import (
    CacheBytes,
    LayerCounts,
    Placed,
    attention_row_bytes,
    state_elements,
)
from wharfinger.placement.types import ServingSettings

CELL_PAD = 256
"""Cells of every cache are a multiple of this."""


def cells(layer: LayerGeometry, context_tokens: int, settings: ServingSettings) -> int:
    """Cells of one slot in one attention layer.

    Full and latent layers: the window, padded. Sliding layers: the sliding window plus one micro-batch, padded, and
    never more than the full cache.
    """
    full = round_up(max(1, context_tokens), CELL_PAD)
    if layer.kind is not LayerKind.SLIDING:
        return full
    return round_up(min(full, (layer.window_tokens or 0) + settings.micro_batch_tokens), CELL_PAD)


class LlamaCppRule:
    """See the module's text."""

    reserves_context = True
    window_step = CELL_PAD
    flags: tuple[str, ...] = ()

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Recurrent states are 32-bit, one per slot, whatever the cache type."""
        kv = recurrent = 0
        for layer, number in layers:
            match layer.kind:
                case LayerKind.NONE | LayerKind.CROSS:
                    # An encoder's output is recomputed from the batch, not cached.
                    continue
                case LayerKind.RECURRENT:
                    recurrent += number * 4 * sum(state_elements(layer, tensor_width))
                case _:
                    row = attention_row_bytes(layer, tensor_width, settings)
                    kv += number * row * cells(layer, context_tokens, settings)
        return CacheBytes(kv * settings.slots, recurrent * settings.slots)

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """Full and latent layers; sliding ones have a fixed number of cells."""
        growing = (LayerKind.FULL, LayerKind.LATENT)
        return sum(
            number * attention_row_bytes(layer, 1, settings)
            for layer, number in layers
            if layer.kind in growing
        )

    def weights(self, profile: MemoryProfile, shape: ShardShape, accelerated: bool) -> Placed:
        """On a GPU the token embedding stays in host memory, so a tied head is a second copy on the device."""
        device = profile.layer_bytes(shape.start_layer, shape.end_layer) + profile.other_bytes
        host = 0
        if shape.last:
            device += profile.output_bytes
        if accelerated:
            host += profile.embedding_bytes if shape.first else 0
            device += profile.embedding_bytes if shape.last and profile.tied_output else 0
        elif shape.first or (shape.last and profile.tied_output):
            device += profile.embedding_bytes
        return Placed(ceil_div(device, shape.tensor_width), host)

    def compute(
        self, profile: MemoryProfile, shape: ShardShape, context_tokens: int, settings: ServingSettings
    ) -> Placed:
        """Scratch of one micro-batch."""
        tokens = settings.micro_batch_tokens
        full = round_up(max(1, context_tokens), CELL_PAD)
        mask = 2 * full * tokens
        return Placed(mask + 4 * tokens * (4 * profile.hidden_size + 2 * profile.feed_forward_size))

    def floor(self, accelerated: bool) -> Placed:
        """The process without a model."""
        return Placed(256 * MIB, 512 * MIB) if accelerated else Placed(128 * MIB)

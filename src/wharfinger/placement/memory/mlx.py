"""MLX on Apple unified memory: caches grow in steps as tokens arrive; nothing is reserved at load."""

from __future__ import annotations

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
    cache_bytes,
    tokens_bytes,
)
from wharfinger.placement.types import ServingSettings

_STEP_TOKENS = 256
"""Caches grow by this many tokens at a time."""
_BUFFER_CACHE_PERCENT = 5
"""Freed buffers the allocator keeps for the next use, as a share of the weights."""


class MlxRule(EngineRule):
    """Footprint at a full window, so that a plan that fits still fits when the window has filled."""

    reserves_context = False

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Sliding layers rotate: during a prompt they hold the window and the step being added."""

        def held_tokens(layer: LayerGeometry) -> int:
            match layer.kind:
                case LayerKind.CROSS:
                    tokens = layer.cross_tokens or 0
                case LayerKind.SLIDING:
                    tokens = min(context_tokens, (layer.window_tokens or 0) + settings.batch_tokens)
                case _:
                    tokens = context_tokens
            return round_up(tokens, _STEP_TOKENS)

        return cache_bytes(layers, tensor_width, settings, held_tokens, conv_element_bytes=2)

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """Full and latent layers; sliding ones stop growing."""
        return tokens_bytes(layers, settings, (LayerKind.FULL, LayerKind.LATENT))

    def weights(self, profile: MemoryProfile, shape: ShardShape, accelerated: bool) -> Placed:
        """Layers are split over tensor ranks; embedding and head are whole on each rank that needs them."""
        layers = ceil_div(profile.layer_bytes(shape.start_layer, shape.end_layer), shape.tensor_width)
        total = layers + profile.other_bytes
        if shape.first or (shape.last and profile.tied_output):
            total += profile.embedding_bytes
        if shape.last:
            total += profile.output_bytes
        return Placed(total)

    def compute(
        self,
        profile: MemoryProfile,
        shape: ShardShape,
        context_tokens: int,
        settings: ServingSettings,
        accelerated: bool,
    ) -> Placed:
        """16-bit activations of one prompt step, and the allocator's kept buffers."""
        kept = self.weights(profile, shape, accelerated=True).device * _BUFFER_CACHE_PERCENT // 100
        logits = settings.slots * profile.vocab_size * 4 if shape.last else 0
        return Placed(activation_bytes(profile, settings.batch_tokens, 2) + logits + kept)

    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """Python, MLX and Metal's own allocations."""
        return Placed(1024 * MIB)

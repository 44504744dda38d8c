"""What every engine's memory rule answers, and the rule for engines whose allocation we do not know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.placement.memory.elements import MIB, ceil_div, row_bytes
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import MemoryProfile
from wharfinger.placement.types import ServingSettings

LayerCounts = Sequence[tuple[LayerGeometry, int]]
"""Geometries of a shard, each with the number of layers that have it."""


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """What a shard remembers: tokens (``kv``) and states of fixed size per sequence (``recurrent``)."""

    kv: int
    recurrent: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Bytes on the device that runs the shard, and bytes on the host beside it."""

    device: int
    host: int = 0


class EngineRule(ABC):
    """How one engine allocates. All methods are pure; sizes are bytes of one shard."""

    reserves_context = True
    """Whether the whole window is allocated when the model is loaded."""
    flags: tuple[str, ...] = ()
    """Set when the rule itself is a guess."""

    @abstractmethod
    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Cache of ``settings.slots`` sequences with a window of ``context_tokens`` each."""

    @abstractmethod
    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """What one more token costs one sequence."""

    def weights(self, profile: MemoryProfile, shape: ShardShape, accelerated: bool) -> Placed:
        """Weights of the shard. Unless an engine differs: a tied table once, every matrix split over tensor ranks."""
        total = profile.layer_bytes(shape.start_layer, shape.end_layer) + profile.other_bytes
        if shape.first or (shape.last and profile.tied_output):
            total += profile.embedding_bytes
        if shape.last:
            total += profile.output_bytes
        return Placed(ceil_div(total, shape.tensor_width))

    @abstractmethod
    def compute(
        self,
        profile: MemoryProfile,
        shape: ShardShape,
        context_tokens: int,
        settings: ServingSettings,
        accelerated: bool,
    ) -> Placed:
        """Scratch buffers of one forward pass."""

    def snapshots(self, layers: LayerCounts, context_tokens: int, settings: ServingSettings) -> int:
        """Copies of fixed-size states the engine keeps in host memory to go back to; most keep none."""
        return 0

    @abstractmethod
    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """What the engine's process takes besides the model's tensors."""


def attention_row_bytes(layer: LayerGeometry, tensor_width: int, settings: ServingSettings) -> int:
    """Bytes one token takes in one attention layer.

    Keys and values of the heads this rank holds (at least one head: a head is never cut), each padded to whole
    blocks of the cache type. A latent layer stores the latent and the rotary part once, on every tensor rank.
    """
    if layer.kind is LayerKind.LATENT:
        return row_bytes((layer.latent_dim or 0) + (layer.rope_dim or 0), settings.cache_type_k)
    heads = ceil_div(layer.kv_heads or 0, tensor_width)
    key = row_bytes(heads * (layer.key_dim or 0), settings.cache_type_k)
    return key + row_bytes(heads * (layer.value_dim or 0), settings.cache_type_v)


def tokens_bytes(layers: LayerCounts, settings: ServingSettings, kinds: Container[LayerKind]) -> int:
    """Bytes one token takes in all layers of some kinds."""
    return sum(
        number * attention_row_bytes(layer, 1, settings) for layer, number in layers if layer.kind in kinds
    )


def state_elements(layer: LayerGeometry, tensor_width: int) -> tuple[int, int]:
    """Elements of a recurrent layer's (convolution, recurrent) state on one tensor rank."""
    return (
        ceil_div(layer.conv_state_elements or 0, tensor_width),
        ceil_div(layer.recurrent_state_elements or 0, tensor_width),
    )


def cache_bytes(
    layers: LayerCounts,
    tensor_width: int,
    settings: ServingSettings,
    held_tokens: Callable[[LayerGeometry], int],
    *,
    conv_element_bytes: int = 4,
) -> CacheBytes:
    """The cache of an engine that gives every layer its own buffer; recurrent states are 32-bit.

    Args:
        held_tokens: tokens of one sequence that an attention layer keeps.
        conv_element_bytes: width of a convolution's state.
    """
    kv = recurrent = 0
    for layer, number in layers:
        if layer.kind is LayerKind.RECURRENT:
            conv, state = state_elements(layer, tensor_width)
            recurrent += number * (conv_element_bytes * conv + 4 * state)
        else:
            kv += number * attention_row_bytes(layer, tensor_width, settings) * held_tokens(layer)
    return CacheBytes(kv * settings.slots, recurrent * settings.slots)


def activation_bytes(profile: MemoryProfile, tokens: int, element_bytes: int) -> int:
    """Largest set of live activations for a batch: residual stream, attention inputs, feed-forward inputs.

    Two copies of the hidden state, queries with keys and values, and gate with up projection of the experts used.
    """
    feed_forward = profile.feed_forward_size * profile.experts_used
    width = 2 * profile.hidden_size + 3 * profile.attention_width + 2 * feed_forward
    return tokens * width * element_bytes


class UnknownRule(EngineRule):
    """The pessimistic rule: every token of every layer, reserved at load, 16-bit caches or what is asked for."""

    flags = ("engine_rule_unknown",)

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Full windows even for sliding layers; 32-bit recurrent states."""

        def held_tokens(layer: LayerGeometry) -> int:
            return layer.cross_tokens or 0 if layer.kind is LayerKind.CROSS else context_tokens

        return cache_bytes(layers, tensor_width, settings, held_tokens)

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """Every attention layer."""
        return tokens_bytes(layers, settings, (LayerKind.FULL, LayerKind.SLIDING, LayerKind.LATENT))

    def compute(
        self,
        profile: MemoryProfile,
        shape: ShardShape,
        context_tokens: int,
        settings: ServingSettings,
        accelerated: bool,
    ) -> Placed:
        """32-bit activations of a whole batch and 32-bit logits of every slot."""
        logits = settings.slots * profile.vocab_size * 4 if shape.last else 0
        return Placed(activation_bytes(profile, settings.batch_tokens, 4) + logits)

    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """A GPU context with its libraries, and a Python process on the host."""
        return Placed(1024 * MIB, 1024 * MIB) if accelerated else Placed(1024 * MIB)

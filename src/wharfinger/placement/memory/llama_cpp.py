"""llama.cpp, in process (``llama_cpp``) or as its server (``llama_server``), on CPU, GPU or over RPC.

The window is per slot and slots do not share cells: the engine is started with ``context_tokens * slots`` in all.
Cache sizes are exact. Scratch is a bound fitted to what llama.cpp prints for fourteen architectures (build
2026.10, flash attention on); ``tests/placement_memory`` holds it against the engine.
"""

from __future__ import annotations

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.placement.memory.elements import MIB, ceil_div, is_quantized, round_up
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import MemoryProfile
from wharfinger.placement.memory.rules import (
    CacheBytes,
    EngineRule,
    LayerCounts,
    Placed,
    attention_row_bytes,
    cache_bytes,
    state_elements,
    tokens_bytes,
)
from wharfinger.placement.types import ServingSettings

CELL_PAD = 256
"""Cells of every cache are a multiple of this."""

CHECKPOINTS = 4
"""Snapshots of sliding and recurrent state our engine lets llama.cpp keep for each slot."""
CHECKPOINT_SPACING_TOKENS = 8192
"""A slot takes a further snapshot only this many tokens on."""

_PIPELINE_COPIES = 4
"""Copies llama.cpp makes of a graph's inputs when layers are spread over devices, to overlap batches (seen over RPC
to two donors: 40.8 and 29.6 MiB of scratch on them and 20.6 MiB on the driver for Gemma 3 270M)."""
_VOCABULARY_ENTRY_BYTES = 224
"""Text, score and look-up entries of one vocabulary item in host memory (measured, 512 to 262,144 entries)."""
_WORDPIECE_ENTRY_BYTES = 2200
_WORDPIECE = frozenset({"bert", "nomic-bert", "jina-bert-v2"})
_WORDPIECE_MAX_VOCABULARY = 130_000
"""Encoders with word pieces take ten times that an item; larger vocabularies are of another kind."""
_PROCESS_BYTES = 38 * MIB
"""The runner's process with the engine loaded (measured on Linux x86-64)."""
_GRAPH_NODE_BYTES = 1250
"""Bookkeeping of one graph node (measured)."""
_NODES_PER_LAYER = 100
_NODES_PER_TOKEN = 40
_UNROLLED = frozenset({"qwen3next", "qwen35", "qwen35moe", "kimi-linear"})
"""Architectures whose graph llama.cpp sizes by the tokens of a pass: the delta net is unrolled in chunks."""
_GPU_CONTEXT_BYTES = 384 * MIB
_GPU_PROCESS_BYTES = 512 * MIB
"""Driver context on the device and driver libraries on the host; not measured here, on the safe side."""


def full_cells(context_tokens: int) -> int:
    """Cells of one slot in a layer that sees the whole window."""
    return round_up(max(1, context_tokens), CELL_PAD)


def cells(layer: LayerGeometry, context_tokens: int, settings: ServingSettings) -> int:
    """Cells of one slot in one attention layer.

    Full and latent layers: the window, padded. Sliding layers: the sliding window plus one micro-batch, padded, and
    never more than the full cache.
    """
    full = full_cells(context_tokens)
    if layer.kind is LayerKind.CROSS:
        return layer.cross_tokens or 0
    if layer.kind is not LayerKind.SLIDING:
        return full
    step = _step_tokens(context_tokens, settings)
    return round_up(min(full, (layer.window_tokens or 0) + step), CELL_PAD)


def _step_tokens(context_tokens: int, settings: ServingSettings) -> int:
    """Tokens of one forward pass: the micro-batch, and never more than the batch or all slots' windows."""
    return min(
        settings.micro_batch_tokens, settings.batch_tokens, full_cells(context_tokens) * settings.slots
    )


class LlamaCppRule(EngineRule):
    """See the module's text."""

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Recurrent states are 32-bit, one per slot, whatever the cache type."""
        return cache_bytes(
            layers, tensor_width, settings, lambda layer: cells(layer, context_tokens, settings)
        )

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """Full and latent layers; sliding ones have a fixed number of cells."""
        return tokens_bytes(layers, settings, (LayerKind.FULL, LayerKind.LATENT))

    def snapshots(self, layers: LayerCounts, context_tokens: int, settings: ServingSettings) -> int:
        """What cannot be rewound is copied: the sliding window of every sliding layer, and every recurrent state."""
        size_bytes = 0
        for layer, number in layers:
            if layer.kind is LayerKind.RECURRENT:
                size_bytes += number * 4 * sum(state_elements(layer, 1))
            elif layer.kind is LayerKind.SLIDING:
                held = min(layer.window_tokens or 0, context_tokens)
                size_bytes += number * attention_row_bytes(layer, 1, settings) * held
        copies = min(CHECKPOINTS, 1 + ceil_div(context_tokens, CHECKPOINT_SPACING_TOKENS))
        return size_bytes * copies * settings.slots

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
        self,
        profile: MemoryProfile,
        shape: ShardShape,
        context_tokens: int,
        settings: ServingSettings,
        accelerated: bool,
    ) -> Placed:
        """Scratch of one micro-batch, its attention masks, and the logits of every slot."""
        tokens = _step_tokens(context_tokens, settings)
        layers = profile.counts(shape.start_layer, shape.end_layer)
        masks = (
            4 * tokens * tokens
            if profile.is_encoder
            else _mask_bytes(layers, context_tokens, tokens, settings)
        )
        scratch = masks + tokens * _token_scratch(profile, layers) + settings.slots * _gathered_state(layers)
        answers = settings.slots * profile.vocab_size * 4
        logits = answers if shape.last else 0
        if not accelerated:
            return Placed(scratch + logits)
        inputs = masks + tokens * 8 * profile.hidden_size
        unpacked = _unpacked_cache(layers, context_tokens, settings)
        if shape.first and shape.last:
            return Placed(scratch + logits + unpacked, inputs + answers)
        inputs *= _PIPELINE_COPIES
        device, host = scratch + inputs + logits + unpacked, inputs + answers
        return Placed(device, host if shape.first else 0)

    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """The process with its vocabulary and the description of its graph."""
        word_pieces = profile.architecture in _WORDPIECE and profile.vocab_size <= _WORDPIECE_MAX_VOCABULARY
        entry_bytes = _WORDPIECE_ENTRY_BYTES if word_pieces else _VOCABULARY_ENTRY_BYTES
        host = _PROCESS_BYTES + profile.vocab_size * entry_bytes + _graph_bytes(profile, settings)
        return Placed(_GPU_CONTEXT_BYTES, host + _GPU_PROCESS_BYTES) if accelerated else Placed(host)


def _graph_bytes(profile: MemoryProfile, settings: ServingSettings) -> int:
    tokens = min(settings.micro_batch_tokens, settings.batch_tokens)
    nodes = tokens * _NODES_PER_TOKEN if profile.architecture in _UNROLLED else 0
    return _GRAPH_NODE_BYTES * max(nodes, _NODES_PER_LAYER * profile.n_layers)


def _mask_bytes(layers: LayerCounts, context_tokens: int, tokens: int, settings: ServingSettings) -> int:
    """One 16-bit mask per kind of cache: a row of cells for each token of the micro-batch."""
    masks = {cells(layer, context_tokens, settings) for layer, _ in layers if layer.kind is LayerKind.SLIDING}
    if any(layer.kind in (LayerKind.FULL, LayerKind.LATENT) for layer, _ in layers):
        masks.add(-1)
    total_cells = sum(full_cells(context_tokens) if size < 0 else size for size in masks)
    return 2 * tokens * total_cells


def _token_scratch(profile: MemoryProfile, layers: LayerCounts) -> int:
    """Bytes of activations alive at once for one token: the most hungry of a layer's steps.

    Feed-forward: gate, up and their product, and five copies of the residual stream. Experts: the same per expert
    used, or their outputs twice. Attention: queries twice, keys and values of one layer twice, five residuals.
    Latent attention: queries before and after absorption. Recurrent: ten values per element of the convolution.
    Encoders have no gate.
    """
    hidden, feed_forward, used = profile.hidden_size, profile.feed_forward_size, profile.experts_used
    if profile.is_encoder:
        return max(4 * feed_forward + 20 * hidden, 28 * hidden)
    dense = 12 * feed_forward * used + 20 * hidden
    routed = 8 * used * hidden + 12 * hidden if used > 1 else 0
    attention = recurrent = 0
    for layer, _ in layers:
        if layer.kind is LayerKind.RECURRENT:
            recurrent = max(recurrent, 10 * (layer.conv_state_elements or 0))
        elif layer.kind is LayerKind.LATENT:
            per_head = 3 * (layer.latent_dim or 0) + 2 * (layer.rope_dim or 0)
            attention = max(attention, 4 * profile.attention_heads * per_head + 20 * hidden)
        else:
            keys = (layer.kv_heads or 0) * ((layer.key_dim or 0) + (layer.value_dim or 0))
            attention = max(attention, 8 * profile.attention_width + 4 * keys + 20 * hidden)
    if not recurrent:
        return max(dense, routed, attention)
    # A hybrid's two kinds of layer leave gaps in each other's buffers.
    return max(routed, attention, max(dense, recurrent) + min(dense, recurrent) // 5)


def _gathered_state(layers: LayerCounts) -> int:
    """One layer's states of a sequence, copied together before a pass."""
    return max(
        (4 * sum(state_elements(one, 1)) for one, _ in layers if one.kind is LayerKind.RECURRENT), default=0
    )


def _unpacked_cache(layers: LayerCounts, context_tokens: int, settings: ServingSettings) -> int:
    """GPU attention over a quantised cache unpacks one layer's keys and values to 16 bits, in two buffers."""
    if not (is_quantized(settings.cache_type_k) or is_quantized(settings.cache_type_v)):
        return 0
    widest = 0
    for layer, _ in layers:
        if layer.kind is LayerKind.RECURRENT:
            continue
        width = (layer.kv_heads or 0) * ((layer.key_dim or 0) + (layer.value_dim or 0))
        width += (layer.latent_dim or 0) + (layer.rope_dim or 0)
        widest = max(widest, width * cells(layer, context_tokens, settings))
    return 2 * 2 * widest * settings.slots

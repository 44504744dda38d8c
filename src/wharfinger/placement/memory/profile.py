"""A card compiled once for arithmetic: prefix sums of its weights, layers counted by geometry.

The planner asks for thousands of layer ranges of the same card, so everything that depends on the card alone is
worked out here once and found again by the card's digest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import accumulate

from wharfinger.catalog.card import Companion, LayerGeometry, LayerKind, ModelCard

FLAG_GEOMETRY = "kv_geometry_unknown"
FLAG_KV_HEADS = "kv_heads_unknown"
FLAG_HEAD_DIM = "head_dim_unknown"
FLAG_WINDOW = "window_unknown"
FLAG_STATE = "recurrent_state_unknown"
FLAG_LAYER_WEIGHTS = "layer_weights_unknown"

_DEFAULT_HEAD_DIM = 128
_DEFAULT_STATE_ELEMENTS = 128
"""Width of a recurrent state per channel when the card does not say: the largest in use (Mamba-2, delta net)."""
_DEFAULT_EXPANSION = 2
_DEFAULT_VOCAB = 262_144

_NO_TOKEN_CACHE_TASKS = frozenset(
    {"TextToImage", "ImageToImage", "TextToMusic", "TextToVideo", "ImageToVideo", "ReferenceToVideo"}
)
_ENCODERS = frozenset(
    {
        "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert",
        "t5encoder", "BertModel", "RobertaModel", "XLMRobertaModel", "MPNetModel", "NomicBertModel", "ModernBertModel",
    }
)  # fmt: skip
"""Architectures whose layers attend to the whole input at once and keep nothing between calls."""


@dataclass(frozen=True, slots=True)
class GeometryCount:
    """One distinct layer geometry and where it occurs."""

    geometry: LayerGeometry
    prefix: tuple[int, ...]
    """``prefix[i]`` of the first ``i`` layers have this geometry."""

    def within(self, start_layer: int, end_layer: int) -> int:
        """How many layers of ``start_layer`` to ``end_layer`` (exclusive) have it."""
        return self.prefix[end_layer] - self.prefix[start_layer]


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model loaded next to the model."""

    weight_bytes: int
    parts: tuple[tuple[LayerGeometry, int], ...]


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What the rules need of a card, with nothing left unknown; ``flags`` name what was assumed."""

    n_layers: int
    architecture: str
    family: str
    hidden_size: int
    feed_forward_size: int
    vocab_size: int
    attention_heads: int
    has_token_cache: bool
    """False for image, music and video models: a window in tokens means nothing to them."""
    layer_weights: tuple[int, ...]
    weight_prefix: tuple[int, ...]
    embedding_bytes: int
    output_bytes: int
    other_bytes: int
    tied_output: bool
    attention_width: int
    """Elements of one token's queries over all heads."""
    experts_used: int
    parts: tuple[GeometryCount, ...]
    """What the layers remember, one entry per distinct part; see :func:`parts_of_layer`."""
    projector_bytes: int
    drafts: tuple[Draft, ...]
    is_embedding: bool
    is_encoder: bool
    """Keeps nothing between calls: every token is seen at once."""
    cache_flags: tuple[str, ...]
    weight_flags: tuple[str, ...]

    def layer_bytes(self, start_layer: int, end_layer: int) -> int:
        """Weight bytes of a range of layers."""
        return self.weight_prefix[end_layer] - self.weight_prefix[start_layer]

    def counts(self, start_layer: int, end_layer: int) -> list[tuple[LayerGeometry, int]]:
        """Parts that occur in a range, each with its number of layers."""
        found: list[tuple[LayerGeometry, int]] = []
        for entry in self.parts:
            number = entry.within(start_layer, end_layer)
            if number:
                found.append((entry.geometry, number))
        return found


_CACHE_ENTRIES = 1024
_profiles: OrderedDict[str, MemoryProfile] = OrderedDict()


def profile_of(card: ModelCard) -> MemoryProfile:
    """The card's profile, remembered by digest (hashing a pydantic card anew costs more than the arithmetic)."""
    digest = card.digest
    known = _profiles.get(digest)
    if known is None:
        known = build_profile(card)
        _profiles[digest] = known
        if len(_profiles) > _CACHE_ENTRIES:
            _profiles.popitem(last=False)
    return known


def build_profile(card: ModelCard) -> MemoryProfile:
    """Work out a card's profile; see :func:`profile_of` for the remembered one."""
    layers, cache_flags = _resolve_layers(card)
    layer_weights, weight_flags = layer_weight_bytes(card)
    weights = card.weights
    return MemoryProfile(
        n_layers=card.n_layers,
        architecture=card.architecture,
        family=card.family,
        hidden_size=card.hidden_size,
        feed_forward_size=_feed_forward_size(card),
        vocab_size=card.vocab_size or _DEFAULT_VOCAB,
        attention_heads=card.num_attention_heads or max(1, card.hidden_size // _DEFAULT_HEAD_DIM),
        has_token_cache=_has_token_cache(card),
        layer_weights=layer_weights,
        weight_prefix=(0, *accumulate(layer_weights)),
        embedding_bytes=weights.embedding_bytes if weights else 0,
        output_bytes=weights.output_bytes if weights else 0,
        other_bytes=weights.other_bytes if weights else 0,
        tied_output=bool(weights and weights.tied_output),
        attention_width=_attention_width(card, layers),
        experts_used=card.n_experts_used or 1,
        parts=_count(layers),
        projector_bytes=sum(one.weight_bytes for one in card.companions if one.role == "projector"),
        drafts=tuple(
            Draft(one.weight_bytes, _draft_parts(card, one)) for one in card.companions if one.role == "draft"
        ),
        is_embedding=bool(card.tasks) and all(task == "TextEmbedding" for task in card.tasks),
        is_encoder=_has_token_cache(card) and all(layer.kind is LayerKind.NONE for layer in layers),
        cache_flags=cache_flags,
        weight_flags=weight_flags,
    )


def layer_weight_bytes(card: ModelCard) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Weight bytes per layer, and flags.

    Exact from the tensor table when the card has one. Otherwise ``storage_size`` spread evenly (the first layers
    take the remainder, so the sum is exact), flagged ``layer_weights_unknown``: embeddings and head are inside.
    """
    if card.weights is not None:
        return card.weights.layer_bytes, ()
    share, extra = divmod(card.storage_size.in_bytes, card.n_layers)
    return tuple(share + (index < extra) for index in range(card.n_layers)), (FLAG_LAYER_WEIGHTS,)


def _has_token_cache(card: ModelCard) -> bool:
    return not card.tasks or any(task not in _NO_TOKEN_CACHE_TASKS for task in card.tasks)


def _feed_forward_size(card: ModelCard) -> int:
    if (
        not card.feed_forward_size
        and card.layers
        and all(one.kind is LayerKind.RECURRENT for one in card.layers)
    ):
        return 0  # Mamba and its like have no such network
    # Four times the hidden size is the classic ratio and above what gated networks use.
    return card.feed_forward_size or 4 * card.hidden_size


def _attention_width(card: ModelCard, layers: tuple[LayerGeometry, ...]) -> int:
    heads = card.num_attention_heads
    if heads is None:
        return card.hidden_size
    head_dim = max((layer.key_dim or 0 for layer in layers), default=0)
    return max(card.hidden_size, heads * (head_dim or card.head_dim or 0))


def parts_of_layer(layer: LayerGeometry) -> tuple[LayerGeometry, ...]:
    """A layer as one geometry for each thing it remembers.

    Most layers remember one thing. A decoder's layer may keep an encoder's output besides its own tokens
    (``cross_tokens``), and a parallel hybrid's a recurrent state (``recurrent_state_elements``).
    """
    if layer.kind is LayerKind.NONE:
        return ()
    if layer.kind in (LayerKind.RECURRENT, LayerKind.CROSS):
        return (layer,)
    parts = [_only(layer, "kv_heads", "key_dim", "value_dim", "window_tokens", "latent_dim", "rope_dim")]
    if layer.cross_tokens:
        cross = _only(layer, "kv_heads", "key_dim", "value_dim", "cross_tokens")
        parts.append(replace_layer(cross, kind=LayerKind.CROSS))
    if layer.conv_state_elements or layer.recurrent_state_elements:
        state = _only(layer, "conv_state_elements", "recurrent_state_elements")
        parts.append(replace_layer(state, kind=LayerKind.RECURRENT))
    return tuple(parts)


def _only(layer: LayerGeometry, *names: str) -> LayerGeometry:
    return LayerGeometry(kind=layer.kind).model_copy(update={name: getattr(layer, name) for name in names})


def _count(layers: tuple[LayerGeometry, ...]) -> tuple[GeometryCount, ...]:
    parts_by_layer = {layer: parts_of_layer(layer) for layer in dict.fromkeys(layers)}
    distinct = dict.fromkeys(part for parts in parts_by_layer.values() for part in parts)
    return tuple(
        GeometryCount(part, (0, *accumulate(int(part in parts_by_layer[layer]) for layer in layers)))
        for part in distinct
    )


def _draft_parts(card: ModelCard, companion: Companion) -> tuple[tuple[LayerGeometry, int], ...]:
    # What the draft's layers leave open is taken from the model they imitate, which is the larger one.
    resolved = (_resolve(card, layer, []) for layer in companion.layers)
    return tuple(Counter(part for layer in resolved for part in parts_of_layer(layer)).items())


def _resolve_layers(card: ModelCard) -> tuple[tuple[LayerGeometry, ...], tuple[str, ...]]:
    if not _has_token_cache(card) or (card.layers is None and card.architecture in _ENCODERS):
        return (LayerGeometry(kind=LayerKind.NONE),) * card.n_layers, ()
    flags: list[str] = []
    if card.layers is None:
        # Every layer full attention: above sliding, latent and recurrent layers of the same width.
        flags.append(FLAG_GEOMETRY)
        unknown = LayerGeometry(kind=LayerKind.FULL)
        return (_resolve(card, unknown, flags),) * card.n_layers, tuple(dict.fromkeys(flags))
    resolved = {layer: _resolve(card, layer, flags) for layer in dict.fromkeys(card.layers)}
    return tuple(resolved[layer] for layer in card.layers), tuple(dict.fromkeys(flags))


def _resolve(card: ModelCard, layer: LayerGeometry, flags: list[str]) -> LayerGeometry:
    """Fill what the layer leaves open, on the pessimistic side, and note each assumption in ``flags``."""
    match layer.kind:
        case LayerKind.NONE:
            return layer
        case LayerKind.RECURRENT:
            return _resolve_recurrent(card, layer, flags)
        case LayerKind.LATENT if layer.latent_dim is not None:
            return layer if layer.rope_dim is not None else replace_layer(layer, rope_dim=64)
        case _:
            return _resolve_attention(card, layer, flags)


def _resolve_attention(card: ModelCard, layer: LayerGeometry, flags: list[str]) -> LayerGeometry:
    kind = layer.kind
    if kind is LayerKind.LATENT:
        # A latent layer of unknown rank: the uncompressed heads are above any latent.
        flags.append(FLAG_GEOMETRY)
        kind = LayerKind.FULL
    if kind is LayerKind.SLIDING and layer.window_tokens is None:
        flags.append(FLAG_WINDOW)
        kind = LayerKind.FULL
    if kind is LayerKind.CROSS and layer.cross_tokens is None:
        flags.append(FLAG_WINDOW)
        kind = LayerKind.FULL
    key_dim = layer.key_dim or _head_dim(card, flags)
    return replace_layer(
        layer,
        kind=kind,
        key_dim=key_dim,
        value_dim=layer.value_dim or key_dim,
        kv_heads=layer.kv_heads or _kv_heads(card, flags),
    )


def _resolve_recurrent(card: ModelCard, layer: LayerGeometry, flags: list[str]) -> LayerGeometry:
    if layer.recurrent_state_elements is not None:
        return replace_layer(layer, conv_state_elements=layer.conv_state_elements or 0)
    if layer.conv_state_elements is not None:
        # A short convolution keeps nothing else.
        return replace_layer(layer, recurrent_state_elements=0)
    flags.append(FLAG_STATE)
    inner = _DEFAULT_EXPANSION * card.hidden_size
    return replace_layer(
        layer, conv_state_elements=4 * inner, recurrent_state_elements=inner * _DEFAULT_STATE_ELEMENTS
    )


def _head_dim(card: ModelCard, flags: list[str]) -> int:
    if card.head_dim:
        return card.head_dim
    if card.num_attention_heads and card.hidden_size >= card.num_attention_heads:
        # Usual, not certain (Qwen3-0.6B has 128 at 1024 / 16): say that it was derived.
        flags.append(FLAG_HEAD_DIM)
        return max(_DEFAULT_HEAD_DIM, card.hidden_size // card.num_attention_heads)
    flags.append(FLAG_HEAD_DIM)
    return _DEFAULT_HEAD_DIM


def _kv_heads(card: ModelCard, flags: list[str]) -> int:
    if card.num_key_value_heads:
        return card.num_key_value_heads
    flags.append(FLAG_KV_HEADS)
    return card.num_attention_heads or max(1, -(-card.hidden_size // _DEFAULT_HEAD_DIM))


def replace_layer(layer: LayerGeometry, **values: object) -> LayerGeometry:
    """A copy of a layer with some fields set."""
    return layer.model_copy(update=values)

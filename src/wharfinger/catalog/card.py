"""The model card: the facts placement needs about one artifact.

A card is immutable and self-contained; its identity is :attr:`ModelCard.digest`. On the wire it is camelCase
with unknown fields rejected, which is the instances contract. Fields the contract does not know (weights per
layer, geometry per layer) are ours and optional: ``None`` means *not known*, never zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class CardPart(BaseModel):
    """Base of everything inside a card: frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )


class ByteSize(CardPart):
    """An amount of memory or storage, the contract's ``{"inBytes": n}``."""

    in_bytes: NonNegativeInt


class LayerKind(StrEnum):
    """How one layer remembers the past; it decides what the layer costs in cache."""

    FULL = "full"
    """K and V for every token of the window (MHA, GQA and MQA differ only in ``kv_heads``)."""
    SLIDING = "sliding"
    """K and V for the last ``window_tokens`` tokens; each engine rounds this its own way."""
    LATENT = "latent"
    """Multi-head latent attention: ``latent_dim + rope_dim`` elements a token, no separate K and V."""
    RECURRENT = "recurrent"
    """A state of fixed size per sequence (Mamba, gated delta net, RWKV, short convolution)."""
    CROSS = "cross"
    """K and V of an encoder's output: fixed size ``cross_tokens``, not the window."""
    NONE = "none"
    """No memory of its own: encoder layers of an embedding model, layers that share another's cache."""


class LayerGeometry(CardPart):
    """What one layer holds per token or per sequence. Sizes are element counts, not bytes.

    ``kind`` names the main memory; what else is set counts on top of it. A ``FULL`` layer with
    ``conv_state_elements`` and ``recurrent_state_elements`` keeps both (Falcon-H1), a ``FULL`` layer with
    ``cross_tokens`` also keeps K and V of that many encoder positions (Whisper and T5 decoders).
    """

    kind: LayerKind
    kv_heads: PositiveInt | None = None
    key_dim: PositiveInt | None = None
    """Elements of one key head."""
    value_dim: PositiveInt | None = None
    """Elements of one value head."""
    window_tokens: PositiveInt | None = None
    latent_dim: PositiveInt | None = None
    """Rank of the compressed KV (``kv_lora_rank``)."""
    rope_dim: PositiveInt | None = None
    """Rotary part kept beside the latent (``qk_rope_head_dim``)."""
    conv_state_elements: NonNegativeInt | None = None
    """Convolution state of a recurrent layer, elements per sequence."""
    recurrent_state_elements: NonNegativeInt | None = None
    """SSM / delta-net state of a recurrent layer, elements per sequence."""
    cross_tokens: PositiveInt | None = None


class Weights(CardPart):
    """Bytes of the tensors as stored in the artifact, grouped by the rank that must hold them."""

    layer_bytes: tuple[NonNegativeInt, ...]
    """One entry per layer, in order; everything whose name belongs to that layer."""
    embedding_bytes: NonNegativeInt
    """Token (and position) embedding table, held by the first rank."""
    output_bytes: NonNegativeInt
    """Output head and final norm, held by the last rank. With ``tied_output`` the head itself is not counted
    here: the last rank needs the embedding table again."""
    other_bytes: NonNegativeInt = 0
    """Tensors of no layer that every rank holds (rope tables and the like)."""
    tied_output: bool = False
    output_norm_bytes: NonNegativeInt = 0
    """The part of ``output_bytes`` that is not the head matrix."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        return sum(self.layer_bytes) + self.embedding_bytes + self.output_bytes + self.other_bytes


class Companion(CardPart):
    """A second artifact loaded next to the model: a vision projector or a draft model."""

    role: Annotated[str, Field(pattern="^(projector|draft)$")]
    file: str
    weight_bytes: NonNegativeInt
    layers: tuple[LayerGeometry, ...] = ()
    """Cache geometry of a draft model; empty for a projector."""


class EngineBuilds(CardPart):
    """Builds of one engine that a card is known to run with."""

    engine: str
    builds: Annotated[tuple[str, ...], Field(min_length=1)]
    """Exact build strings, as nodes report them."""


class PlacementPreferences(CardPart):
    """Where a card may run. ``compatible_backends`` gates, ``backend_preference`` orders."""

    compatible_backends: tuple[str, ...] = ()
    backend_preference: tuple[str, ...] = ()
    min_vram_gib: Annotated[float, Field(gt=0)] | None = None
    max_context_tokens: PositiveInt | None = None
    max_pipeline_split_layer: NonNegativeInt | None = None
    engine_builds: tuple[EngineBuilds, ...] = ()
    """Any build will do of engines that are not listed."""


class ChatFormat(CardPart):
    """How to talk to a model whose file does not say it: a base model, trained on plain text."""

    template: str
    """Jinja over ``messages``, as ``tokenizer.chat_template`` of a GGUF would be."""
    stop: tuple[str, ...] = ()
    """Texts at which an answer ends when the request names none."""


class Artifact(CardPart):
    """The file a card describes, by content."""

    file_name: str
    size_bytes: PositiveInt
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """``None`` where nobody has hashed the file."""


class ModelCard(CardPart):
    """Everything placement may know about one model artifact.

    Raises:
        pydantic.ValidationError: unknown field, wrong type, or per-layer lists whose length is not ``n_layers``.
    """

    model_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)?$")]
    storage_size: ByteSize
    n_layers: PositiveInt
    hidden_size: PositiveInt
    supports_tensor: bool = False
    num_key_value_heads: PositiveInt | None = None
    num_attention_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    feed_forward_size: PositiveInt | None = None
    """Inner width of the feed-forward part; of one expert in a mixture of experts."""
    vocab_size: PositiveInt | None = None
    n_experts: PositiveInt | None = None
    n_experts_used: PositiveInt | None = None
    tasks: tuple[str, ...] = ("TextGeneration",)
    architecture: str = ""
    """``general.architecture`` of a GGUF or the first of a config's ``architectures``; empty when unknown."""
    family: str = ""
    quantization: str = ""
    base_model: str = ""
    gguf_file: str | None = None
    """File name of the (first shard of the) GGUF; its presence means the llama.cpp family of engines."""
    capabilities: tuple[str, ...] = ()
    context_length: NonNegativeInt = 0
    """Advertised maximum in tokens; 0 is the contract's spelling of *unknown*."""
    uses_cfg: bool = False
    is_custom: bool = False
    placement: PlacementPreferences = PlacementPreferences()
    source_repository: str = ""
    source_revision: str = ""
    """The commit the bytes come from; a field of the contract that no reader of files can know."""
    layers: tuple[LayerGeometry, ...] | None = None
    """Cache geometry per layer; ``None`` when unknown (estimates are then pessimistic and say so)."""
    weights: Weights | None = None
    """Bytes per layer from the tensor table; ``None`` when unknown."""
    companions: tuple[Companion, ...] = ()
    artifact: Artifact | None = None
    chat: ChatFormat | None = None
    """``None`` leaves the format to the artifact."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> ModelCard:
        if self.layers is not None and len(self.layers) != self.n_layers:
            raise ValueError(f"layers has {len(self.layers)} entries but nLayers is {self.n_layers}")
        if self.weights is not None and len(self.weights.layer_bytes) != self.n_layers:
            raise ValueError(
                f"weights.layerBytes has {len(self.weights.layer_bytes)} entries but nLayers is {self.n_layers}"
            )
        return self

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex) over the canonical JSON of every field: the card's identity."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy; with ``update`` it is another card, so the digest is worked out anew."""
        copied = super().model_copy(update=update, deep=deep)
        vars(copied).pop("digest", None)
        return copied

    def canonical_json(self) -> str:
        """The card as camelCase JSON with fields in declaration order; equal cards give equal text.

        Fields that have their default are left out, so a field added in a later version does not change the
        identity of the cards that were made before it.
        """
        return self.model_dump_json(by_alias=True, exclude_defaults=True)

    def to_wire(self) -> dict[str, object]:
        """The card as the contract's camelCase JSON object."""
        return self.model_dump(mode="json", by_alias=True)

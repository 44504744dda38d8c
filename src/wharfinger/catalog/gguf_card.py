"""Make a model card from a GGUF header."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from wharfinger.catalog.backends import GGUF_BACKENDS, preferences
from wharfinger.catalog.card import Artifact, ByteSize, ChatFormat, ModelCard, Weights
from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.ggml_types import FILE_TYPES
from wharfinger.catalog.gguf import GgufTensor, LongArray
from wharfinger.catalog.gguf_facts import GgufFacts
from wharfinger.catalog.gguf_layers import TEXT_ENCODERS, gguf_layers
from wharfinger.catalog.gguf_split import read_gguf_model, stem_of
from wharfinger.catalog.naming import model_id_from
from wharfinger.catalog.weight_groups import Group, add_up, dominant

_BLOCK = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d+)\.")
_EMBEDDING = ("token_embd", "position_embd", "token_types", "per_layer_token_embd", "per_layer_model_proj")
_EMBEDDING_NORM = "token_embd_norm."
"""Lies with the layers, not with the table; in LFM2 it is the final norm under an old name."""
_OUTPUT_HEAD = ("output.weight", "output.bias")
_OUTPUT = ("output", "enc.output_norm", "dec.output_norm", "cls", "dense_", "per_layer_proj_norm")
_POOLING_RANK = 4


PLAIN_CHAT = ChatFormat(
    template=(
        "{{ bos_token }}{% for message in messages %}"
        "{% if message.role == 'assistant' %}Answer: {{ message.content }}\n\n"
        "{% else %}Question: {{ message.content }}\n{% endif %}{% endfor %}Answer:"
    ),
    stop=("\nQuestion:",),
)
"""For files without a chat template: llama.cpp would use ChatML, whose marks a base model takes for text."""


def gguf_card(
    path: Path, model_id: str | None = None, *, sha256: str | None = None, is_custom: bool = True
) -> ModelCard:
    """Read ``path`` (and its further parts) and describe it as a card.

    Args:
        path: A ``.gguf`` file; the first part of a model in several.
        model_id: The catalog's name for it; by default made from ``general.name``, else from the file's name.
        sha256: Of the file, when known; ``None`` leaves the artifact unhashed.
        is_custom: True for models that a person added here.

    Raises:
        GgufError: the file is no usable model; the message says why and what to do.
    """
    model = read_gguf_model(path)
    facts = GgufFacts(model)
    weights = _weights(facts)
    if weights.total_bytes == 0:
        raise GgufError(f"{path} has no tensors (a vocabulary-only file). Name the model's own .gguf file.")
    heads = facts.positive("attention.head_count")
    hidden = facts.required("embedding_length")
    if hidden == 0:
        raise facts.wrong("embedding_length", hidden, "a positive number")
    head_dim = facts.positive("attention.key_length_mla") or facts.positive("attention.key_length")
    try:
        return ModelCard(
            model_id=model_id or model_id_from(facts.text("general.name"), stem_of(path)),
            storage_size=ByteSize(in_bytes=weights.total_bytes),
            n_layers=facts.n_layers,
            hidden_size=hidden,
            supports_tensor=False,
            num_attention_heads=heads,
            num_key_value_heads=_kv_heads(facts) or heads,
            head_dim=head_dim or (hidden // heads or None if heads else None),
            feed_forward_size=facts.positive("expert_feed_forward_length")
            or facts.positive("feed_forward_length"),
            vocab_size=_vocab_size(facts),
            n_experts=facts.positive("expert_count"),
            n_experts_used=facts.positive("expert_used_count"),
            tasks=("TextEmbedding",) if _embeds(facts) else ("TextGeneration",),
            capabilities=_capabilities(facts),
            architecture=facts.architecture,
            family=facts.architecture,
            quantization=_quantization(facts),
            base_model=facts.text("general.base_model.0.name") or facts.text("general.basename"),
            gguf_file=path.name,
            context_length=facts.number("context_length") or 0,
            is_custom=is_custom,
            placement=preferences(GGUF_BACKENDS),
            layers=gguf_layers(facts),
            weights=weights,
            chat=None if "tokenizer.chat_template" in facts.metadata or _embeds(facts) else PLAIN_CHAT,
            artifact=Artifact(file_name=path.name, size_bytes=model.file_bytes, sha256=sha256),
        )
    except ValidationError as error:
        raise GgufError(f"{path} cannot be described as a model card: {_first_problem(error)}.") from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'card'}: {first['msg']}, not {first['input']!r:.80}"


def _kv_heads(facts: GgufFacts) -> int | None:
    """With latent attention the file says 1 (one latent for all), but the model has as many as query heads."""
    if facts.positive("attention.key_length_mla"):
        return facts.positive("attention.head_count")
    return facts.positive("attention.head_count_kv")


def _weights(facts: GgufFacts) -> Weights:
    return add_up(
        ((_place(tensor.name, facts.n_layers), tensor.size_bytes) for tensor in facts.tensors),
        facts.n_layers,
        has_head=facts.architecture not in TEXT_ENCODERS,
    )


def _place(name: str, n_layers: int) -> int | Group:
    block = _BLOCK.match(name)
    if block and int(block[1]) < n_layers:
        return int(block[1])
    if name.startswith(_EMBEDDING_NORM):
        return Group.OUTPUT
    if name.startswith(_EMBEDDING):
        return Group.EMBEDDING
    if name in _OUTPUT_HEAD:
        return Group.HEAD
    return Group.OUTPUT if name.startswith(_OUTPUT) else Group.OTHER


def _vocab_size(facts: GgufFacts) -> int | None:
    if stated := facts.positive("vocab_size"):
        return stated
    tokens = facts.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens) or None
    return next((tensor.dims[1] for tensor in facts.tensors if _is_embedding_table(tensor)), None)


def _is_embedding_table(tensor: GgufTensor) -> bool:
    return tensor.name == "token_embd.weight" and len(tensor.dims) == 2


def _embeds(facts: GgufFacts) -> bool:
    return facts.architecture in TEXT_ENCODERS or bool(facts.number("pooling_type"))


def _capabilities(facts: GgufFacts) -> tuple[str, ...]:
    if not _embeds(facts):
        return ("text",)
    return ("embedding", "rerank") if facts.number("pooling_type") == _POOLING_RANK else ("embedding",)


def _quantization(facts: GgufFacts) -> str:
    """The label of ``general.file_type``, else the type that most bytes of the matrices have."""
    file_type = facts.metadata.get("general.file_type")
    if isinstance(file_type, int) and (label := FILE_TYPES.get(file_type & ~1024)):
        return label
    return dominant((tensor.type_name, tensor.size_bytes) for tensor in facts.tensors if len(tensor.dims) > 1)

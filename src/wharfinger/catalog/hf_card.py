"""Make a model card from a folder with safetensors and ``config.json``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wharfinger.catalog.backends import (
    MLX_BACKENDS,
    SAFETENSORS_BACKENDS,
    SERVER_QUANTIZED_BACKENDS,
    preferences,
)
from wharfinger.catalog.card import Artifact, ByteSize, ModelCard, Weights
from wharfinger.catalog.errors import HfConfigError
from wharfinger.catalog.hf_config import HfConfig, read_hf_config
from wharfinger.catalog.hf_layers import (
    ENCODER_DECODERS,
    ENCODERS,
    KNOWN_ARCHITECTURES,
    encoder_layers,
    hf_layers,
    layer_count,
)
from wharfinger.catalog.naming import model_id_from
from wharfinger.catalog.safetensors import StoredTensor, read_checkpoint
from wharfinger.catalog.weight_groups import Group, add_up, dominant

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|block|blocks)\.(\d+)\.")
_OTHER_TOWERS = (
    "visual.",
    "vision",
    "audio",
    "multi_modal_projector",
    "mm_projector",
    "embed_vision",
    "embed_audio",
)
_DRAFT_HEADS = ("mtp.", "model.mtp.")
_EMBEDDING_PARTS = {"embed_tokens", "embed_positions", "embeddings", "wte", "wpe", "shared", "embedding"}
_HEAD_PARTS = {"lm_head", "proj_out"}
_OUTPUT_PARTS = {
    "norm",
    "norm_f",
    "ln_f",
    "final_layernorm",
    "final_layer_norm",
    "layer_norm",
    "score",
    "classifier",
    "pooler",
}

_MLX_TENSOR_ARCHITECTURES = frozenset(
    f"{name}ForCausalLM"
    for name in (
        "Glm4MoeLite",
        "GlmMoeDsa",
        "DeepseekV32",
        "DeepseekV3",
        "Qwen3Next",
        "Qwen3Moe",
        "Qwen3_5Moe",
        "Qwen3_5",
        "MiniMaxM2",
        "Llama",
        "GptOss",
        "Step3p5",
        "NemotronH",
    )
)
"""What MLX can cut by tensor (the instances contract's allow-list)."""

_DTYPE_LABELS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
}


def hf_card(folder: Path, model_id: str | None = None) -> ModelCard:
    """Read the headers of a checkpoint and its configuration and describe the model as a custom card.

    Args:
        folder: Holds ``config.json`` and ``model.safetensors`` or its shards with their index.
        model_id: The catalog's name for it; by default made from the folder's name.

    Raises:
        SafetensorsError: no checkpoint, a missing shard, or a damaged file.
        HfConfigError: no usable ``config.json``.
    """
    checkpoint = read_checkpoint(folder)
    config = read_hf_config(folder / "config.json")
    n_layers = layer_count(config)
    weights = _weights(config, checkpoint.tensors, n_layers)
    quantization, backends = _quantization(config, checkpoint.tensors)
    head_dim = config.positive("head_dim")
    heads = config.named("heads") or None
    hidden = config.required_named("hidden")
    try:
        return ModelCard(
            model_id=model_id or model_id_from(folder.name),
            storage_size=ByteSize(in_bytes=weights.total_bytes),
            n_layers=n_layers,
            hidden_size=hidden,
            supports_tensor=_supports_tensor(config, backends),
            num_attention_heads=heads,
            num_key_value_heads=config.named("kv_heads") or heads,
            head_dim=head_dim or (hidden // heads or None if heads else None),
            feed_forward_size=config.named("expert_feed_forward") or config.named("feed_forward") or None,
            vocab_size=config.positive("vocab_size"),
            n_experts=config.named("experts") or None,
            n_experts_used=config.named("experts_used") or None,
            tasks=(_task(config),),
            capabilities=("embedding",) if config.architecture in ENCODERS else ("text",),
            architecture=config.architecture,
            family=config.model_type or config.architecture,
            quantization=quantization,
            context_length=config.named("context") or 0,
            is_custom=True,
            placement=preferences(backends),
            layers=hf_layers(config),
            weights=weights,
            artifact=Artifact(file_name=checkpoint.files[0].name, size_bytes=checkpoint.file_bytes),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "card"
        raise HfConfigError(
            f"{folder} cannot be described as a model card: {field}: {first['msg']}."
        ) from error


def _weights(config: HfConfig, tensors: tuple[StoredTensor, ...], n_layers: int) -> Weights:
    """Group bytes by the rank that holds them.

    Draft heads (multi-token prediction), stored beside or after the layers, are left out: engines do not load
    them unless asked to.
    """
    placed = (
        (_place(config, tensor.name), tensor.size_bytes) for tensor in tensors if not _drafts(tensor.name)
    )
    return add_up(
        ((place, size) for place, size in placed if isinstance(place, Group) or place < n_layers),
        n_layers,
        has_head=config.architecture not in ENCODERS,
    )


def _drafts(name: str) -> bool:
    return name.startswith(_DRAFT_HEADS)


def _place(config: HfConfig, name: str) -> int | Group:
    if _is_other_tower(name):
        return Group.EMBEDDING
    layer = _layer_of(config, name)
    if layer is not None:
        return layer
    parts = set(name.split("."))
    if parts & _HEAD_PARTS:
        return Group.HEAD
    if parts & _EMBEDDING_PARTS:
        return Group.EMBEDDING
    return Group.OUTPUT if parts & _OUTPUT_PARTS else Group.OTHER


def _is_other_tower(name: str) -> bool:
    """Vision and audio parts, which engines load with the first rank."""
    bare = name.removeprefix("model.").removeprefix("thinker.")
    return bare.startswith(_OTHER_TOWERS)


def _layer_of(config: HfConfig, name: str) -> int | None:
    match = _LAYER.search(name)
    if match is None:
        return None
    number = int(match[1])
    in_decoder = config.architecture in ENCODER_DECODERS and "decoder." in name
    return number + encoder_layers(config) if in_decoder else number


def _task(config: HfConfig) -> str:
    if config.architecture in ENCODERS:
        return "TextEmbedding"
    return "SpeechToText" if config.architecture.startswith("Whisper") else "TextGeneration"


def _supports_tensor(config: HfConfig, backends: tuple[str, ...]) -> bool:
    """MLX cuts only the architectures it lists; vLLM and SGLang cut every decoder we know."""
    if backends == MLX_BACKENDS:
        return config.architecture in _MLX_TENSOR_ARCHITECTURES
    return config.architecture in KNOWN_ARCHITECTURES - ENCODERS - ENCODER_DECODERS


def _quantization(config: HfConfig, tensors: tuple[StoredTensor, ...]) -> tuple[str, tuple[str, ...]]:
    """A label for people, and the backends that read this form of storage."""
    of_servers = config.settings.get("quantization_config")
    of_mlx = config.settings.get("quantization")
    if isinstance(of_mlx, dict) and "group_size" in of_mlx:
        return _bits_label(of_mlx, ""), MLX_BACKENDS
    if isinstance(of_servers, dict):
        method = str(of_servers.get("quant_method") or "quantized")
        return _bits_label(of_servers, method), SERVER_QUANTIZED_BACKENDS
    stated = config.settings.get("dtype") or config.settings.get("torch_dtype")
    dtype = str(stated or dominant((tensor.dtype, tensor.size_bytes) for tensor in tensors))
    return _DTYPE_LABELS.get(dtype, dtype), SAFETENSORS_BACKENDS


def _bits_label(settings: dict[str, Any], method: str) -> str:
    bits = settings.get("bits")
    label = f"{bits}bit" if isinstance(bits, int) else ""
    return "-".join(part for part in (method, label) if part)

"""Cache geometry per layer from a Hugging Face ``config.json``.

Each architecture named here has its rule; any other has unknown geometry (``None``), never a guess. Source: the
configuration and modelling classes of transformers, and vLLM's reading of the same fields.
"""

from __future__ import annotations

from collections.abc import Callable

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.catalog.hf_config import HfConfig
from wharfinger.catalog.hf_recurrent import (
    delta_net,
    mamba1,
    mamba2_alone,
    mamba2_of_granite,
    mamba2_of_nemotron,
    short_convolution,
)

NO_CACHE = LayerGeometry(kind=LayerKind.NONE)

Layers = tuple[LayerGeometry, ...]


def hf_layers(config: HfConfig) -> Layers | None:
    """Geometry per layer, or ``None`` when the architecture's cache is not known here.

    Raises:
        HfConfigError: a field the architecture needs is missing or cannot be.
    """
    rule = _RULES.get(config.architecture)
    return None if rule is None else rule(config)


def layer_count(config: HfConfig) -> int:
    """Layers in all: decoder layers, after the encoder's in encoder-decoder models."""
    if config.architecture not in ENCODER_DECODERS:
        return config.n_layers
    return encoder_layers(config) + _decoder_layers(config)


def attention(config: HfConfig) -> LayerGeometry:
    """One full-attention layer."""
    heads = config.required_named("heads")
    key_dim = config.positive("head_dim") or config.required_named("hidden") // heads
    kv_heads = config.named("kv_heads") or heads
    return LayerGeometry(kind=LayerKind.FULL, kv_heads=kv_heads, key_dim=key_dim, value_dim=key_dim)


def sliding(layer: LayerGeometry, window: int) -> LayerGeometry:
    """The same layer with a window."""
    return layer.model_copy(update={"kind": LayerKind.SLIDING, "window_tokens": window})


def _uniform(config: HfConfig) -> Layers:
    return (attention(config),) * config.n_layers


def _typed(config: HfConfig, kinds: list[str]) -> Layers:
    """Layers by ``layer_types``."""
    if len(kinds) < config.n_layers:
        raise config.wrong(
            "layer_types", f"a list of {len(kinds)}", f"one word per layer ({config.n_layers})"
        )
    makers: dict[str, Callable[[], LayerGeometry]] = {
        "full_attention": lambda: attention(config),
        "attention": lambda: attention(config),
        "sliding_attention": lambda: sliding(attention(config), config.required("sliding_window")),
        "chunked_attention": lambda: sliding(attention(config), config.required("attention_chunk_size")),
        "linear_attention": lambda: delta_net(config),
        "conv": lambda: short_convolution(config),
        "mamba": lambda: mamba2_of_granite(config),
    }
    unknown = sorted(set(kinds) - makers.keys())
    if unknown:
        raise config.wrong("layer_types", unknown[0], f"words among {', '.join(makers)}")
    made = {kind: makers[kind]() for kind in dict.fromkeys(kinds)}
    return tuple(made[kind] for kind in kinds[: config.n_layers])


def _every_nth_full(config: HfConfig, period: int) -> Layers:
    """Layer ``i`` (from 1) is full when ``i`` is a multiple of ``period``; the others slide."""
    if listed := config.texts("layer_types"):
        return _typed(config, listed)
    window = config.positive("sliding_window")
    full = attention(config)
    if window is None:
        return (full,) * config.n_layers
    short = sliding(full, window)
    return tuple(full if (index + 1) % period == 0 else short for index in range(config.n_layers))


def _gemma2(config: HfConfig) -> Layers:
    return _every_nth_full(config, 2)


def _gemma3(config: HfConfig) -> Layers:
    return _every_nth_full(config, config.positive("sliding_window_pattern", 6) or 6)


def _cohere2(config: HfConfig) -> Layers:
    return _every_nth_full(config, config.positive("sliding_window_pattern", 4) or 4)


def _listed_or_uniform(config: HfConfig) -> Layers:
    listed = config.texts("layer_types")
    return _typed(config, listed) if listed else _uniform(config)


def _all_sliding(config: HfConfig) -> Layers:
    """Mistral 7B 0.1 and Phi-3: one window for every layer, none when the field is null."""
    window = config.positive("sliding_window")
    return _uniform(config) if window is None else (sliding(attention(config), window),) * config.n_layers


def _qwen(config: HfConfig) -> Layers:
    """A window counts only with ``use_sliding_window``, and then from layer ``max_window_layers`` on."""
    window = config.positive("sliding_window")
    if not config.flag("use_sliding_window") or window is None:
        return _uniform(config)
    if listed := config.texts("layer_types"):
        return _typed(config, listed)
    full = attention(config)
    first = config.number("max_window_layers")
    first = config.n_layers if first is None else first
    return tuple(full if index < first else sliding(full, window) for index in range(config.n_layers))


def _llama4(config: HfConfig) -> Layers:
    if listed := config.texts("layer_types"):
        return _typed(config, listed)
    full = attention(config)
    chunk = config.positive("attention_chunk_size", 8192) or 8192
    step = config.positive("no_rope_layer_interval", 4) or 4
    return tuple(
        full if (index + 1) % step == 0 else sliding(full, chunk) for index in range(config.n_layers)
    )


def _latent(config: HfConfig) -> Layers:
    """Multi-head latent attention: the latent and one rotary key per token, whatever the number of heads."""
    layer = LayerGeometry(
        kind=LayerKind.LATENT,
        latent_dim=config.required("kv_lora_rank"),
        rope_dim=config.required("qk_rope_head_dim"),
    )
    return (layer,) * config.n_layers


def _linear_hybrid(config: HfConfig) -> Layers:
    """Qwen3-Next and Qwen3.5: full attention in every fourth layer, a delta net in the others."""
    if listed := config.texts("layer_types"):
        return _typed(config, listed)
    full, linear = attention(config), delta_net(config)
    interval = config.positive("full_attention_interval", 4) or 4
    return tuple(full if (index + 1) % interval == 0 else linear for index in range(config.n_layers))


def _jamba(config: HfConfig) -> Layers:
    full, mamba = attention(config), mamba1(config, "mamba_")
    period = config.positive("attn_layer_period", 8) or 8
    offset = config.number("attn_layer_offset")
    offset = 4 if offset is None else offset
    return tuple(full if index % period == offset else mamba for index in range(config.n_layers))


def _nemotron_h(config: HfConfig) -> Layers:
    """A letter per layer: M is Mamba-2, * attention, - and E feed-forward parts that remember nothing."""
    pattern = config.settings.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != config.n_layers or set(pattern) - set("M*-E"):
        raise config.wrong("hybrid_override_pattern", pattern, f"{config.n_layers} letters among M * - E")
    head_dim = config.positive("head_dim") or config.positive("attention_head_dim")
    full = attention(config)
    if head_dim:
        full = full.model_copy(update={"key_dim": head_dim, "value_dim": head_dim})
    made = {"M": mamba2_of_nemotron(config), "*": full, "-": NO_CACHE, "E": NO_CACHE}
    return tuple(made[letter] for letter in pattern)


def _granite_hybrid(config: HfConfig) -> Layers:
    listed = config.texts("layer_types") or config.texts("layers_block_type")
    if listed is None:
        raise config.wrong("layer_types", None, "a word (mamba or attention) per layer")
    return _typed(config, listed)


def _lfm2(config: HfConfig) -> Layers:
    if listed := config.texts("layer_types"):
        return _typed(config, listed)
    full_layers = set(config.numbers("full_attn_idxs") or range(config.n_layers))
    full, conv = attention(config), short_convolution(config)
    return tuple(full if index in full_layers else conv for index in range(config.n_layers))


def _falcon_h1(config: HfConfig) -> Layers:
    """Attention and Mamba-2 side by side in every layer."""
    both = mamba2_of_granite(config)
    layer = attention(config).model_copy(
        update={
            "conv_state_elements": both.conv_state_elements,
            "recurrent_state_elements": both.recurrent_state_elements,
        }
    )
    return (layer,) * config.n_layers


def _mllama(config: HfConfig) -> Layers:
    """Llama 3.2 Vision: some layers attend to the image only, whose size is fixed by tiles and patches."""
    crossing = set(config.numbers("cross_attention_layers") or ())
    vision = HfConfig(config.whole.get("vision_config") or {}, config.path)
    patches = (vision.required("image_size") // vision.required("patch_size")) ** 2 + 1
    tokens = patches * (vision.positive("max_num_tiles", 4) or 4)
    full = attention(config)
    cross = full.model_copy(update={"kind": LayerKind.CROSS, "cross_tokens": tokens})
    return tuple(cross if index in crossing else full for index in range(config.n_layers))


def _encoder_only(config: HfConfig) -> Layers:
    return (NO_CACHE,) * config.n_layers


def encoder_layers(config: HfConfig) -> int:
    """Layers of an encoder-decoder model's encoder. T5's ``num_layers`` is the encoder's."""
    return config.required("num_layers" if config.architecture.startswith("T5") else "encoder_layers")


def _decoder_layers(config: HfConfig) -> int:
    if config.architecture.startswith("T5"):
        return config.positive("num_decoder_layers") or config.required("num_layers")
    return config.required("decoder_layers")


def _whisper(config: HfConfig) -> Layers:
    heads = config.required("decoder_attention_heads")
    dim = config.required("d_model") // heads
    layer = LayerGeometry(
        kind=LayerKind.FULL,
        kv_heads=heads,
        key_dim=dim,
        value_dim=dim,
        cross_tokens=config.required("max_source_positions"),
    )
    return (NO_CACHE,) * encoder_layers(config) + (layer,) * _decoder_layers(config)


def _t5(config: HfConfig) -> Layers:
    """The decoder also keeps K and V of the input text, which has no fixed length beyond ``n_positions``."""
    layer = LayerGeometry(
        kind=LayerKind.FULL,
        kv_heads=config.required("num_heads"),
        key_dim=config.required("d_kv"),
        value_dim=config.required("d_kv"),
        cross_tokens=config.positive("n_positions", 512),
    )
    return (NO_CACHE,) * encoder_layers(config) + (layer,) * _decoder_layers(config)


ENCODER_DECODERS = frozenset({"WhisperForConditionalGeneration", "T5ForConditionalGeneration"})


def _pure(make: Callable[[HfConfig], LayerGeometry]) -> Callable[[HfConfig], Layers]:
    return lambda config: (make(config),) * config.n_layers


_UNIFORM_NAMES = """
    LlamaForCausalLM Qwen3MoeForCausalLM Qwen2MoeForCausalLM MixtralForCausalLM GemmaForCausalLM OlmoForCausalLM
    Olmo2ForCausalLM OlmoeForCausalLM GraniteForCausalLM GraniteMoeForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM
    StableLmForCausalLM PhiForCausalLM CohereForCausalLM MiniMaxM2ForCausalLM SeedOssForCausalLM
    Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration
    Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration
"""
_ENCODER_NAMES = """
    BertModel BertForMaskedLM BertForSequenceClassification RobertaModel RobertaForMaskedLM
    RobertaForSequenceClassification XLMRobertaModel XLMRobertaForMaskedLM XLMRobertaForSequenceClassification
    MPNetModel MPNetForMaskedLM DistilBertModel NomicBertModel ModernBertModel ModernBertForMaskedLM
    ModernBertForSequenceClassification NewModel Gemma3TextModel
"""
ENCODERS = frozenset(_ENCODER_NAMES.split())
_LATENT_NAMES = "DeepseekV2ForCausalLM DeepseekV3ForCausalLM KimiK2ForCausalLM Glm4MoeLiteForCausalLM"

_RULES: dict[str, Callable[[HfConfig], Layers]] = {
    **dict.fromkeys(_UNIFORM_NAMES.split(), _uniform),
    **dict.fromkeys(ENCODERS, _encoder_only),
    **dict.fromkeys(_LATENT_NAMES.split(), _latent),
    "MistralForCausalLM": _all_sliding,
    "Mistral3ForConditionalGeneration": _all_sliding,
    "Phi3ForCausalLM": _all_sliding,
    "Qwen2ForCausalLM": _qwen,
    "Qwen2Model": _qwen,
    "Qwen3ForCausalLM": _qwen,
    "Qwen3Model": _qwen,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Cohere2ForCausalLM": _cohere2,
    "GptOssForCausalLM": _gemma2,
    "Olmo3ForCausalLM": _listed_or_uniform,
    "SmolLM3ForCausalLM": _listed_or_uniform,
    "Exaone4ForCausalLM": _listed_or_uniform,
    "Llama4ForCausalLM": _llama4,
    "Llama4ForConditionalGeneration": _llama4,
    "MllamaForConditionalGeneration": _mllama,
    "Qwen3NextForCausalLM": _linear_hybrid,
    "Qwen3_5ForConditionalGeneration": _linear_hybrid,
    "Qwen3_5ForCausalLM": _linear_hybrid,
    "Qwen3_5MoeForConditionalGeneration": _linear_hybrid,
    "Qwen3_5MoeForCausalLM": _linear_hybrid,
    "MambaForCausalLM": _pure(mamba1),
    "Mamba2ForCausalLM": _pure(mamba2_alone),
    "JambaForCausalLM": _jamba,
    "NemotronHForCausalLM": _nemotron_h,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2,
    "FalconH1ForCausalLM": _falcon_h1,
    "WhisperForConditionalGeneration": _whisper,
    "T5ForConditionalGeneration": _t5,
}
KNOWN_ARCHITECTURES = frozenset(_RULES)

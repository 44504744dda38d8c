"""Cache geometry per layer of a GGUF model, by llama.cpp's own rules.

Source: the hyper-parameter loading of each architecture in llama.cpp (``load_arch_hparams``, ``llama_hparams``,
``create_memory``). What llama.cpp ignores is ignored here too: a Mistral file that names a sliding window gets
full attention, because that is what the engine will allocate. An architecture that is in none of the tables has
unknown geometry (``None``).
"""

from __future__ import annotations

from typing import NamedTuple

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.catalog.gguf_facts import GgufFacts

NO_CACHE = LayerGeometry(kind=LayerKind.NONE)

_ATTENTION = """
    llama deci falcon baichuan grok gpt2 gptj gptneox mpt starcoder refact bloom stablelm qwen qwen2 qwen2moe
    qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion internlm2 minicpm minicpm3
    gemma starcoder2 xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2 deepseek2-ocr chatglm
    glm4 glm4moe bitnet t5 jais jais2 nemotron exaone granite granitemoe chameleon plm bailingmoe bailingmoe2
    dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl smollm3 seed_oss grovemoe apertus
    minimax-m2 cogvlm pangu-embedded mistral3 mistral4 paddleocr maincoder
"""
ATTENTION = frozenset(_ATTENTION.split())
"""Attention in every layer that has KV heads, over the whole window."""

_TEXT_ENCODERS = """
    bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert t5encoder
    gemma-embedding
"""
TEXT_ENCODERS = frozenset(_TEXT_ENCODERS.split())
"""Embedding models: they see the whole text at once and keep no cache."""

DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Text diffusion: the whole text is seen again at every step, so no cache either."""

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

RECURRENT_WITHOUT_KV_HEADS = frozenset(
    {"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2", "nemotron_h", "nemotron_h_moe", "kimi-linear"}
)
"""Hybrids whose recurrent layers are those with no KV heads."""

RECURRENT_BY_INTERVAL = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Hybrids with full attention in every ``full_attention_interval``-th layer (4 by default)."""

PARALLEL = frozenset({"falcon-h1"})
"""Every layer has attention and a recurrent state side by side."""


class SlidingRule(NamedTuple):
    """How an architecture alternates sliding and full attention.

    Layer ``i`` slides when ``i % period < period - 1``; with ``full_first`` when ``i % period != 0``. A period of
    ``None`` means the file must list the layers. Without a ``sliding_window`` key, ``default_window`` applies,
    and no window at all means full attention everywhere.
    """

    period: int | None
    default_window: int | None = None
    full_first: bool = False
    fixed_window: int | None = None


SLIDING: dict[str, SlidingRule] = {
    "gemma2": SlidingRule(2, default_window=4096),
    "gemma3": SlidingRule(6),
    "gemma3n": SlidingRule(5),
    "gemma4": SlidingRule(None),
    "cohere2": SlidingRule(4),
    "exaone4": SlidingRule(4, default_window=4096),
    "exaone-moe": SlidingRule(4, default_window=128),
    "gpt-oss": SlidingRule(2),
    "llama4": SlidingRule(4, default_window=8192, fixed_window=8192),
    "olmo2": SlidingRule(4),
    "smallthinker": SlidingRule(4, full_first=True, fixed_window=4096),
    "plamo3": SlidingRule(8),
    "afmoe": SlidingRule(4),
    "mimo2": SlidingRule(None),
    "step35": SlidingRule(None),
}
"""Llama 4's chunks of 8,192 tokens are kept in the same cache as sliding windows."""

_KV_LAYERS_FROM_START = {"gemma3n": 20}
_EXAONE4_SLIDING_LAYERS = 64


def gguf_layers(facts: GgufFacts) -> tuple[LayerGeometry, ...] | None:
    """Geometry per layer, or ``None`` for an architecture whose cache is not known here.

    Raises:
        GgufError: a setting that the architecture needs is missing or cannot be.
    """
    architecture = facts.architecture
    if architecture in TEXT_ENCODERS or architecture in DIFFUSION:
        return (NO_CACHE,) * facts.n_layers
    if architecture in RECURRENT:
        return _without_draft_layers(facts, [_recurrent(facts)] * facts.n_layers)
    if architecture in RECURRENT_WITHOUT_KV_HEADS:
        return _without_draft_layers(facts, _hybrid_by_heads(facts))
    if architecture in RECURRENT_BY_INTERVAL:
        return _without_draft_layers(facts, _hybrid_by_interval(facts))
    if architecture in PARALLEL:
        state = _recurrent(facts)
        both = {
            "conv_state_elements": state.conv_state_elements,
            "recurrent_state_elements": state.recurrent_state_elements,
        }
        return _without_draft_layers(facts, [layer.model_copy(update=both) for layer in _attention(facts)])
    if architecture in ATTENTION or architecture in SLIDING:
        return _without_draft_layers(facts, _attention(facts))
    return None


def _attention(facts: GgufFacts) -> list[LayerGeometry]:
    kv_heads = _kv_heads(facts)
    heads = max(facts.number("attention.head_count") or 0, 1)
    default_dim = facts.required("embedding_length") // heads
    key_dim = facts.positive("attention.key_length") or default_dim
    value_dim = facts.positive("attention.value_length") or default_dim
    latent = _latent(facts)
    window, slides = _sliding_layers(facts)
    layers: list[LayerGeometry] = []
    for index in range(facts.n_layers):
        if kv_heads[index] == 0:
            layers.append(NO_CACHE)
        elif latent is not None:
            layers.append(latent)
        elif slides[index]:
            layers.append(
                LayerGeometry(
                    kind=LayerKind.SLIDING,
                    kv_heads=kv_heads[index],
                    key_dim=facts.positive("attention.key_length_swa") or key_dim,
                    value_dim=facts.positive("attention.value_length_swa") or value_dim,
                    window_tokens=window,
                )
            )
        else:
            layers.append(
                LayerGeometry(
                    kind=LayerKind.FULL, kv_heads=kv_heads[index], key_dim=key_dim, value_dim=value_dim
                )
            )
    return layers


def _kv_heads(facts: GgufFacts) -> tuple[int, ...]:
    listed = facts.per_layer("attention.head_count_kv")
    if listed is not None:
        return listed
    return (
        facts.per_layer("attention.head_count") or (facts.required("attention.head_count"),) * facts.n_layers
    )


def _latent(facts: GgufFacts) -> LayerGeometry | None:
    """MLA as llama.cpp stores it: only files that carry ``key_length_mla`` keep the compressed cache.

    Older conversions of the same models have no such key; llama.cpp then caches full heads, and so do we.
    """
    rank = facts.positive("attention.kv_lora_rank")
    if rank is None or facts.positive("attention.key_length_mla") is None:
        return None
    return LayerGeometry(
        kind=LayerKind.LATENT, latent_dim=rank, rope_dim=facts.required("rope.dimension_count") or None
    )


def _sliding_layers(facts: GgufFacts) -> tuple[int | None, list[bool]]:
    """The window in tokens, and for each layer whether it slides."""
    nowhere = [False] * facts.n_layers
    rule = SLIDING.get(facts.architecture)
    if rule is None or (facts.architecture == "exaone4" and facts.n_layers != _EXAONE4_SLIDING_LAYERS):
        return None, nowhere
    stated = facts.number("attention.sliding_window")
    window = rule.default_window if stated is None else stated
    if not window:
        return None, nowhere
    window = rule.fixed_window or window
    pattern = facts.raw("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        listed = facts.per_layer("attention.sliding_window_pattern") or ()
        return window, [bool(flag) for flag in listed]
    period = facts.number("attention.sliding_window_pattern") if pattern is not None else rule.period
    if period is None:
        raise facts.wrong("attention.sliding_window_pattern", None, "a list of the layers that slide")
    if rule.full_first:
        return window, [period == 0 or index % period != 0 for index in range(facts.n_layers)]
    return window, [period == 0 or index % period < period - 1 for index in range(facts.n_layers)]


def _recurrent(facts: GgufFacts) -> LayerGeometry:
    """State per sequence of a recurrent layer (``n_embd_r`` and ``n_embd_s`` of llama.cpp)."""
    hidden = facts.required("embedding_length")
    if head_size := facts.positive("wkv.head_size"):
        shifts = facts.positive("token_shift_count") or 2
        return _state(shifts * hidden, hidden * head_size)
    if taps := facts.positive("shortconv.l_cache"):
        return _state(hidden * (taps - 1), 0)
    kernel = max(facts.required("ssm.conv_kernel"), 1)
    if head_size := facts.positive("kda.head_dim"):
        heads = facts.required("attention.head_count")
        return _state(3 * (kernel - 1) * heads * head_size, heads * head_size * head_size)
    inner = facts.required("ssm.inner_size")
    state = facts.required("ssm.state_size")
    groups = facts.number("ssm.group_count") or 0
    return _state((kernel - 1) * (inner + 2 * groups * state), state * inner)


def _state(conv_elements: int, recurrent_elements: int) -> LayerGeometry:
    return LayerGeometry(
        kind=LayerKind.RECURRENT,
        conv_state_elements=conv_elements,
        recurrent_state_elements=recurrent_elements,
    )


def _hybrid_by_heads(facts: GgufFacts) -> list[LayerGeometry]:
    """Layers without KV heads are recurrent, but in Nemotron-H those with a feed-forward part are only that."""
    state = _recurrent(facts)
    layers = _attention(facts)
    feed_forward = (0,) * facts.n_layers
    if facts.architecture.startswith("nemotron_h"):
        feed_forward = facts.per_layer("feed_forward_length") or feed_forward
    return [
        NO_CACHE if feed_forward[index] else state if layer is NO_CACHE else layer
        for index, layer in enumerate(layers)
    ]


def _hybrid_by_interval(facts: GgufFacts) -> list[LayerGeometry]:
    state = _recurrent(facts)
    listed = facts.per_layer("attention.recurrent_layers")
    if listed is None:
        interval = facts.positive("full_attention_interval") or 4
        listed = tuple(int((index + 1) % interval != 0) for index in range(facts.n_layers))
    return [state if recurrent else layer for recurrent, layer in zip(listed, _attention(facts), strict=True)]


def _without_draft_layers(facts: GgufFacts, layers: list[LayerGeometry]) -> tuple[LayerGeometry, ...]:
    """The last layers hold no cache when they are draft heads or share the cache of earlier layers."""
    drafts = facts.number("nextn_predict_layers") or 0
    shared = facts.number("attention.shared_kv_layers") or 0
    owning = min(
        facts.n_layers - max(drafts, shared), _KV_LAYERS_FROM_START.get(facts.architecture, facts.n_layers)
    )
    return tuple(layer if index < owning else NO_CACHE for index, layer in enumerate(layers))

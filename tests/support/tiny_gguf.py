"""Writes tiny random-weight GGUF models of many architectures, each with the model card that describes it.

The weights are noise; only the shapes matter: llama.cpp loads them, allocates as it would for the real thing, and
prints what it took. Every builder mirrors the tensors llama.cpp requires of that architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from support.tiny_gguf_draft import Draft, TinyShape, card_of, write_draft
from wharfinger.catalog.card import LayerGeometry, LayerKind, ModelCard

__all__ = ["ARCHITECTURES", "TinyModel", "TinyShape", "write_tiny_gguf"]


@dataclass(frozen=True)
class TinyModel:
    """A file and the card that describes it."""

    path: Path
    card: ModelCard


def write_tiny_gguf(directory: Path, arch: str, shape: TinyShape | None = None, seed: int = 7) -> TinyModel:
    """Write ``directory/tiny-ARCH.gguf``.

    Raises:
        KeyError: an architecture that :data:`ARCHITECTURES` does not list.
    """
    draft = Draft(arch, shape or TinyShape(), np.random.default_rng(seed))
    draft.metadata["general.architecture"] = arch
    _common(draft)
    ARCHITECTURES[arch](draft)
    path = directory / f"tiny-{arch}.gguf"
    write_draft(draft, path)
    return TinyModel(path, card_of(draft, path))


def _common(draft: Draft) -> None:
    shape = draft.shape
    draft.key("context_length", shape.context)
    draft.key("embedding_length", shape.hidden)
    draft.key("block_count", shape.layers)
    draft.key("feed_forward_length", shape.feed_forward)
    draft.key("vocab_size", shape.vocab)
    draft.key("attention.layer_norm_rms_epsilon", 1e-6)
    draft.weight("token_embd.weight", shape.vocab, shape.hidden)


def _head(draft: Draft) -> None:
    draft.weight("output_norm.weight", draft.shape.hidden)
    if not draft.shape.tied:
        draft.weight("output.weight", draft.shape.vocab, draft.shape.hidden)


def _attention_keys(
    draft: Draft, heads: int | list[int] | None = None, kv: int | list[int] | None = None
) -> None:
    shape = draft.shape
    draft.key("attention.head_count", shape.heads if heads is None else heads)
    draft.key("attention.head_count_kv", shape.kv_heads if kv is None else kv)
    draft.key("attention.key_length", shape.head_dim)
    draft.key("attention.value_length", shape.head_dim)
    draft.key("rope.dimension_count", shape.head_dim)
    draft.key("rope.freq_base", 10000.0)
    draft.card |= {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads}
    draft.card |= {"head_dim": shape.head_dim}


def _attention(
    draft: Draft, layer: int, *, bias: bool = False, qk_norm: bool = False, gated: bool = False
) -> None:
    shape, prefix = draft.shape, f"blk.{layer}"
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, width in (("q", queries * (2 if gated else 1)), ("k", keys), ("v", keys)):
        draft.weight(f"{prefix}.attn_{name}.weight", width, shape.hidden)
        if bias:
            draft.weight(f"{prefix}.attn_{name}.bias", width)
    draft.weight(f"{prefix}.attn_output.weight", shape.hidden, queries)
    if qk_norm:
        draft.weight(f"{prefix}.attn_q_norm.weight", shape.head_dim)
        draft.weight(f"{prefix}.attn_k_norm.weight", shape.head_dim)


def _full(draft: Draft) -> LayerGeometry:
    shape = draft.shape
    return LayerGeometry(
        kind=LayerKind.FULL, kv_heads=shape.kv_heads, key_dim=shape.head_dim, value_dim=shape.head_dim
    )


def _sliding(draft: Draft, window: int) -> LayerGeometry:
    return _full(draft).model_copy(update={"kind": LayerKind.SLIDING, "window_tokens": window})


def _norms(draft: Draft, layer: int, *names: str) -> None:
    for name in names:
        draft.weight(f"blk.{layer}.{name}.weight", draft.shape.hidden)


def _dense(draft: Draft, layer: int, *, gate: bool = True) -> None:
    shape, prefix = draft.shape, f"blk.{layer}"
    for name in ("ffn_gate", "ffn_up") if gate else ("ffn_up",):
        draft.weight(f"{prefix}.{name}.weight", shape.feed_forward, shape.hidden)
    draft.weight(f"{prefix}.ffn_down.weight", shape.hidden, shape.feed_forward)


_EXPERTS, _EXPERTS_USED, _EXPERT_WIDTH = 8, 2, 128


def _expert_keys(draft: Draft) -> None:
    draft.key("expert_count", _EXPERTS)
    draft.key("expert_used_count", _EXPERTS_USED)
    draft.key("expert_feed_forward_length", _EXPERT_WIDTH)
    draft.card |= {"n_experts": _EXPERTS, "n_experts_used": _EXPERTS_USED, "feed_forward_size": _EXPERT_WIDTH}


def _experts(draft: Draft, layer: int, *, bias: bool = False, shared: bool = False) -> None:
    hidden, prefix = draft.shape.hidden, f"blk.{layer}"
    draft.narrow(f"{prefix}.ffn_gate_inp.weight", _EXPERTS, hidden)
    for name in ("ffn_gate_exps", "ffn_up_exps"):
        draft.weight(f"{prefix}.{name}.weight", _EXPERTS, _EXPERT_WIDTH, hidden)
    draft.weight(f"{prefix}.ffn_down_exps.weight", _EXPERTS, hidden, _EXPERT_WIDTH)
    if bias:
        draft.weight(f"{prefix}.ffn_gate_inp.bias", _EXPERTS)
        for name, width in (("gate", _EXPERT_WIDTH), ("up", _EXPERT_WIDTH), ("down", hidden)):
            draft.narrow(f"{prefix}.ffn_{name}_exps.bias", _EXPERTS, width)
    if shared:
        for name in ("ffn_gate_shexp", "ffn_up_shexp"):
            draft.weight(f"{prefix}.{name}.weight", _EXPERT_WIDTH, hidden)
        draft.weight(f"{prefix}.ffn_down_shexp.weight", hidden, _EXPERT_WIDTH)


def _llama(draft: Draft, *, bias: bool = False, qk_norm: bool = False) -> None:
    _attention_keys(draft)
    for layer in range(draft.shape.layers):
        _norms(draft, layer, "attn_norm", "ffn_norm")
        _attention(draft, layer, bias=bias, qk_norm=qk_norm)
        _dense(draft, layer)
        draft.geometry.append(_full(draft))
    _head(draft)


def _qwen3moe(draft: Draft) -> None:
    _attention_keys(draft)
    _expert_keys(draft)
    for layer in range(draft.shape.layers):
        _norms(draft, layer, "attn_norm", "ffn_norm")
        _attention(draft, layer, qk_norm=True)
        _experts(draft, layer)
        draft.geometry.append(_full(draft))
    _head(draft)


def _gemma(draft: Draft, *, every: int, window: int, qk_norm: bool) -> None:
    draft.shape = replace(draft.shape, tied=True)
    _attention_keys(draft)
    draft.key("attention.sliding_window", window)
    for layer in range(draft.shape.layers):
        _norms(draft, layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        _attention(draft, layer, qk_norm=qk_norm)
        _dense(draft, layer)
        draft.geometry.append(_full(draft) if layer % every == every - 1 else _sliding(draft, window))
    _head(draft)


def _gpt_oss(draft: Draft) -> None:
    _attention_keys(draft)
    _expert_keys(draft)
    draft.key("attention.sliding_window", 128)
    for layer in range(draft.shape.layers):
        _norms(draft, layer, "attn_norm", "post_attention_norm")
        _attention(draft, layer, bias=True)
        draft.weight(f"blk.{layer}.attn_output.bias", draft.shape.hidden)
        draft.weight(f"blk.{layer}.attn_sinks.weight", draft.shape.heads)
        _experts(draft, layer, bias=True)
        draft.geometry.append(_full(draft) if layer % 2 else _sliding(draft, 128))
    _head(draft)


def _deepseek2(draft: Draft) -> None:
    shape = draft.shape
    latent, rope, no_rope, value, q_rank = 128, 64, 64, 64, 96
    draft.key("attention.head_count", shape.heads)
    draft.key("attention.head_count_kv", 1)
    draft.key("attention.q_lora_rank", q_rank)
    draft.key("attention.kv_lora_rank", latent)
    draft.key("attention.key_length", latent + rope)
    draft.key("attention.value_length", latent)
    draft.key("attention.key_length_mla", no_rope + rope)
    draft.key("attention.value_length_mla", value)
    draft.key("rope.dimension_count", rope)
    draft.key("rope.freq_base", 10000.0)
    draft.key("leading_dense_block_count", 1)
    draft.key("expert_shared_count", 1)
    draft.key("expert_weights_scale", 1.0)
    draft.key("expert_gating_func", 2)
    _expert_keys(draft)
    draft.card |= {"num_attention_heads": shape.heads, "num_key_value_heads": shape.heads}
    for layer in range(shape.layers):
        prefix = f"blk.{layer}"
        _norms(draft, layer, "attn_norm", "ffn_norm")
        draft.weight(f"{prefix}.attn_q_a.weight", q_rank, shape.hidden)
        draft.weight(f"{prefix}.attn_q_a_norm.weight", q_rank)
        draft.weight(f"{prefix}.attn_q_b.weight", shape.heads * (no_rope + rope), q_rank)
        draft.weight(f"{prefix}.attn_kv_a_mqa.weight", latent + rope, shape.hidden)
        draft.weight(f"{prefix}.attn_kv_a_norm.weight", latent)
        draft.weight(f"{prefix}.attn_k_b.weight", shape.heads, latent, no_rope)
        draft.weight(f"{prefix}.attn_v_b.weight", shape.heads, value, latent)
        draft.weight(f"{prefix}.attn_output.weight", shape.hidden, shape.heads * value)
        if layer == 0:
            _dense(draft, layer)
        else:
            _experts(draft, layer, shared=True)
            draft.weight(f"{prefix}.exp_probs_b.bias", _EXPERTS)
        draft.geometry.append(LayerGeometry(kind=LayerKind.LATENT, latent_dim=latent, rope_dim=rope))
    _head(draft)


_CONV, _STATE, _GROUPS = 4, 16, 1


def _ssm_keys(draft: Draft, inner: int, rank: int, state: int, groups: int) -> None:
    draft.key("ssm.conv_kernel", _CONV)
    draft.key("ssm.inner_size", inner)
    draft.key("ssm.state_size", state)
    draft.key("ssm.time_step_rank", rank)
    draft.key("ssm.group_count", groups)


def _mamba(draft: Draft) -> None:
    hidden = draft.shape.hidden
    inner, rank = 2 * hidden, hidden // 16
    _ssm_keys(draft, inner, rank, _STATE, 0)
    draft.key("attention.head_count", 0)
    draft.key("feed_forward_length", 0)
    draft.card |= {"feed_forward_size": None}
    for layer in range(draft.shape.layers):
        prefix = f"blk.{layer}"
        _norms(draft, layer, "attn_norm")
        draft.weight(f"{prefix}.ssm_in.weight", 2 * inner, hidden)
        draft.narrow(f"{prefix}.ssm_conv1d.weight", inner, _CONV)
        draft.weight(f"{prefix}.ssm_conv1d.bias", inner)
        draft.weight(f"{prefix}.ssm_x.weight", rank + 2 * _STATE, inner)
        draft.weight(f"{prefix}.ssm_dt.weight", inner, rank)
        draft.weight(f"{prefix}.ssm_dt.bias", inner)
        draft.narrow(f"{prefix}.ssm_a", inner, _STATE)
        draft.weight(f"{prefix}.ssm_d", inner)
        draft.weight(f"{prefix}.ssm_out.weight", hidden, inner)
        draft.geometry.append(_state((_CONV - 1) * inner, _STATE * inner))
    _head(draft)


def _state(conv: int, recurrent: int) -> LayerGeometry:
    return LayerGeometry(
        kind=LayerKind.RECURRENT, conv_state_elements=conv, recurrent_state_elements=recurrent
    )


def _mamba2_layer(draft: Draft, layer: int) -> None:
    hidden, prefix = draft.shape.hidden, f"blk.{layer}"
    inner, heads = 2 * hidden, 8
    conv = inner + 2 * _GROUPS * _STATE
    draft.weight(f"{prefix}.ssm_in.weight", 2 * inner + 2 * _GROUPS * _STATE + heads, hidden)
    draft.narrow(f"{prefix}.ssm_conv1d.weight", conv, _CONV)
    draft.weight(f"{prefix}.ssm_conv1d.bias", conv)
    draft.weight(f"{prefix}.ssm_dt.bias", heads)
    draft.narrow(f"{prefix}.ssm_a", heads, 1)
    draft.narrow(f"{prefix}.ssm_d", heads, 1)
    draft.narrow(f"{prefix}.ssm_norm.weight", _GROUPS, inner // _GROUPS)
    draft.weight(f"{prefix}.ssm_out.weight", hidden, inner)
    draft.geometry.append(_state((_CONV - 1) * conv, _STATE * inner))


def _granitehybrid(draft: Draft) -> None:
    """Mamba-2 layers with one attention layer in four, each with a dense network."""
    layers, shape = draft.shape.layers, draft.shape
    attends = [layer % 4 == 3 for layer in range(layers)]
    _attention_keys(draft, kv=[shape.kv_heads if attend else 0 for attend in attends])
    _ssm_keys(draft, 2 * shape.hidden, 8, _STATE, _GROUPS)
    for name in ("attention.scale", "embedding_scale", "residual_scale", "logit_scale"):
        draft.key(name, 1.0)
    for layer, attend in enumerate(attends):
        _norms(draft, layer, "attn_norm", "ffn_norm")
        if attend:
            _attention(draft, layer)
            draft.geometry.append(_full(draft))
        else:
            _mamba2_layer(draft, layer)
        _dense(draft, layer)
    _head(draft)


def _nemotron_h(draft: Draft) -> None:
    """Layers that are either Mamba-2, attention or a network."""
    layers, shape = draft.shape.layers, draft.shape
    kinds = [
        "mamba" if layer % 4 in (0, 2) else "attention" if layer % 4 == 1 else "dense"
        for layer in range(layers)
    ]
    _attention_keys(draft, kv=[shape.kv_heads if kind == "attention" else 0 for kind in kinds])
    draft.key("attention.layer_norm_epsilon", 1e-6)
    draft.key("feed_forward_length", [shape.feed_forward if kind == "dense" else 0 for kind in kinds])
    _ssm_keys(draft, 2 * shape.hidden, 8, _STATE, _GROUPS)
    for layer, kind in enumerate(kinds):
        _norms(draft, layer, "attn_norm")
        if kind == "mamba":
            _mamba2_layer(draft, layer)
        elif kind == "attention":
            _attention(draft, layer)
            draft.geometry.append(_full(draft))
        else:
            _dense(draft, layer, gate=False)
            draft.geometry.append(LayerGeometry(kind=LayerKind.NONE))
    _head(draft)


def _lfm2(draft: Draft) -> None:
    """Short convolutions with one attention layer in four."""
    draft.shape = shape = replace(draft.shape, tied=True)
    attends = [layer % 4 == 2 for layer in range(shape.layers)]
    _attention_keys(draft, kv=[shape.kv_heads if attend else 0 for attend in attends])
    draft.key("shortconv.l_cache", 3)
    for layer, attend in enumerate(attends):
        prefix = f"blk.{layer}"
        _norms(draft, layer, "attn_norm", "ffn_norm")
        _dense(draft, layer)
        if attend:
            _attention(draft, layer, qk_norm=True)
            draft.geometry.append(_full(draft))
            continue
        draft.narrow(f"{prefix}.shortconv.conv.weight", shape.hidden, 3)
        draft.weight(f"{prefix}.shortconv.in_proj.weight", 3 * shape.hidden, shape.hidden)
        draft.weight(f"{prefix}.shortconv.out_proj.weight", shape.hidden, shape.hidden)
        draft.geometry.append(_state(2 * shape.hidden, 0))
    draft.weight("token_embd_norm.weight", shape.hidden)


def _qwen3next(draft: Draft) -> None:
    """Gated delta nets with one gated attention layer in four, all with experts."""
    shape = draft.shape
    state, groups, rank = 32, 2, 4
    key_dim, value_dim = state * groups, state * rank
    conv = 2 * key_dim + value_dim
    _attention_keys(draft)
    _expert_keys(draft)
    draft.key("expert_shared_feed_forward_length", _EXPERT_WIDTH)
    _ssm_keys(draft, value_dim, rank, state, groups)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}"
        _norms(draft, layer, "attn_norm", "post_attention_norm")
        _experts(draft, layer, shared=True)
        draft.weight(f"{prefix}.ffn_gate_inp_shexp.weight", shape.hidden)
        if layer % 4 == 3:
            _attention(draft, layer, qk_norm=True, gated=True)
            draft.geometry.append(_full(draft))
            continue
        draft.weight(f"{prefix}.attn_qkv.weight", conv, shape.hidden)
        draft.weight(f"{prefix}.attn_gate.weight", value_dim, shape.hidden)
        draft.narrow(f"{prefix}.ssm_conv1d.weight", conv, _CONV)
        draft.weight(f"{prefix}.ssm_dt.bias", rank)
        draft.weight(f"{prefix}.ssm_a", rank)
        draft.weight(f"{prefix}.ssm_ba.weight", 2 * rank, shape.hidden)
        draft.weight(f"{prefix}.ssm_norm.weight", state)
        draft.weight(f"{prefix}.ssm_out.weight", shape.hidden, value_dim)
        draft.geometry.append(_state((_CONV - 1) * conv, state * value_dim))
    _head(draft)


def _bert(draft: Draft) -> None:
    """An embedding model: no cache at all."""
    shape = draft.shape
    draft.key("attention.head_count", shape.heads)
    draft.key("attention.layer_norm_epsilon", 1e-12)
    draft.key("attention.causal", False)
    draft.key("pooling_type", 1)
    draft.metadata["tokenizer.ggml.token_type_count"] = 2
    draft.card |= {"num_attention_heads": shape.heads, "tasks": ("TextEmbedding",)}
    draft.weight("position_embd.weight", shape.context, shape.hidden)
    draft.narrow("token_types.weight", 2, shape.hidden)
    for suffix in ("weight", "bias"):
        draft.weight(f"token_embd_norm.{suffix}", shape.hidden)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            draft.weight(f"{prefix}.{name}.weight", shape.hidden, shape.hidden)
            draft.weight(f"{prefix}.{name}.bias", shape.hidden)
        for name, outputs, inputs in (
            ("up", shape.feed_forward, shape.hidden),
            ("down", shape.hidden, shape.feed_forward),
        ):
            draft.weight(f"{prefix}.ffn_{name}.weight", outputs, inputs)
            draft.weight(f"{prefix}.ffn_{name}.bias", outputs)
        for name in ("attn_output_norm", "layer_output_norm"):
            draft.weight(f"{prefix}.{name}.weight", shape.hidden)
            draft.weight(f"{prefix}.{name}.bias", shape.hidden)
        draft.geometry.append(LayerGeometry(kind=LayerKind.NONE))


ARCHITECTURES: dict[str, Callable[[Draft], None]] = {
    "llama": _llama,
    "qwen2": lambda draft: _llama(draft, bias=True),
    "qwen3": lambda draft: _llama(draft, qk_norm=True),
    "qwen3moe": _qwen3moe,
    "gemma2": lambda draft: _gemma(draft, every=2, window=1024, qk_norm=False),
    "gemma3": lambda draft: _gemma(draft, every=6, window=512, qk_norm=True),
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "mamba": _mamba,
    "granitehybrid": _granitehybrid,
    "nemotron_h": _nemotron_h,
    "lfm2": _lfm2,
    "qwen3next": _qwen3next,
    "bert": _bert,
}
"""Architectures that can be written, by their ``general.architecture``."""

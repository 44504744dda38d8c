"""Cache geometry of public models, in numbers that can be checked by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from catalog import configs
from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.catalog.errors import HfConfigError
from wharfinger.catalog.hf_config import HfConfig
from wharfinger.catalog.hf_layers import KNOWN_ARCHITECTURES, hf_layers, layer_count

F16_BYTES = 2


def geometry(config: dict[str, Any]) -> tuple[LayerGeometry, ...]:
    layers = hf_layers(HfConfig(config))
    assert layers is not None
    return layers


def token_bytes(layers: tuple[LayerGeometry, ...], kind: LayerKind) -> int:
    """16-bit bytes that one token adds in the layers of one kind."""
    elements = 0
    for layer in layers:
        if layer.kind is kind and kind is LayerKind.LATENT:
            elements += (layer.latent_dim or 0) + (layer.rope_dim or 0)
        elif layer.kind is kind:
            elements += (layer.kv_heads or 0) * ((layer.key_dim or 0) + (layer.value_dim or 0))
    return elements * F16_BYTES


@pytest.mark.parametrize(
    ("name", "kinds", "full_bytes", "sliding_bytes", "window"),
    [
        ("LLAMA_3_1_8B", {"full": 32}, 131_072, 0, None),
        ("LLAMA_3_3_70B", {"full": 80}, 327_680, 0, None),
        ("MISTRAL_7B_V01", {"sliding": 32}, 0, 131_072, 4096),
        ("MISTRAL_7B_V03", {"full": 32}, 131_072, 0, None),
        ("QWEN2_5_7B", {"full": 28}, 57_344, 0, None),
        ("QWEN3_0_6B", {"full": 28}, 114_688, 0, None),
        ("QWEN3_30B_A3B", {"full": 48}, 98_304, 0, None),
        ("GEMMA_2_9B", {"full": 21, "sliding": 21}, 172_032, 172_032, 4096),
        ("GEMMA_3_27B", {"full": 10, "sliding": 52}, 81_920, 425_984, 1024),
        ("GEMMA_3_270M", {"full": 3, "sliding": 15}, 3_072, 15_360, 512),
        ("GPT_OSS_20B", {"full": 12, "sliding": 12}, 24_576, 24_576, 128),
        ("GPT_OSS_120B", {"full": 18, "sliding": 18}, 36_864, 36_864, 128),
        ("COMMAND_R7B", {"full": 8, "sliding": 24}, 32_768, 98_304, 4096),
        ("LLAMA_4_SCOUT", {"full": 12, "sliding": 36}, 49_152, 147_456, 8192),
    ],
)
def test_attention(
    name: str, kinds: dict[str, int], full_bytes: int, sliding_bytes: int, window: int | None
) -> None:
    layers = geometry(getattr(configs, name))
    assert Counter(layer.kind.value for layer in layers) == kinds
    assert token_bytes(layers, LayerKind.FULL) == full_bytes
    assert token_bytes(layers, LayerKind.SLIDING) == sliding_bytes
    assert {layer.window_tokens for layer in layers if layer.kind is LayerKind.SLIDING} == ({window} - {None})


@pytest.mark.parametrize(
    ("name", "n_layers", "latent_bytes"),
    [("DEEPSEEK_V3", 61, 70_272), ("KIMI_K2", 61, 70_272), ("DEEPSEEK_V2_LITE", 27, 31_104)],
)
def test_latent_attention(name: str, n_layers: int, latent_bytes: int) -> None:
    layers = geometry(getattr(configs, name))
    assert len(layers) == n_layers
    assert token_bytes(layers, LayerKind.LATENT) == latent_bytes


@pytest.mark.parametrize(
    ("name", "kinds", "full_bytes", "conv", "state"),
    [
        ("QWEN3_NEXT_80B", {"full": 12, "recurrent": 36}, 24_576, 24_576, 524_288),
        ("QWEN3_5_4B", {"full": 8, "recurrent": 24}, 32_768, 24_576, 524_288),
        ("MAMBA_2_8B", {"recurrent": 64}, 0, 15_360, 81_920),
        ("CODESTRAL_MAMBA_7B", {"recurrent": 64}, 0, 30_720, 1_048_576),
        ("JAMBA_V01", {"full": 4, "recurrent": 28}, 16_384, 24_576, 131_072),
        ("NEMOTRON_NANO_9B_V2", {"full": 4, "recurrent": 27, "none": 25}, 16_384, 36_864, 1_310_720),
        ("GRANITE_4_H_TINY", {"full": 4, "recurrent": 36}, 8_192, 9_984, 393_216),
        ("LFM2_1_2B", {"full": 6, "recurrent": 10}, 12_288, 4_096, 0),
    ],
)
def test_recurrent_and_hybrid(
    name: str, kinds: dict[str, int], full_bytes: int, conv: int, state: int
) -> None:
    layers = geometry(getattr(configs, name))
    assert Counter(layer.kind.value for layer in layers) == kinds
    assert token_bytes(layers, LayerKind.FULL) == full_bytes
    states = {
        (layer.conv_state_elements, layer.recurrent_state_elements)
        for layer in layers
        if layer.kind is LayerKind.RECURRENT
    }
    assert states == {(conv, state)}


def test_falcon_h1_keeps_attention_and_state_in_every_layer() -> None:
    layers = geometry(configs.FALCON_H1_0_5B)
    assert len(layers) == 36
    assert token_bytes(layers, LayerKind.FULL) == 18_432
    assert {(layer.conv_state_elements, layer.recurrent_state_elements) for layer in layers} == {
        (5_376, 196_608)
    }


def test_whisper_keeps_the_encoder_output_beside_its_own_tokens() -> None:
    layers = geometry(configs.WHISPER_LARGE_V3)
    assert [layer.kind for layer in layers] == [LayerKind.NONE] * 32 + [LayerKind.FULL] * 32
    assert token_bytes(layers, LayerKind.FULL) == 163_840
    assert {layer.cross_tokens for layer in layers[32:]} == {1500}
    assert layer_count(HfConfig(configs.WHISPER_LARGE_V3)) == 64


def test_t5_has_twelve_layers_without_and_twelve_with_a_cache() -> None:
    layers = geometry(configs.T5_BASE)
    assert [layer.kind for layer in layers] == [LayerKind.NONE] * 12 + [LayerKind.FULL] * 12
    assert {(layer.kv_heads, layer.key_dim, layer.cross_tokens) for layer in layers[12:]} == {(12, 64, 512)}


def test_llama_vision_attends_to_four_tiles_in_eight_layers() -> None:
    layers = geometry(configs.LLAMA_3_2_11B_VISION)
    crossing = [index for index, layer in enumerate(layers) if layer.kind is LayerKind.CROSS]
    assert crossing == [3, 8, 13, 18, 23, 28, 33, 38]
    assert {layers[index].cross_tokens for index in crossing} == {6_404}
    assert token_bytes(layers, LayerKind.FULL) == 131_072


def test_full_attention_stands_where_the_makers_put_it() -> None:
    def full(config: dict[str, Any]) -> list[int]:
        return [index for index, layer in enumerate(geometry(config)) if layer.kind is LayerKind.FULL]

    assert full(configs.GEMMA_3_27B) == [5, 11, 17, 23, 29, 35, 41, 47, 53, 59]
    assert full(configs.GEMMA_2_9B)[:3] == [1, 3, 5]
    assert full(configs.GPT_OSS_120B)[:3] == [1, 3, 5]
    assert full(configs.JAMBA_V01) == [4, 12, 20, 28]
    assert full(configs.QWEN3_NEXT_80B)[:3] == [3, 7, 11]
    assert full(configs.NEMOTRON_NANO_9B_V2) == [14, 21, 30, 39]


def test_embedding_models_keep_no_cache() -> None:
    assert {layer.kind for layer in geometry(configs.BGE_SMALL)} == {LayerKind.NONE}


def test_qwen_slides_only_from_max_window_layers_on_and_only_when_told() -> None:
    told = {
        **configs.QWEN2_5_7B,
        "use_sliding_window": True,
        "sliding_window": 32768,
        "max_window_layers": 20,
    }
    assert Counter(layer.kind.value for layer in geometry(told)) == {"full": 20, "sliding": 8}


@pytest.mark.parametrize("architecture", ["DeepseekV32ForCausalLM", "SomethingNewForCausalLM", ""])
def test_an_architecture_without_a_rule_is_unknown_and_not_guessed(architecture: str) -> None:
    assert architecture not in KNOWN_ARCHITECTURES
    assert hf_layers(HfConfig({**configs.DEEPSEEK_V3_2, "architectures": [architecture]})) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": "many"}, "num_attention_heads is 'many'"),
        ({"num_key_value_heads": -8}, "num_key_value_heads is -8"),
        ({"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_impossible_fields_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(HfConfigError, match=named):
        hf_layers(HfConfig({**configs.LLAMA_3_1_8B, **change}))


def test_a_list_of_layer_types_must_be_long_enough_and_known() -> None:
    short = {**configs.GEMMA_3_270M, "layer_types": ["full_attention"] * 3}
    with pytest.raises(HfConfigError, match="layer_types is 'a list of 3'; expected one word per layer"):
        hf_layers(HfConfig(short))
    strange = {**configs.GEMMA_3_270M, "layer_types": ["psychic_attention"] * 18}
    with pytest.raises(HfConfigError, match="psychic_attention"):
        hf_layers(HfConfig(strange))
    wrong = {**configs.NEMOTRON_NANO_9B_V2, "hybrid_override_pattern": "M*"}
    with pytest.raises(HfConfigError, match="56 letters among M"):
        hf_layers(HfConfig(wrong))

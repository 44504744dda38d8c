"""Cards from GGUF headers: geometry by llama.cpp's rules, weights by layer, labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalog.gguf_files import LLAMA, tiny_llama, write_gguf
from support.tiny_gguf import ARCHITECTURES, write_tiny_gguf
from wharfinger.catalog.card import LayerKind, ModelCard
from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.gguf_card import gguf_card

ATTENTION = {"attention.head_count": 8, "attention.head_count_kv": 2, "embedding_length": 512}


def card(tmp_path: Path, architecture: str, settings: dict[str, Any], **general: Any) -> ModelCard:
    return gguf_card(write_gguf(tmp_path / "model.gguf", architecture, settings, **general))


def kinds(made: ModelCard) -> str:
    """One letter per layer: f(ull), s(liding), l(atent), r(ecurrent), n(one)."""
    assert made.layers is not None
    return "".join(layer.kind.value[0] for layer in made.layers)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_headers_of_tiny_models_give_the_cards_their_writers_meant(tmp_path: Path, architecture: str) -> None:
    tiny = write_tiny_gguf(tmp_path, architecture)
    made = gguf_card(tiny.path)
    assert made.layers == tiny.card.layers
    assert made.weights == tiny.card.weights
    assert made.storage_size == tiny.card.storage_size
    assert (made.n_layers, made.hidden_size, made.vocab_size) == (
        tiny.card.n_layers,
        tiny.card.hidden_size,
        tiny.card.vocab_size,
    )


def test_weights_are_grouped_by_the_rank_that_holds_them(tmp_path: Path) -> None:
    made = gguf_card(tiny_llama(tmp_path / "tiny.gguf"))
    assert made.weights is not None
    assert made.weights.layer_bytes == (64, 192)
    assert made.weights.embedding_bytes == 128
    assert made.weights.output_bytes == 144
    assert made.weights.output_norm_bytes == 16
    assert made.weights.other_bytes == 8
    assert made.weights.tied_output is False
    assert made.storage_size.in_bytes == made.weights.total_bytes == 536
    assert made.artifact is not None
    assert made.artifact.size_bytes == (tmp_path / "tiny.gguf").stat().st_size
    assert made.artifact.sha256 is None


def test_the_card_says_what_the_header_says(tmp_path: Path) -> None:
    made = gguf_card(
        tiny_llama(tmp_path / "file-name.gguf", general__name="Tiny Llama 2 (test)", general__file_type=15)
    )
    assert made.model_id == "Tiny-Llama-2-test"
    assert made.quantization == "Q4_K_M"
    assert made.context_length == 128
    assert made.feed_forward_size == 8
    assert made.vocab_size == 8
    assert made.gguf_file == "file-name.gguf"
    assert made.tasks == ("TextGeneration",)
    assert made.supports_tensor is False
    assert made.is_custom is True
    assert made.placement.compatible_backends == made.placement.backend_preference
    assert made.placement.backend_preference[:2] == ("llama_server-cuda", "llama_cpp-cuda")
    assert made.placement.backend_preference[-1] == "llama_cpp-cpu"
    assert len(made.placement.backend_preference) == 10


def test_without_a_name_or_file_type_file_name_and_tensors_speak(tmp_path: Path) -> None:
    made = gguf_card(tiny_llama(tmp_path / "My model.gguf"))
    assert made.model_id == "My-model"
    assert made.quantization == "F32"


@pytest.mark.parametrize(
    ("architecture", "layers", "settings", "expected"),
    [
        (
            "llama",
            4,
            {"attention.sliding_window": 64},
            "ffff",
        ),  # llama.cpp ignores the window of this architecture
        ("phi3", 4, {"attention.sliding_window": 64}, "ffff"),
        ("gemma2", 4, {}, "sfsf"),
        ("gemma3", 7, {"attention.sliding_window": 64}, "sssssfs"),
        ("gemma3", 7, {}, "fffffff"),
        ("gemma3n", 22, {"attention.sliding_window": 64}, "ssssf" * 4 + "nn"),
        (
            "gemma4",
            5,
            {"attention.sliding_window": 64, "attention.sliding_window_pattern": [True] * 4 + [False]},
            "ssssf",
        ),
        (
            "gemma4",
            4,
            {
                "attention.sliding_window": 64,
                "attention.sliding_window_pattern": [True, False] * 2,
                "attention.shared_kv_layers": 2,
            },
            "sfnn",
        ),
        ("cohere2", 4, {"attention.sliding_window": 64}, "sssf"),
        ("gpt-oss", 4, {"attention.sliding_window": 64}, "sfsf"),
        ("gpt-oss", 6, {"attention.sliding_window": 64, "attention.sliding_window_pattern": 3}, "ssfssf"),
        ("exaone4", 4, {"attention.sliding_window": 64}, "ffff"),
        ("exaone4", 64, {}, "sssf" * 16),
        ("llama4", 4, {}, "sssf"),
        ("llama4", 4, {"attention.sliding_window": 0}, "ffff"),
        ("smallthinker", 4, {"attention.sliding_window": 64}, "fsss"),
        ("olmo2", 4, {}, "ffff"),
        ("glm4moe", 4, {"nextn_predict_layers": 1}, "fffn"),
        ("deci", 3, {"attention.head_count_kv": [2, 0, 2]}, "fnf"),
        ("qwen2", 2, {}, "ff"),
        (
            "deepseek2",
            2,
            {"attention.kv_lora_rank": 32},
            "ff",
        ),  # an old conversion: llama.cpp caches full heads
        (
            "deepseek2",
            2,
            {"attention.kv_lora_rank": 32, "attention.key_length_mla": 24, "rope.dimension_count": 8},
            "ll",
        ),
        ("bert", 2, {}, "nn"),
        ("gemma-embedding", 2, {}, "nn"),
    ],
)
def test_attention_layers(
    tmp_path: Path, architecture: str, layers: int, settings: dict[str, Any], expected: str
) -> None:
    made = card(tmp_path, architecture, {**ATTENTION, "block_count": layers, **settings})
    assert kinds(made) == expected


def test_windows_are_those_llama_cpp_uses(tmp_path: Path) -> None:
    def windows(architecture: str, layers: int, **settings: Any) -> set[int | None]:
        named = {key.replace("__", "."): value for key, value in settings.items()}
        made = card(tmp_path, architecture, {**ATTENTION, "block_count": layers, **named})
        return {layer.window_tokens for layer in made.layers or () if layer.kind is LayerKind.SLIDING}

    assert windows("gemma2", 2) == {4096}
    assert windows("gemma3", 6, attention__sliding_window=512) == {512}
    assert windows("llama4", 4) == {8192}
    assert windows("smallthinker", 4, attention__sliding_window=64) == {4096}
    assert windows("exaone4", 64) == {4096}


def test_gemma4_slides_with_heads_of_another_size(tmp_path: Path) -> None:
    settings = {
        **ATTENTION,
        "block_count": 2,
        "attention.head_count_kv": [4, 1],
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [True, False],
    }
    layers = card(tmp_path, "gemma4", settings).layers
    assert layers is not None
    assert [(layer.kv_heads, layer.key_dim, layer.value_dim) for layer in layers] == [
        (4, 256, 256),
        (1, 512, 512),
    ]


MAMBA2 = {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.group_count": 2}


@pytest.mark.parametrize(
    ("architecture", "settings", "expected", "states"),
    [
        ("mamba2", MAMBA2, "rrrr", (384, 1024)),
        ("mamba", {**MAMBA2, "ssm.group_count": 0}, "rrrr", (192, 1024)),
        (
            "jamba",
            {**MAMBA2, "ssm.group_count": 0, "attention.head_count_kv": [0, 0, 2, 0]},
            "rrfr",
            (192, 1024),
        ),
        (
            "nemotron_h",
            {**MAMBA2, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 64, 0, 0]},
            "rnfr",
            (384, 1024),
        ),
        ("qwen3next", MAMBA2, "rrrf", (384, 1024)),
        ("qwen35", {**MAMBA2, "full_attention_interval": 2}, "rfrf", (384, 1024)),
        ("qwen35", {**MAMBA2, "nextn_predict_layers": 1, "full_attention_interval": 3}, "rrfn", (384, 1024)),
        ("lfm2", {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]}, "rfrf", (1024, 0)),
        ("rwkv7", {"wkv.head_size": 64, "token_shift_count": 2}, "rrrr", (1024, 32768)),
        (
            "kimi-linear",
            {
                "ssm.conv_kernel": 4,
                "kda.head_dim": 128,
                "attention.head_count_kv": [0, 0, 0, 1],
                "attention.kv_lora_rank": 512,
                "attention.key_length_mla": 192,
                "rope.dimension_count": 64,
            },
            "rrrl",
            (9216, 131072),
        ),
    ],
)
def test_recurrent_layers(
    tmp_path: Path, architecture: str, settings: dict[str, Any], expected: str, states: tuple[int, int]
) -> None:
    made = card(tmp_path, architecture, {**ATTENTION, "block_count": 4, **settings})
    assert kinds(made) == expected
    assert {
        (layer.conv_state_elements, layer.recurrent_state_elements)
        for layer in made.layers or ()
        if layer.kind is LayerKind.RECURRENT
    } == {states}


def test_falcon_h1_has_both_in_every_layer(tmp_path: Path) -> None:
    made = card(tmp_path, "falcon-h1", {**ATTENTION, "block_count": 2, **MAMBA2})
    assert kinds(made) == "ff"
    assert {
        (layer.kv_heads, layer.conv_state_elements, layer.recurrent_state_elements)
        for layer in made.layers or ()
    } == {(2, 384, 1024)}


def test_an_unknown_architecture_has_weights_but_no_geometry(tmp_path: Path) -> None:
    made = card(tmp_path, "brand-new", {**ATTENTION, "block_count": 2})
    assert made.layers is None
    assert made.weights is not None
    assert made.weights.embedding_bytes == 128


def test_latent_attention_reports_the_heads_of_the_model(tmp_path: Path) -> None:
    settings = {
        **ATTENTION,
        "block_count": 2,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "rope.dimension_count": 64,
    }
    made = card(tmp_path, "deepseek2", settings)
    assert (made.num_attention_heads, made.num_key_value_heads, made.head_dim) == (8, 8, 192)
    assert {(layer.latent_dim, layer.rope_dim) for layer in made.layers or ()} == {(512, 64)}


@pytest.mark.parametrize(
    ("architecture", "pooling", "task", "capabilities"),
    [
        ("bert", 1, "TextEmbedding", ("embedding",)),
        ("bert", None, "TextEmbedding", ("embedding",)),
        ("qwen3", 3, "TextEmbedding", ("embedding",)),
        ("qwen3", 4, "TextEmbedding", ("embedding", "rerank")),
        ("qwen3", 0, "TextGeneration", ("text",)),
        ("qwen3", None, "TextGeneration", ("text",)),
    ],
)
def test_pooling_tells_embedding_models(
    tmp_path: Path, architecture: str, pooling: int | None, task: str, capabilities: tuple[str, ...]
) -> None:
    settings = {**ATTENTION, "block_count": 2} | ({} if pooling is None else {"pooling_type": pooling})
    made = card(tmp_path, architecture, settings)
    assert made.tasks == (task,)
    assert made.capabilities == capabilities


def test_experts_are_read(tmp_path: Path) -> None:
    settings = {
        **ATTENTION,
        "block_count": 2,
        "expert_count": 8,
        "expert_used_count": 2,
        "feed_forward_length": 512,
        "expert_feed_forward_length": 128,
    }
    made = card(tmp_path, "qwen3moe", settings)
    assert (made.n_experts, made.n_experts_used, made.feed_forward_size) == (8, 2, 128)


@pytest.mark.parametrize(
    ("architecture", "settings", "general", "words"),
    [
        ("clip", {"block_count": 2}, {}, "is a vision projector, not a model"),
        ("llama", LLAMA, {"general__type": "adapter"}, "is a GGUF of type 'adapter', not a model"),
        ("llama", {}, {}, "lacks llama.block_count"),
        ("llama", {**LLAMA, "block_count": 0}, {}, "llama.block_count is 0; expected 1 to 1024 layers"),
        ("llama", {**LLAMA, "block_count": 4_000_000_000}, {}, "block_count is 4000000000"),
        ("llama", {**LLAMA, "block_count": "two"}, {}, "block_count is 'two'; expected a whole number"),
        (
            "llama",
            {**LLAMA, "attention.head_count_kv": [1]},
            {},
            "'a list of 1'; expected one number per layer",
        ),
        ("llama", {"block_count": 2, "embedding_length": 8}, {}, "lacks llama.attention.head_count"),
        ("llama", {**LLAMA, "embedding_length": 0}, {}, "embedding_length is 0; expected a positive number"),
        ("jamba", {**LLAMA, "attention.head_count_kv": [0, 1]}, {}, "lacks jamba.ssm.conv_kernel"),
        ("gemma4", {**LLAMA, "attention.sliding_window": 8}, {}, "sliding_window_pattern is None"),
    ],
)
def test_what_is_no_model_is_refused(
    tmp_path: Path, architecture: str, settings: dict[str, Any], general: dict[str, Any], words: str
) -> None:
    with pytest.raises(GgufError, match=words):
        card(tmp_path, architecture, settings, **general)


def test_a_vocabulary_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="vocabulary-only"):
        gguf_card(write_gguf(tmp_path / "vocab.gguf", "llama", LLAMA, {}))

"""Cards from folders with safetensors and ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from catalog import configs
from catalog.checkpoints import LLAMA, LLAMA_TENSORS, write_checkpoint
from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.errors import HfConfigError
from wharfinger.catalog.hf_card import hf_card


def made(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> ModelCard:
    return hf_card(write_checkpoint(folder, config, tensors))


def grouped(card: ModelCard) -> tuple[tuple[int, ...], int, int, int, int, bool]:
    assert card.weights is not None
    weights = card.weights
    return (
        weights.layer_bytes,
        weights.embedding_bytes,
        weights.output_bytes,
        weights.output_norm_bytes,
        weights.other_bytes,
        weights.tied_output,
    )


def test_llama(tmp_path: Path) -> None:
    card = made(tmp_path / "Tiny-Llama", LLAMA, LLAMA_TENSORS)
    assert card.model_id == "Tiny-Llama"
    assert grouped(card) == ((128, 384), 160, 176, 16, 0, False)
    assert card.storage_size.in_bytes == 848
    assert (card.n_layers, card.hidden_size, card.num_attention_heads, card.num_key_value_heads) == (
        2,
        8,
        2,
        1,
    )
    assert (card.head_dim, card.feed_forward_size, card.vocab_size, card.context_length) == (4, 16, 10, 64)
    assert (card.architecture, card.family, card.quantization) == ("LlamaForCausalLM", "llama", "bf16")
    assert card.supports_tensor is True
    assert card.gguf_file is None
    assert card.placement.backend_preference[0] == "vllm-cuda"
    assert card.layers is not None


def test_a_missing_head_means_the_embedding_is_used_again(tmp_path: Path) -> None:
    tensors = {name: shape for name, shape in LLAMA_TENSORS.items() if name != "lm_head.weight"}
    assert grouped(made(tmp_path, LLAMA, tensors)) == ((128, 384), 160, 16, 16, 0, True)


def test_vision_parts_go_with_the_first_rank_and_draft_heads_are_left_out(tmp_path: Path) -> None:
    extra = {
        "model.visual.blocks.0.attn.weight": (3,),
        "vision_tower.encoder.layers.0.weight": (5,),
        "multi_modal_projector.linear.weight": (2,),
        "mtp.layers.0.weight": (100,),
        "model.layers.2.eh_proj.weight": (100,),
    }
    assert grouped(made(tmp_path, LLAMA, LLAMA_TENSORS | extra)) == ((128, 384), 180, 176, 16, 0, False)


def test_whisper_puts_decoder_layers_after_the_encoder(tmp_path: Path) -> None:
    config = {**configs.WHISPER_LARGE_V3, "encoder_layers": 1, "decoder_layers": 2}
    tensors = {
        "model.encoder.layers.0.self_attn.q_proj.weight": (1,),
        "model.decoder.layers.0.self_attn.q_proj.weight": (2,),
        "model.decoder.layers.1.self_attn.q_proj.weight": (3,),
        "model.decoder.embed_tokens.weight": (4,),
        "model.decoder.layer_norm.weight": (5,),
        "model.encoder.conv1.weight": (6,),
    }
    card = made(tmp_path, config, tensors)
    assert grouped(card) == ((2, 4, 6), 8, 10, 10, 12, True)
    assert card.tasks == ("SpeechToText",)
    assert card.context_length == 448
    assert card.supports_tensor is False


def test_bert_is_an_embedding_model_without_a_head(tmp_path: Path) -> None:
    tensors = {
        "embeddings.word_embeddings.weight": (6,),
        "encoder.layer.11.attention.self.query.weight": (7,),
        "pooler.dense.weight": (8,),
    }
    card = made(tmp_path, configs.BGE_SMALL, tensors)
    assert grouped(card) == ((*(0,) * 11, 14), 12, 16, 16, 0, False)
    assert card.tasks == ("TextEmbedding",)
    assert card.capabilities == ("embedding",)


@pytest.mark.parametrize(
    ("settings", "label", "first_backend", "tensor"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "4bit", "mlx-metal", True),
        (
            {"quantization": {"group_size": 64, "bits": 8}, "architectures": ["Qwen3ForCausalLM"]},
            "8bit",
            "mlx-metal",
            False,
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq-4bit", "vllm-cuda", True),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8", "vllm-cuda", True),
        ({"dtype": None}, "fp16", "vllm-cuda", True),
        ({"dtype": None, "torch_dtype": "float32"}, "fp32", "vllm-cuda", True),
    ],
)
def test_the_form_of_storage_decides_label_and_backends(
    tmp_path: Path, settings: dict[str, Any], label: str, first_backend: str, tensor: bool
) -> None:
    card = made(tmp_path, {**LLAMA, **settings}, LLAMA_TENSORS)
    assert card.quantization == label
    assert card.placement.compatible_backends[0] == first_backend
    assert card.supports_tensor is tensor
    assert ("mlx-metal" in card.placement.compatible_backends) == ("quantization_config" not in settings)


def test_an_unknown_architecture_has_weights_but_no_geometry(tmp_path: Path) -> None:
    card = made(tmp_path, {**LLAMA, "architectures": ["BrandNewForCausalLM"]}, LLAMA_TENSORS)
    assert card.layers is None
    assert card.supports_tensor is False
    assert grouped(card)[0] == (128, 384)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"There is no .*config\.json"),
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "is missing"),
    ],
)
def test_a_bad_config_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    save_file({"a": np.zeros(1, np.float16)}, tmp_path / "model.safetensors")
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(HfConfigError, match=words):
        hf_card(tmp_path)

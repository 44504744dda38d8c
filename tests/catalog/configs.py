"""``config.json`` fields of public models, as their makers published them, cut to what geometry depends on."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def llama(layers: int, hidden: int, heads: int, kv_heads: int, **more: Any) -> Config:
    """The fields most decoders share."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **more,
    }


LLAMA_3_1_8B = llama(
    32, 4096, 32, 8, intermediate_size=14336, vocab_size=128256, max_position_embeddings=131072
)
LLAMA_3_3_70B = llama(80, 8192, 64, 8)
MISTRAL_7B_V01 = llama(32, 4096, 32, 8, architectures=["MistralForCausalLM"], sliding_window=4096)
MISTRAL_7B_V03 = llama(32, 4096, 32, 8, architectures=["MistralForCausalLM"], sliding_window=None)
QWEN2_5_7B = llama(
    28,
    3584,
    28,
    4,
    architectures=["Qwen2ForCausalLM"],
    sliding_window=131072,
    use_sliding_window=False,
    max_window_layers=28,
)
QWEN3_0_6B = llama(
    28, 1024, 16, 8, architectures=["Qwen3ForCausalLM"], head_dim=128, use_sliding_window=False
)
QWEN3_30B_A3B = llama(48, 2048, 32, 4, architectures=["Qwen3MoeForCausalLM"], head_dim=128, num_experts=128)
QWEN3_NEXT_80B = llama(
    48,
    2048,
    16,
    2,
    architectures=["Qwen3NextForCausalLM"],
    head_dim=256,
    full_attention_interval=4,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
)
QWEN3_5_4B: Config = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": llama(
        32,
        2560,
        16,
        4,
        model_type="qwen3_5_text",
        architectures=None,
        head_dim=256,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
}
GEMMA_2_9B = llama(42, 3584, 16, 8, architectures=["Gemma2ForCausalLM"], head_dim=256, sliding_window=4096)
GEMMA_3_27B: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": llama(62, 5376, 32, 16, architectures=None, head_dim=128, sliding_window=1024),
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152},
}
GEMMA_3_270M = llama(
    18,
    640,
    4,
    1,
    architectures=["Gemma3ForCausalLM"],
    head_dim=256,
    sliding_window=512,
    layer_types=[*["sliding_attention"] * 5, "full_attention"] * 3,
)
DEEPSEEK_V3 = llama(
    61, 7168, 128, 128, architectures=["DeepseekV3ForCausalLM"], kv_lora_rank=512, qk_rope_head_dim=64
)
DEEPSEEK_V2_LITE = llama(
    27, 2048, 16, 16, architectures=["DeepseekV2ForCausalLM"], kv_lora_rank=512, qk_rope_head_dim=64
)
KIMI_K2 = llama(
    61, 7168, 64, 64, architectures=["DeepseekV3ForCausalLM"], kv_lora_rank=512, qk_rope_head_dim=64
)
GPT_OSS_20B = llama(
    24,
    2880,
    64,
    8,
    architectures=["GptOssForCausalLM"],
    head_dim=64,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
)
GPT_OSS_120B = llama(36, 2880, 64, 8, architectures=["GptOssForCausalLM"], head_dim=64, sliding_window=128)
MAMBA_2_8B: Config = {
    "architectures": ["MambaForCausalLM"],
    "num_hidden_layers": 64,
    "hidden_size": 2560,
    "intermediate_size": 5120,
    "state_size": 16,
    "conv_kernel": 4,
}
CODESTRAL_MAMBA_7B: Config = {
    "architectures": ["Mamba2ForCausalLM"],
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "expand": 2,
    "num_heads": 128,
    "head_dim": 64,
    "n_groups": 8,
    "state_size": 128,
    "conv_kernel": 4,
}
JAMBA_V01 = llama(
    32,
    4096,
    32,
    8,
    architectures=["JambaForCausalLM"],
    attn_layer_period=8,
    attn_layer_offset=4,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_expand=2,
)
NEMOTRON_NANO_9B_V2 = llama(
    56,
    4480,
    40,
    8,
    architectures=["NemotronHForCausalLM"],
    head_dim=128,
    hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    mamba_num_heads=128,
    mamba_head_dim=80,
    n_groups=8,
    ssm_state_size=128,
    conv_kernel=4,
)
GRANITE_4_H_TINY = llama(
    40,
    1536,
    12,
    4,
    architectures=["GraniteMoeHybridForCausalLM"],
    layer_types=["attention" if index in (5, 15, 25, 35) else "mamba" for index in range(40)],
    mamba_n_heads=48,
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_expand=2,
)
LFM2_1_2B = llama(
    16,
    2048,
    32,
    8,
    architectures=["Lfm2ForCausalLM"],
    full_attn_idxs=[2, 5, 8, 10, 12, 14],
    conv_L_cache=3,
)
FALCON_H1_0_5B = llama(
    36,
    1024,
    8,
    2,
    architectures=["FalconH1ForCausalLM"],
    head_dim=64,
    mamba_d_ssm=1536,
    mamba_n_heads=24,
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
)
COMMAND_R7B = llama(
    32, 4096, 32, 8, architectures=["Cohere2ForCausalLM"], sliding_window=4096, sliding_window_pattern=4
)
LLAMA_4_SCOUT: Config = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": llama(48, 5120, 40, 8, architectures=None, head_dim=128, attention_chunk_size=8192),
}
LLAMA_3_2_11B_VISION: Config = {
    "architectures": ["MllamaForConditionalGeneration"],
    "text_config": llama(
        40, 4096, 32, 8, architectures=None, cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38]
    ),
    "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4},
}
WHISPER_LARGE_V3: Config = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "num_hidden_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
T5_BASE: Config = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "num_layers": 12,
    "num_decoder_layers": 12,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_heads": 12,
    "n_positions": 512,
}
BGE_SMALL: Config = {
    "architectures": ["BertModel"],
    "num_hidden_layers": 12,
    "hidden_size": 384,
    "num_attention_heads": 12,
}
DEEPSEEK_V3_2 = llama(61, 7168, 128, 128, architectures=["DeepseekV32ForCausalLM"], kv_lora_rank=512)

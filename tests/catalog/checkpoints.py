"""Tiny checkpoints as transformers writes them: a folder with safetensors and ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from catalog import configs

LLAMA = configs.llama(
    2, 8, 2, 1, vocab_size=10, intermediate_size=16, max_position_embeddings=64, dtype="bfloat16"
)
LLAMA_TENSORS = {
    "model.embed_tokens.weight": (10, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.1.self_attn.q_proj.weight": (8, 8),
    "model.layers.1.mlp.up_proj.weight": (16, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (10, 8),
}


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> Path:
    """Write the folder, with tensors of zeros in F16."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: np.zeros(shape, np.float16) for name, shape in tensors.items()}, folder / "model.safetensors"
    )
    return folder

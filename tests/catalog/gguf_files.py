"""Small GGUF files, written with the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ELEMENT_BYTES = 4


def write_gguf(
    path: Path,
    architecture: str,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Sequence[int]] | None = None,
    **general: Any,
) -> Path:
    """Write a file with ``ARCH.*`` settings, ``general.*`` values and zeroed float32 tensors of these shapes."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {f"{architecture}.{key}": value for key, value in settings.items()}.items():
        _add(writer, key, value)
    for key, value in general.items():
        _add(writer, key.replace("__", "."), value)
    for name, shape in ({"token_embd.weight": (8, 4)} if tensors is None else tensors).items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


LLAMA = {
    "block_count": 2,
    "embedding_length": 4,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "context_length": 128,
    "feed_forward_length": 8,
}

LLAMA_TENSORS = {
    "token_embd.weight": (8, 4),
    "blk.0.attn_q.weight": (4, 4),
    "blk.1.attn_q.weight": (4, 4),
    "blk.1.ffn_up.weight": (8, 4),
    "output_norm.weight": (4,),
    "output.weight": (8, 4),
    "rope_freqs.weight": (2,),
}


def tiny_llama(path: Path, **general: Any) -> Path:
    """Two layers, an output head of its own, one tensor that belongs to no layer."""
    return write_gguf(path, "llama", LLAMA, LLAMA_TENSORS, **general)

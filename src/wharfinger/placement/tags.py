"""Backend tags that may be asked for or described: an engine, or an engine with its compute."""

from __future__ import annotations

import difflib
from typing import Final

_COMPUTES_OF_ENGINE: Final = {
    "llama_cpp": ("cuda", "rocm", "metal", "vulkan", "cpu"),
    "llama_server": ("cuda", "rocm", "metal", "vulkan", "cpu"),
    "vllm": ("cuda", "rocm", "cpu"),
    "sglang": ("cuda", "rocm"),
    "mlx": ("metal",),
    "mlx_audio": ("metal",),
    "audio_cpp": ("cuda", "rocm", "metal", "vulkan", "cpu"),
    "comfy": ("cuda", "rocm", "metal"),
}
KNOWN_TAGS: Final = (
    *_COMPUTES_OF_ENGINE,
    *(f"{engine}-{compute}" for engine, computes in _COMPUTES_OF_ENGINE.items() for compute in computes),
)
"""Every tag; one that is only an engine means each compute of it."""


def accepted_instead(tag: str) -> str | None:
    """What is accepted, and which tag may have been meant; ``None`` for a known tag."""
    if tag in KNOWN_TAGS:
        return None
    (close,) = difflib.get_close_matches(tag, KNOWN_TAGS, n=1, cutoff=0.0)
    return f"an engine ({', '.join(_COMPUTES_OF_ENGINE)}), or one with its compute; for {tag!r} maybe {close}"

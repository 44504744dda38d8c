"""Windows: their bounds, and which engines reserve theirs when they load."""

from __future__ import annotations

from wharfinger.placement.memory.backends import engine_of
from wharfinger.placement.memory.footprint import rule_of
from wharfinger.placement.memory.vllm import WINDOW_CAP_TOKENS

MIN_CONTEXT_TOKENS = 256
MAX_CONTEXT_TOKENS = 1_048_576
"""Bounds of a window in the instances contract."""


def reserves_context_at_load(backend: str) -> bool:
    """Whether the engine allocates the whole window when it loads the model (MLX does not: it grows)."""
    return rule_of(backend).reserves_context


def engine_window_cap(backend: str) -> int | None:
    """Largest window an engine is given whatever fits: 32,768 for vLLM, else ``None``."""
    return WINDOW_CAP_TOKENS if engine_of(backend) == "vllm" else None

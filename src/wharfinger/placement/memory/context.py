"""Windows: the largest that fits, and which engines reserve theirs when they load."""

from __future__ import annotations

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.memory.backends import engine_of
from wharfinger.placement.memory.footprint import footprint, rule_of
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import profile_of
from wharfinger.placement.memory.vllm import WINDOW_CAP_TOKENS
from wharfinger.placement.types import ServingSettings

MIN_CONTEXT_TOKENS = 256
MAX_CONTEXT_TOKENS = 1_048_576
"""Bounds of a window in the instances contract."""
DEFAULT_CONTEXT_TOKENS = 32_768
"""Window stamped when nobody asked for one and the engine reserves it at load."""


def reserves_context_at_load(backend: str) -> bool:
    """Whether the engine allocates the whole window when it loads the model (MLX does not: it grows)."""
    return rule_of(backend).reserves_context


def engine_window_cap(backend: str) -> int | None:
    """Largest window an engine is given whatever fits: 32,768 for vLLM, else ``None``."""
    return WINDOW_CAP_TOKENS if engine_of(backend) == "vllm" else None


def largest_context(
    card: ModelCard,
    backend: str,
    shape: ShardShape,
    budget_bytes: int,
    settings: ServingSettings,
    *,
    host_budget_bytes: int | None = None,
) -> int | None:
    """The largest window in tokens whose footprint fits the budget, by the engine's own rule.

    Searched between 256 tokens and the card's advertised maximum (1,048,576 where it has none); the footprint never
    shrinks with the window, so halving the interval finds the exact answer.

    Args:
        budget_bytes: usable bytes of the device.
        host_budget_bytes: usable RAM for the host parts; ``None`` leaves them out.

    Returns:
        ``0`` when not even the smallest window fits, ``None`` when a window means nothing to the model.
    """
    profile = profile_of(card)
    if not profile.has_token_cache:
        return None
    highest = profile.max_window_tokens or MAX_CONTEXT_TOKENS

    def fits(context_tokens: int) -> bool:
        need = footprint(card, backend, shape, context_tokens, settings)
        host_fits = host_budget_bytes is None or need.host_bytes <= host_budget_bytes
        return need.device_bytes <= budget_bytes and host_fits

    if fits(highest):
        return highest
    low, high = min(MIN_CONTEXT_TOKENS, highest), highest
    if not fits(low):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low

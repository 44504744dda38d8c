"""The largest window by trial, to compare the planner's arithmetic with."""

from __future__ import annotations

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.memory import MAX_CONTEXT_TOKENS, MIN_CONTEXT_TOKENS, ShardShape, footprint
from wharfinger.placement.memory.profile import profile_of
from wharfinger.placement.types import ServingSettings


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
    if not profile_of(card).has_token_cache:
        return None
    highest = card.context_length or MAX_CONTEXT_TOKENS

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

"""The context window: what is aimed at, the least that makes a plan, and what a launch would stamp."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import memory
from wharfinger.placement.types import PlanRequest

PLANNING_CONTEXT_TOKENS: Final = 8192
"""A plan nobody asked a window of must hold at least this much (or the card's whole window if that is less)."""
_STEP_TOKENS: Final = 256
"""Engines size caches in steps of this many tokens, or in steps that divide it."""


@dataclass(frozen=True, slots=True)
class WindowGoal:
    """Windows to try for one backend, in tokens."""

    limit: int | None
    """Card and engine together; ``None`` when the card does not know its own."""
    requested: int | None
    reserves: bool
    """The engine takes the memory of the whole window when it loads."""
    default: int

    @property
    def want(self) -> int | None:
        """The window to stamp if memory allows; ``None`` is *as large as fits*."""
        if self.requested is not None:
            return self.requested
        if self.reserves:
            return self.default if self.limit is None else min(self.default, self.limit)
        return self.limit

    @property
    def floor(self) -> int:
        """The window that must fit for the plan to count."""
        if self.requested is not None:
            return self.requested
        return min(PLANNING_CONTEXT_TOKENS, PLANNING_CONTEXT_TOKENS if self.want is None else self.want)

    @property
    def charges(self) -> tuple[int, ...]:
        """Windows whose memory is charged, in the order they are tried.

        Engines that reserve at load are charged what they will serve. Those that grow are charged the planning
        window, or the window asked for: charging their whole ceiling would leave no room beside them.
        """
        if self.reserves and self.want is not None and self.want > self.floor:
            return (self.want, self.floor)
        return (self.floor,)


def goal_for(card: ModelCard, tag: str, request: PlanRequest) -> WindowGoal:
    """The windows to try for a backend. Whether the request exceeds ``limit`` is for the caller to check."""
    limit = card_limit(card)
    engine = memory.engine_window_cap(tag)
    if engine is not None:
        limit = engine if limit is None else min(limit, engine)
    return WindowGoal(
        limit, request.context_tokens, memory.reserves_context_at_load(tag), request.default_context_tokens
    )


def card_limit(card: ModelCard) -> int | None:
    """The card's own largest window, at most what the contract can express; ``None`` when it names none."""
    limits = [limit for limit in (card.context_length, card.placement.max_context_tokens) if limit]
    return min(*limits, memory.MAX_CONTEXT_TOKENS) if limits else None


def weights_unknown(card: ModelCard) -> bool:
    """Whether the card says nothing of what its weights take; such a model is never planned at zero bytes."""
    return card.storage_size.in_bytes == 0 and (card.weights is None or card.weights.total_bytes == 0)


def largest_window(slack: Callable[[int], int], fits: int, highest: int, probed: list[int]) -> int:
    """Largest window of ``fits``..``highest`` with ``slack(window) >= 0``; ``slack`` never grows with the window.

    Args:
        slack: bytes left at a window.
        fits: a window known to fit.
        probed: sorted windows looked at before for the same shape, extended here. Nodes that differ only in their
            budget then find each other's windows already sized.
    """
    if fits >= highest or slack(highest) >= 0:
        return highest
    low, high = _bracket(slack, probed, fits, highest)
    low_slack, high_slack = slack(low), slack(high)
    while high - low > _STEP_TOKENS:
        guess = low + (high - low) * low_slack // max(1, low_slack - high_slack)
        guess = min(max(low + _STEP_TOKENS, guess), high - 1) // _STEP_TOKENS * _STEP_TOKENS
        if guess <= low:
            break
        value = slack(guess)
        _remember(probed, guess)
        if value < 0:
            high, high_slack = guess, value
            continue
        low, low_slack = guess, value
        beyond = min(guess + _STEP_TOKENS, high)
        value = slack(beyond)
        _remember(probed, beyond)
        if value < 0:
            high, high_slack = beyond, value
        else:
            low, low_slack = beyond, value
    if high - low > 1 and slack(low + 1) < 0:
        _remember(probed, low + 1)
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if slack(middle) >= 0:
            low = middle
        else:
            high = middle
    return low


def _bracket(slack: Callable[[int], int], probed: list[int], fits: int, highest: int) -> tuple[int, int]:
    """The closest windows around the answer among those probed before."""
    low, high = bisect_left(probed, fits), bisect_left(probed, highest)
    first, last = low, high
    while low < high:
        middle = (low + high) // 2
        if slack(probed[middle]) >= 0:
            low = middle + 1
        else:
            high = middle
    return (probed[low - 1] if low > first else fits), (probed[low] if low < last else highest)


def _remember(probed: list[int], window: int) -> None:
    at = bisect_left(probed, window)
    if at == len(probed) or probed[at] != window:
        insort(probed, window)

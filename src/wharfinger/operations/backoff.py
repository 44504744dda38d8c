"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


def _spread() -> float:
    return random.uniform(0.75, 1.25)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential from ``base_s`` to ``cap_s`` seconds, spread by a random factor and never above the cap."""

    base_s: float = 1.0
    cap_s: float = 60.0
    jitter: Callable[[], float] = _spread
    """Gives a factor around 1 for each delay."""

    def delay_s(self, failures: int) -> float:
        """Seconds after the ``failures``-th failure, which counts from 1.

        Above the cap the spread is folded back below it, so that long outages do not end in one burst.
        """
        plain = min(self.cap_s, self.base_s * 2.0 ** min(max(failures, 1) - 1, 32))
        spread = plain * self.jitter()
        return min(spread, max(0.0, 2 * self.cap_s - spread))

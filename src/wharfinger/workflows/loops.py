"""Background work that never ends: a fault is logged, and the next round tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from wharfinger.store.errors import StoreUnavailable

MAX_PAUSE_S = 30.0

log = structlog.get_logger(__name__)


async def forever(
    name: str, step: Callable[[], Awaitable[object]], every_s: float, *, max_pause_s: float = MAX_PAUSE_S
) -> None:
    """Run ``step`` every ``every_s`` seconds until cancelled.

    Whatever it raises is logged and tried again, at pauses that grow up to ``max_pause_s``: a database that was away
    for a minute must not end the watch over the runners for good.
    """
    failures = 0
    while True:
        try:
            await step()
            failures = 0
        except StoreUnavailable as error:
            failures += 1
            log.warning("background work waits for the database", loop=name, reason=str(error))
        except Exception as error:
            failures += 1
            log.error("background work failed, trying again", loop=name, exc_info=error)
        await asyncio.sleep(min(every_s * 2 ** min(failures, 6), max(every_s, max_pause_s)))

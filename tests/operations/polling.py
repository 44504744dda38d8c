"""Waiting for something that another task or process brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wharfinger.operations.model import Operation, OperationState
from wharfinger.operations.port import WorkStore

_PATIENCE_S = 60


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds; a minute later it never will."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def reached(store: WorkStore, operation_id: str, *states: OperationState) -> Operation:
    """The operation, once it is in one of ``states`` (any terminal one if none is named)."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            operation = await store.get(operation_id)
            if operation.state in states or (not states and operation.state.terminal):
                return operation
            await asyncio.sleep(0.01)

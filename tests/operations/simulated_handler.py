"""What the simulator's operations do: make a resource, take steps, and meet scripted trouble on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operations.invariants import reserved
from wharfinger.operations.handler import OperationContext
from wharfinger.operations.model import PermanentError, RetryableError, Waiting

if TYPE_CHECKING:
    from operations.simulator import Process

LEASE_S = 10.0


class Scripted:
    """A handler that does what its operation's request says, in the way the rules ask of every handler."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Make one resource, take some steps, and meet the scripted waits and errors on the way."""
        left = self._left(context)
        key = await self._ensure(context)
        for number in range(context.operation.request["steps"]):
            if context.cancelled:
                return None
            if f"step-{number}" in context.steps:
                continue
            self._meet(left)
            await context.sleep(self._world.rng.uniform(0.0, LEASE_S))
            await context.checkpoint(f"step-{number}", progress=10 * number)
        self._meet(left)
        return {"key": key}

    async def cleanup(self, context: OperationContext) -> None:
        """Delete what the submitter reserved, and the resource if there can be one."""
        left = self._left(context)
        await context.sleep(self._world.rng.uniform(0.0, LEASE_S))
        if _take(left, "cleanup_errors"):
            raise RetryableError("cleanup_failed", f"not gone yet ({left['cleanup_errors']} to go)")
        self._world.provider.pop(reserved(context.operation.operation_id), None)
        identity = context.steps.get("resource.identity")
        if identity is not None and identity.payload is not None:
            await self._process.outside("delete")
            if self._world.provider.pop(identity.payload["key"], None):
                self._world.note(f"{self._process.owner} deleted {identity.payload['key']}")

    async def _ensure(self, context: OperationContext) -> str:
        fresh = f"{context.operation.operation_id}-{self._world.rng.getrandbits(32):08x}"
        key = str((await context.persist_identity("resource", {"key": fresh}))["key"])
        await self._process.outside("create")
        if key not in self._world.provider:
            self._world.provider[key] = context.operation.operation_id
            self._world.created.append(key)
            self._world.note(f"{self._process.owner} created {key}")
        return key

    def _left(self, context: OperationContext) -> dict[str, int]:
        script: dict[str, int] = context.operation.request["script"]
        return self._world.left.setdefault(context.operation.operation_id, dict(script))

    def _meet(self, left: dict[str, int]) -> None:
        if self._world.hit(0.5):
            return
        if _take(left, "waits"):
            raise Waiting("capacity", "none yet", retry_after_s=self._world.rng.uniform(0.5, 20.0))
        if _take(left, "errors"):
            raise RetryableError("busy", "try again")
        if _take(left, "bugs"):
            raise KeyError("a bug")
        if _take(left, "refusals"):
            raise PermanentError("refused", "never")


def _take(left: dict[str, int], what: str) -> bool:
    if left[what] == 0:
        return False
    left[what] -= 1
    return True

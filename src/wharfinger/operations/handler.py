"""What a handler sees: a small context, and the registry that names handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from wharfinger.operations.model import Lease, Operation, OperationStep


class OperationContext(Protocol):
    """Given to a handler for one attempt. Every write is fenced: a lost lease raises ``LeaseLost``."""

    @property
    def operation(self) -> Operation:
        """The operation as it was claimed."""
        ...

    @property
    def outcome(self) -> Operation:
        """The operation as this attempt last saw it; during cleanup its error and what the cleanup leads to."""
        ...

    @property
    def lease(self) -> Lease:
        """What a handler's own transactions are fenced with; see ``OperationStore.hold``."""
        ...

    @property
    def cancelled(self) -> bool:
        """True once somebody asked to cancel."""
        ...

    @property
    def steps(self) -> Mapping[str, OperationStep]:
        """Checkpoints so far, those of earlier attempts included."""
        ...

    async def checkpoint(
        self,
        step: str,
        status: str = "succeeded",
        *,
        payload: dict[str, Any] | None = None,
        progress: int | None = None,
        message: str = "",
    ) -> None:
        """Record a step, its event and the progress in one transaction."""
        ...

    async def persist_identity(self, step: str, identity: dict[str, Any]) -> dict[str, Any]:
        """Write an external identity once, *before* the first outside call that uses it.

        Returns the identity that is stored: on a later attempt the first one written, whatever is passed.
        """
        ...

    async def sleep(self, delay_s: float) -> None:
        """Sleep while the lease is kept; wakes early, without raising, when cancel is requested."""
        ...


class Handler(Protocol):
    """Re-entrant work of one kind: every attempt starts from discovery, never from memory."""

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Do the work; the returned mapping becomes the operation's result."""
        ...

    async def cleanup(self, context: OperationContext) -> None:
        """Undo what ``run`` may have done; called after cancel, permanent failure and exhaustion, until it
        returns without raising."""
        ...

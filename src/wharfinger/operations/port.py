"""What workers, feeds and schedules need of a store of operations.

:class:`wharfinger.operations.store.OperationStore` is the one that people use. The tests hold a second one in memory to
the same contract, and drive the real worker against it under simulated time, faults and crashes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.model import Lease, NewOperation, Operation, OperationEvent, OperationStep
from wharfinger.operations.signals import Signals


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker offers to take."""

    owner: str
    kinds: Collection[str]
    affinities: Collection[str]
    limit: int
    lease_s: float


class WorkStore(Protocol):
    """Operations, behind transactions. Every method may raise ``StoreUnavailable``."""

    @property
    def signals(self) -> Signals:
        """Wake-ups about commits made through this object."""
        ...

    async def submit(self, new: NewOperation) -> tuple[Operation, bool]:
        """Enqueue, or find what the same idempotency key made; True when it is new. Raises ``Conflict``."""
        ...

    async def get(self, operation_id: str) -> Operation:
        """The operation. Raises ``UnknownOperation``."""
        ...

    async def steps(self, operation_id: str) -> Sequence[OperationStep]:
        """Its checkpoints, in the order in which they were first written or last changed."""
        ...

    async def events(
        self, operation_id: str, after_sequence: int = 0, limit: int = 100
    ) -> Sequence[OperationEvent]:
        """Its events with a higher sequence than ``after_sequence``, in order, at most ``limit``."""
        ...

    async def request_cancel(self, operation_id: str) -> Operation:
        """Ask that it stop, and return it as it then is. Raises ``UnknownOperation``."""
        ...

    async def claim(self, request: ClaimRequest) -> Sequence[Operation]:
        """Lease due operations to the owner, oldest due first, those of dead holders included."""
        ...

    async def apply(self, lease: Lease, rule: Rule) -> Change:
        """Apply ``rule`` in one transaction if ``lease`` is the newest and has not run out by the store's clock.

        Raises ``LeaseLost``, and then nothing has changed.
        """
        ...

    async def reap(self, limit: int = 100) -> int:
        """Take operations away from holders whose lease has run out, whatever their kind; returns how many."""
        ...

    async def prune(self, retention_s: float, limit: int = 1000) -> int:
        """Delete operations that finished more than ``retention_s`` seconds ago; returns how many."""
        ...

    async def now(self) -> datetime:
        """The store's clock, which all replicas share."""
        ...

"""What a rule of :mod:`wharfinger.operations.transitions` says, and what a rule is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from wharfinger.operations.model import Operation, OperationStep


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event to append; the store gives it the next sequence number and the time."""

    type: str
    message: str
    level: str = "info"
    payload: dict[str, Any] | None = None

    def told(self, operation: Operation) -> dict[str, Any]:
        """The payload as it is stored: with the ``progress`` and ``state`` that ``operation`` has after the change."""
        return (self.payload or {}) | {"progress": operation.progress, "state": operation.state.value}


@dataclass(frozen=True, slots=True)
class Change:
    """What a rule says: the operation afterwards, the events to append, and the step as it then stands."""

    operation: Operation
    events: tuple[EventDraft, ...] = ()
    step: OperationStep | None = None


class Rule(Protocol):
    """One kind of change."""

    @property
    def step(self) -> str | None:
        """Name of the step the rule needs to see, or None."""
        ...

    def change(self, operation: Operation, now: datetime, stored: OperationStep | None) -> Change:
        """Apply to ``operation`` at the database's time ``now``; ``stored`` is the step named by :attr:`step`.

        Raises InvalidTransition when the operation is in a state the rule does not start from.
        """
        ...

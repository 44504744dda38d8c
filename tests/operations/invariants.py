"""What must hold after every single commit of a simulation, and at its end. Knows nothing of how the store decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from operations.memory_store import Record
from wharfinger.operations.model import Lease, Operation, OperationState
from wharfinger.operations.moves import TRANSITIONS

State = OperationState


def node_of(owner: str) -> str:
    """The machine of the worker process ``wNUMBER.SERIAL``."""
    return f"node-{owner.removeprefix('w').partition('.')[0]}"


def reserved(operation_id: str) -> str:
    """Key of what the submitter of an operation reserved for it in its own transaction."""
    return f"{operation_id}-reserved"


class Violation(Exception):
    """Something that must never happen has happened."""


class Invariants:
    """Watches the commits of one store."""

    def __init__(
        self, provider: dict[str, str], note: Callable[[str], None], clock: Callable[[], datetime]
    ) -> None:
        self._provider = provider
        self._note = note
        self._clock = clock
        self.violation: Violation | None = None
        """The first one; kept and not raised, because the code under test would take it for an error of a handler."""
        self._holders: dict[str, tuple[str | None, int, datetime | None]] = {}
        self._holders_before = self._holders
        self._identities: dict[str, object] = {}
        self._unresolved: dict[tuple[str, str], str] = {}
        self._first_due: dict[str, datetime | None] = {}

    def written_under(self, lease: Lease, before: Operation, now: datetime) -> None:
        """A write was accepted under ``lease``: it must have been the only holder's, and in time."""
        owner, generation, expires_at = self._holders_before.get(lease.operation_id, (None, 0, None))
        self._must(
            (lease.owner, lease.generation) == (owner, generation),
            f"{lease} wrote, {owner} g{generation} holds",
        )
        self._must(expires_at is not None and expires_at > now, f"{lease} wrote after its end {expires_at}")
        self._must(before.lease == lease, f"{lease} wrote over {before.lease}")

    def committed(self, before: Operation | None, record: Record) -> None:
        """The operation of ``record`` has just changed from ``before``."""
        after = record.operation
        self._holders_before = dict(self._holders)
        self._holders[after.operation_id] = (
            after.lease_owner,
            after.lease_generation,
            after.lease_expires_at,
        )
        self._check_events(record)
        self._check_shape(after)
        self._check_identity(record)
        if before is None:
            self._must(after.state is State.PENDING, f"{after.operation_id} began as {after.state}")
            self._open(after)
            self._first_due[after.operation_id] = after.next_attempt_at
            if after.cleanup_if_unstarted:
                self._provider[reserved(after.operation_id)] = after.operation_id
            return
        self._check_change(before, after)
        if any(event.type == "lease_expired" for event in record.events[before.last_sequence :]):
            in_time = before.lease_expires_at is not None and before.lease_expires_at <= self._clock()
            self._must(
                in_time, f"{after.operation_id} was taken from {before.lease_owner} before its lease ran out"
            )
        if after.state.terminal:
            self._unresolved.pop((after.resource_type, after.resource_name), None)
            self._check_end(after)

    def at_the_end(self, records: Iterable[Record], created: Collection[str]) -> None:
        """Everything has ended: what succeeded is there once, and nothing else is there."""
        self._must(len(created) == len(set(created)), f"a resource was created twice: {created}")
        expected: dict[str, str] = {}
        for operation in (record.operation for record in records):
            if operation.state is State.SUCCEEDED and operation.result is not None:
                expected[operation.result["key"]] = operation.operation_id
                if operation.cleanup_if_unstarted:
                    expected[reserved(operation.operation_id)] = operation.operation_id
        self._must(self._provider == expected, f"there is {self._provider}, there should be {expected}")

    def broke(self, what: str, error: BaseException) -> None:
        """Something raised what it never should."""
        self._must(False, f"{what} broke: {error!r}")

    def same_submission(self, first: Operation, again: tuple[Operation, bool]) -> None:
        """The second submission under a key found what the first one made."""
        found = (again[0].operation_id, again[1])
        self._must(found == (first.operation_id, False), f"{first.operation_id} submitted again gave {found}")

    def _open(self, operation: Operation) -> None:
        key = (operation.resource_type, operation.resource_name)
        self._must(key not in self._unresolved, f"{key} has two unresolved operations")
        self._unresolved[key] = operation.operation_id

    def _check_events(self, record: Record) -> None:
        sequences = [event.sequence for event in record.events]
        gapless = sequences == list(range(1, record.operation.last_sequence + 1))
        self._must(gapless, f"event sequences {sequences}, last is {record.operation.last_sequence}")

    def _check_shape(self, operation: Operation) -> None:
        held = operation.lease_owner is not None
        due = (operation.lease_expires_at is not None, operation.next_attempt_at is not None)
        expected = (held, not held and not operation.state.terminal)
        self._must(due == expected, f"{operation.operation_id} is {operation.state}, held {held}, due {due}")
        held_as_it_should_be = {
            State.LEASED: held,
            State.RUNNING: held,
            State.CANCELLING: True,
        }.get(operation.state, not held)
        self._must(held_as_it_should_be, f"{operation.operation_id} is {operation.state}, held {held}")
        self._must(
            operation.attempt <= operation.max_attempts,
            f"attempt {operation.attempt} of {operation.max_attempts}",
        )
        complete = operation.progress == 100
        self._must(
            complete == (operation.state is State.SUCCEEDED), f"{operation.state} at {operation.progress} %"
        )

    def _check_identity(self, record: Record) -> None:
        step = record.steps.get("resource.identity")
        if step is None:
            self._must(record.operation.operation_id not in self._identities, "an identity was forgotten")
            return
        first = self._identities.setdefault(record.operation.operation_id, step.payload)
        self._must(step.payload == first, f"the identity changed from {first} to {step.payload}")

    def _check_change(self, before: Operation, after: Operation) -> None:
        name = f"{after.operation_id}: {before.state} → {after.state}"
        allowed = after.state is before.state or after.state in TRANSITIONS[before.state]
        self._must(allowed, name)
        self._must(not before.state.terminal or after == before, f"{name}: changed after its end")
        self._must(after.progress >= before.progress, f"{name}: progress fell")
        grown = after.lease_generation - before.lease_generation
        taken = after.lease_owner is not None and before.lease_owner is None
        self._must(grown == (1 if taken else 0), f"{name}: generation grew by {grown}, taken {taken}")
        if taken:
            self._check_claim(name, after)
        unbound = after.affinity == before.affinity or (after.affinity is None and after.cancel_requested)
        self._must(unbound, f"{name}: bound to {before.affinity}, then to {after.affinity}")
        changed_hands = (
            None not in (before.lease_owner, after.lease_owner) and before.lease_owner != after.lease_owner
        )
        self._must(
            not changed_hands,
            f"{name}: went from {before.lease_owner} to {after.lease_owner} without a claim",
        )
        kept = before.cleaning_for is None or after.cleaning_for is before.cleaning_for
        self._must(kept, f"{name}: cleaning for {before.cleaning_for}, then for {after.cleaning_for}")
        self._must(before.cancel_requested <= after.cancel_requested, f"{name}: a cancel was forgotten")

    def _check_claim(self, name: str, operation: Operation) -> None:
        owner, first_due = operation.lease_owner, self._first_due[operation.operation_id]
        here = operation.affinity is None or operation.affinity == node_of(owner or "")
        self._must(here, f"{name}: {owner} took what is bound to {operation.affinity}")
        due = operation.cancel_requested or (first_due is not None and first_due <= self._clock())
        self._must(due, f"{name}: {owner} took before {first_due} what was to wait until then")

    def _check_end(self, operation: Operation) -> None:
        if operation.state is State.SUCCEEDED:
            return
        never_begun = operation.lease_generation == 0 and not operation.cleanup_if_unstarted
        self._must(
            never_begun or (operation.lease_generation > 0 and operation.cleaning_for is operation.state),
            f"{operation.operation_id} ended as {operation.state} without cleanup",
        )
        left = [key for key, owner in self._provider.items() if owner == operation.operation_id]
        self._must(not left, f"{operation.operation_id} ended as {operation.state} and left {left}")
        if operation.state is State.FAILED:
            self._must(operation.error_code is not None, f"{operation.operation_id} failed without an error")

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._note(f"VIOLATION {otherwise}")
            self.violation = self.violation or Violation(otherwise)

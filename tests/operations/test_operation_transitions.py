"""Each rule by itself: where it may start, and exactly what it changes."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.model import NewOperation, Operation, OperationState, OperationStep
from wharfinger.operations.moves import TRANSITIONS, InvalidTransition
from wharfinger.operations.transitions import (
    Abandon,
    Checkpoint,
    Claim,
    Expire,
    Fail,
    FinishCleanup,
    Heartbeat,
    PersistIdentity,
    Release,
    RequestCancel,
    Retry,
    RetryCleanup,
    Start,
    Succeed,
    Wait,
    submitted,
)

State = OperationState
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)
HELD = {
    "lease_owner": "w1",
    "lease_generation": 3,
    "lease_expires_at": LATER,
    "next_attempt_at": None,
    "attempt": 2,
}
CANCELLING = {"cancel_requested": True, "cleaning_for": State.CANCELLED}
FAILING = {"cleaning_for": State.FAILED, "error_code": "e", "error_message": "m", "error_retryable": False}


def operation(state: State, **changes: Any) -> Operation:
    """An operation in ``state``, held where that state is held, unless said otherwise."""
    new = NewOperation("k", "thing", "t", max_attempts=3, wait_deadline_s=60.0)
    base = submitted(new, "op_1", NOW - timedelta(hours=1)).operation
    held = HELD if state in (State.LEASED, State.RUNNING, State.CANCELLING) else {"attempt": 2}
    cancelling = CANCELLING if state is State.CANCELLING else {}
    ended = {"completed_at": NOW, "next_attempt_at": None} if state.terminal else {}
    return replace(base, state=state, **(held | cancelling | ended | changes))


def changed(before: Operation, change: Change) -> dict[str, Any]:
    """The fields that a change touched, without the time of the change itself."""
    pairs = {f.name: (getattr(before, f.name), getattr(change.operation, f.name)) for f in fields(Operation)}
    return {name: new for name, (old, new) in pairs.items() if old != new and name != "updated_at"}


def events(change: Change) -> list[str]:
    return [event.type for event in change.events]


UNHELD = {"lease_owner": None, "lease_expires_at": None, "next_attempt_at": NOW}
ENDED = {"lease_owner": None, "lease_expires_at": None, "completed_at": NOW}
CLAIMED = {"lease_owner": "w2", "lease_expires_at": NOW + timedelta(seconds=10), "next_attempt_at": None}
LOOSE = {"lease_owner": None, "lease_expires_at": None, "next_attempt_at": NOW}
CHECKPOINT = Checkpoint("s", "succeeded", {"a": 1}, 40, "done")


@pytest.mark.parametrize(
    ("before", "rule", "expected", "types"),
    [
        (
            operation(State.PENDING, attempt=0),
            Claim("w2", 10),
            CLAIMED | {"state": State.LEASED, "lease_generation": 1, "attempt": 1},
            ["claimed"],
        ),
        (
            operation(
                State.WAITING, waiting_since=NOW - timedelta(seconds=5), waited_s=2.0, waiting_reason="r"
            ),
            Claim("w2", 10),
            CLAIMED
            | {
                "state": State.LEASED,
                "lease_generation": 1,
                "attempt": 3,
                "waited_s": 7.0,
                "waiting_since": None,
            },
            [],
        ),
        (
            operation(State.CANCELLING, **LOOSE),
            Claim("w2", 10),
            CLAIMED | {"lease_generation": 4},
            ["claimed"],
        ),
        (operation(State.LEASED), Start(), {"state": State.RUNNING}, []),
        (operation(State.CANCELLING), Start(), {}, []),
        (operation(State.RUNNING), Start(), {}, []),
        (
            operation(State.LEASED, attempt=3),
            Expire(),
            UNHELD | {"state": State.WAITING, "waiting_reason": "worker_lost", "attempt": 2},
            ["lease_expired"],
        ),
        (
            operation(State.LEASED, attempt=3, cleaning_for=State.FAILED),
            Expire(),
            UNHELD | {"state": State.WAITING, "waiting_reason": "worker_lost"},
            ["lease_expired"],
        ),
        (operation(State.RUNNING), Heartbeat(90), {"lease_expires_at": NOW + timedelta(seconds=90)}, []),
        (
            operation(State.RUNNING),
            Expire(),
            UNHELD | {"state": State.WAITING, "waiting_reason": "worker_lost"},
            ["lease_expired"],
        ),
        (
            operation(State.CANCELLING),
            Expire(),
            UNHELD | {"waiting_reason": "worker_lost"},
            ["lease_expired"],
        ),
        (
            operation(State.RUNNING, attempt=3),
            Expire(),
            UNHELD
            | {
                "state": State.WAITING,
                "waiting_reason": "worker_lost",
                "cleaning_for": State.FAILED,
                "error_code": "worker_lost",
                "error_message": "the worker that ran the last attempt stopped without a word",
                "error_retryable": True,
            },
            ["lease_expired", "attempts_exhausted"],
        ),
        (
            operation(State.RUNNING, attempt=3, error_code="busy", error_message="b", error_retryable=True),
            Expire(),
            UNHELD | {"state": State.WAITING, "waiting_reason": "worker_lost", "cleaning_for": State.FAILED},
            ["lease_expired", "attempts_exhausted"],
        ),
        (
            operation(State.LEASED),
            Release(),
            UNHELD | {"state": State.WAITING, "waiting_reason": "worker_stopped", "attempt": 1},
            ["released"],
        ),
        (operation(State.CANCELLING), Release(), UNHELD | {"waiting_reason": "worker_stopped"}, ["released"]),
        (operation(State.RUNNING), CHECKPOINT, {"progress": 40, "message": "done"}, ["step.succeeded"]),
        (operation(State.RUNNING, progress=70), CHECKPOINT, {"message": "done"}, ["step.succeeded"]),
        (
            operation(State.RUNNING),
            Checkpoint("s", "waiting", None, 100, "all"),
            {"progress": 99, "message": "all"},
            ["step.waiting"],
        ),
        (operation(State.RUNNING), PersistIdentity("m", {"k": 1}), {}, ["identity"]),
        (
            operation(State.RUNNING),
            Wait("capacity", "none", 4.0),
            UNHELD
            | {
                "state": State.WAITING,
                "waiting_reason": "capacity",
                "waiting_since": NOW,
                "message": "none",
                "attempt": 1,
                "next_attempt_at": NOW + timedelta(seconds=4),
            },
            ["waiting"],
        ),
        (
            operation(State.RUNNING, waited_s=60.0),
            Wait("capacity", "none", 4.0),
            {
                "cleaning_for": State.FAILED,
                "error_code": "wait_deadline_exceeded",
                "error_message": "waited 60 s in all, last for capacity: none",
                "error_retryable": False,
            },
            ["failing"],
        ),
        (operation(State.CANCELLING), Wait("capacity", "none", 4.0), {}, []),
        (
            operation(State.RUNNING),
            Retry("busy", "later", 2.0),
            UNHELD
            | {
                "state": State.WAITING,
                "waiting_reason": "retry",
                "next_attempt_at": NOW + timedelta(seconds=2),
                "error_code": "busy",
                "error_message": "later",
                "error_retryable": True,
            },
            ["attempt_failed"],
        ),
        (
            operation(State.RUNNING, attempt=3),
            Retry("busy", "later", 2.0),
            {
                "cleaning_for": State.FAILED,
                "error_code": "busy",
                "error_message": "later",
                "error_retryable": True,
            },
            ["attempt_failed", "attempts_exhausted"],
        ),
        (operation(State.CANCELLING, attempt=3), Retry("busy", "later", 2.0), {}, []),
        (
            operation(State.RUNNING),
            Fail("refused", "no"),
            {
                "cleaning_for": State.FAILED,
                "error_code": "refused",
                "error_message": "no",
                "error_retryable": False,
            },
            ["failing"],
        ),
        (operation(State.CANCELLING), Fail("refused", "no"), {}, []),
        (
            operation(
                State.RUNNING,
                error_code="busy",
                error_message="b",
                error_retryable=True,
                waiting_reason="retry",
            ),
            Succeed({"r": 1}),
            ENDED
            | {
                "state": State.SUCCEEDED,
                "result": {"r": 1},
                "progress": 100,
                "error_code": None,
                "error_message": None,
                "error_retryable": None,
                "waiting_reason": None,
            },
            ["succeeded"],
        ),
        (operation(State.CANCELLING), Succeed({"r": 1}), {}, []),
        (
            operation(State.CANCELLING),
            RetryCleanup("not gone", 8.0, failed=True),
            UNHELD
            | {
                "waiting_reason": "cleanup_retry",
                "message": "not gone",
                "cleanup_failures": 1,
                "next_attempt_at": NOW + timedelta(seconds=8),
            },
            ["cleanup_failed"],
        ),
        (
            operation(State.RUNNING, message="not gone", **FAILING),
            RetryCleanup("not gone", 8.0, failed=False),
            UNHELD
            | {
                "state": State.WAITING,
                "waiting_reason": "cleanup",
                "next_attempt_at": NOW + timedelta(seconds=8),
            },
            [],
        ),
        (
            operation(State.CANCELLING, message="loaded"),
            FinishCleanup(),
            ENDED | {"state": State.CANCELLED, "message": "cleaned up"},
            ["cancelled"],
        ),
        (
            operation(State.RUNNING, message="loaded", **FAILING),
            FinishCleanup(),
            ENDED | {"state": State.FAILED},
            ["failed"],
        ),
        (
            operation(State.PENDING),
            RequestCancel(),
            {
                "state": State.CANCELLED,
                "cancel_requested": True,
                "completed_at": NOW,
                "next_attempt_at": None,
                "message": "cancelled before it started",
            },
            ["cancel_requested", "cancelled"],
        ),
        (
            operation(State.PENDING, cleanup_if_unstarted=True),
            RequestCancel(),
            CANCELLING | {"state": State.CANCELLING, "next_attempt_at": NOW},
            ["cancel_requested"],
        ),
        (
            operation(State.WAITING, waiting_since=NOW - timedelta(seconds=5)),
            RequestCancel(),
            CANCELLING | {"state": State.CANCELLING, "waiting_since": None, "next_attempt_at": NOW},
            ["cancel_requested"],
        ),
        (
            operation(State.RUNNING),
            RequestCancel(),
            CANCELLING | {"state": State.CANCELLING},
            ["cancel_requested"],
        ),
        (
            operation(State.RUNNING, **FAILING),
            RequestCancel(),
            {"cancel_requested": True},
            ["cancel_requested"],
        ),
        (operation(State.CANCELLING), RequestCancel(), {}, []),
        (operation(State.SUCCEEDED), RequestCancel(), {}, []),
        (operation(State.FAILED), RequestCancel(), {}, []),
    ],
    ids=lambda value: (
        "" if isinstance(value, (dict, list)) else getattr(value, "state", type(value).__name__)
    ),
)
def test_a_rule_changes_exactly_this(
    before: Operation, rule: Rule, expected: dict[str, Any], types: list[str]
) -> None:
    change = rule.change(before, NOW, None)
    assert changed(before, change) == expected
    assert events(change) == types


STARTS: dict[str, tuple[Rule, set[State]]] = {
    "claim": (Claim("w2", 10), {State.PENDING, State.WAITING}),  # cancelling too, while nobody holds it
    "start": (Start(), {State.LEASED, State.RUNNING, State.CANCELLING}),
    "heartbeat": (Heartbeat(1), {State.LEASED, State.RUNNING, State.CANCELLING}),
    "expire": (Expire(), {State.LEASED, State.RUNNING, State.CANCELLING}),
    "release": (Release(), {State.LEASED, State.RUNNING, State.CANCELLING}),
    "checkpoint": (CHECKPOINT, {State.RUNNING, State.CANCELLING}),
    "identity": (PersistIdentity("m", {}), {State.RUNNING, State.CANCELLING}),
    "wait": (Wait("r", "m", 1), {State.RUNNING, State.CANCELLING}),
    "retry": (Retry("c", "m", 1), {State.RUNNING, State.CANCELLING}),
    "fail": (Fail("c", "m"), {State.RUNNING, State.CANCELLING}),
    "succeed": (Succeed(None), {State.RUNNING, State.CANCELLING}),
    "retry cleanup": (
        RetryCleanup("m", 1, failed=True),
        {State.CANCELLING},
    ),  # and running, while cleaning up
    "finish cleanup": (FinishCleanup(), {State.CANCELLING}),  # and running, while cleaning up
    "request cancel": (RequestCancel(), set(State)),
    "abandon": (Abandon(), set(State)),
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("state", State)
def test_a_rule_starts_from_its_states_and_from_no_other(name: str, state: State) -> None:
    rule, allowed = STARTS[name]
    if state in allowed:
        rule.change(operation(state), NOW, None)
    else:
        with pytest.raises(InvalidTransition, match="op_1"):
            rule.change(operation(state), NOW, None)


def test_a_wait_with_the_same_reason_adds_no_event() -> None:
    change = Wait("capacity", "still none", 4.0).change(
        operation(State.RUNNING, waiting_reason="capacity"), NOW
    )
    assert events(change) == []
    assert change.operation.message == "still none"


def test_a_wait_never_outlasts_its_deadline() -> None:
    change = Wait("capacity", "none", 30.0).change(operation(State.RUNNING, waited_s=50.0), NOW)
    assert change.operation.next_attempt_at == NOW + timedelta(seconds=10)


def test_a_wait_without_a_deadline_goes_on() -> None:
    before = operation(State.RUNNING, waited_s=1e9, wait_deadline_s=None)
    assert Wait("capacity", "none", 30.0).change(before, NOW).operation.state is State.WAITING


def test_an_unchanged_checkpoint_is_no_change() -> None:
    stored = OperationStep("s", "succeeded", {"a": 1}, 1, NOW, "done")
    before = operation(State.RUNNING, progress=40)
    change = CHECKPOINT.change(before, NOW, stored)
    assert change.operation is before
    assert change.step is stored
    assert events(CHECKPOINT.change(replace(before, progress=39), NOW, stored)) == ["step.succeeded"]
    assert events(CHECKPOINT.change(before, NOW, replace(stored, payload={"a": 2}))) == ["step.succeeded"]


def test_a_stored_identity_is_returned_unchanged() -> None:
    stored = OperationStep("m.identity", "succeeded", {"k": "first"}, 1, NOW)
    change = PersistIdentity("m", {"k": "second"}).change(operation(State.RUNNING), NOW, stored)
    assert change.step is stored
    assert change.events == ()


@pytest.mark.parametrize("progress", [-1, 101])
def test_progress_outside_0_to_100_is_refused(progress: int) -> None:
    with pytest.raises(ValueError, match=f"progress {progress} of step 's' is not within 0..100"):
        Checkpoint("s", "succeeded", None, progress, "")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": ""}, "kind '' must have 1 to 64 characters"),
        ({"resource_type": "t" * 33}, "resource_type 't+' must have 1 to 32 characters"),
        ({"idempotency_key": "k" * 257}, "idempotency_key 'k+' must have 1 to 256 characters"),
        ({"resource_name": "a\0b"}, "none of them NUL"),
        ({"max_attempts": 0}, "max_attempts 0 must be at least 1"),
        ({"wait_deadline_s": -1.0}, r"wait_deadline_s -1\.0 must be a finite number of seconds, 0 or more"),
        ({"delay_s": float("nan")}, "delay_s nan must be a finite number"),
    ],
)
def test_work_that_could_not_be_stored_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        NewOperation(**({"kind": "k", "resource_type": "t", "resource_name": "n"} | changes))


def test_nothing_follows_an_end() -> None:
    assert {state for state, following in TRANSITIONS.items() if not following} == {
        state for state in State if state.terminal
    }
    assert set(TRANSITIONS) == set(State)


RULES = st.sampled_from([rule for rule, _ in STARTS.values()])


@given(st.lists(RULES, max_size=40))
def test_any_sequence_of_rules_keeps_an_operation_consistent(rules: list[Rule]) -> None:
    current = submitted(NewOperation("k", "thing", "t", max_attempts=3), "op_1", NOW).operation
    for rule in rules:
        before = current
        try:
            current = rule.change(before, NOW, None).operation
        except InvalidTransition:
            continue
        held = current.lease_owner is not None
        assert held == (current.lease_expires_at is not None)
        assert (current.next_attempt_at is not None) == (not held and not current.state.terminal)
        assert (current.completed_at is not None) == current.state.terminal
        assert current.progress >= before.progress
        assert current.cancel_requested >= before.cancel_requested
        if before.state.terminal:
            assert current == before
        if current.state is State.CANCELLING:
            assert current.cleaning_for is State.CANCELLED

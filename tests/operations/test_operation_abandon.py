"""Work whose machine will not come back is cancelled, and any worker may clean it up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from wharfinger.operations.model import NewOperation, Operation, OperationState
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.store import OperationStore
from wharfinger.operations.transitions import Abandon, FinishCleanup, Start, submitted
from wharfinger.store.database import Database

State = OperationState
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def bound(state: State = State.PENDING, **changes: object) -> Operation:
    new = NewOperation("k", "thing", "t", affinity="n2", cleanup_if_unstarted=True)
    return replace(submitted(new, "op_1", NOW).operation, state=state, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "state", "types"),
    [
        (bound(), State.CANCELLING, ["abandoned", "cancel_requested"]),
        (bound(cleanup_if_unstarted=False), State.CANCELLED, ["abandoned", "cancel_requested", "cancelled"]),
        (bound(State.RUNNING, lease_owner="w"), State.CANCELLING, ["abandoned", "cancel_requested"]),
        (
            bound(State.CANCELLING, cancel_requested=True, cleaning_for=State.CANCELLED),
            State.CANCELLING,
            ["abandoned"],
        ),
        (bound(affinity=None), State.CANCELLING, ["cancel_requested"]),
    ],
)
def test_abandoning_cancels_and_unbinds(before: Operation, state: State, types: list[str]) -> None:
    change = Abandon().change(before, NOW)
    assert (change.operation.state, change.operation.affinity) == (state, None)
    assert change.operation.cancel_requested
    assert [event.type for event in change.events] == types


def test_abandoning_what_has_ended_changes_nothing() -> None:
    before = bound(State.SUCCEEDED, completed_at=NOW)
    assert Abandon().change(before, NOW).operation is before


async def test_any_worker_cleans_up_what_was_abandoned(database: Database) -> None:
    store = OperationStore(database)
    offer = ClaimRequest("w1", ["k"], ["n1"], 8, 30.0)
    operation, _ = await store.submit(
        NewOperation("k", "thing", "t", affinity="n2", cleanup_if_unstarted=True)
    )
    assert await store.claim(offer) == []
    async with database.begin() as connection:
        assert await store.abandon("thing", "other", connection) is None
        abandoned = await store.abandon("thing", "t", connection)
    assert abandoned == await store.get(operation.operation_id)
    [taken] = await store.claim(offer)
    assert taken.lease is not None
    await store.apply(taken.lease, Start())
    ended = (await store.apply(taken.lease, FinishCleanup())).operation
    assert (ended.operation_id, ended.state, ended.affinity) == (
        *(operation.operation_id, State.CANCELLED, None),
    )

"""The contract of a store of operations, on memory, SQLite and PostgreSQL alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from operations.conftest import Harness
from wharfinger.operations.changes import Rule
from wharfinger.operations.model import (
    Conflict,
    Lease,
    LeaseLost,
    NewOperation,
    Operation,
    OperationState,
    UnknownOperation,
)
from wharfinger.operations.port import ClaimRequest, WorkStore
from wharfinger.operations.transitions import (
    Checkpoint,
    Fail,
    FinishCleanup,
    Heartbeat,
    PersistIdentity,
    Release,
    Retry,
    Start,
    Succeed,
    Wait,
)


def new(name: str = "alpha", **changes: Any) -> NewOperation:
    values = {"kind": "instance.launch", "resource_type": "instance", "resource_name": name} | changes
    return NewOperation(**values)


def offer(owner: str = "w1", **changes: Any) -> ClaimRequest:
    values = {
        "owner": owner,
        "kinds": ["instance.launch"],
        "affinities": [],
        "limit": 8,
        "lease_s": 30.0,
    } | changes
    return ClaimRequest(**values)


async def claimed(store: WorkStore, **changes: Any) -> tuple[Operation, Lease]:
    """Submit one operation and claim it."""
    await store.submit(new(**changes))
    [operation] = await store.claim(offer())
    assert operation.lease is not None
    return operation, operation.lease


async def applied(store: WorkStore, lease: Lease, *rules: Rule) -> Operation:
    """Apply the rules in turn and return the operation as it then is."""
    for rule in rules:
        await store.apply(lease, rule)
    return await store.get(lease.operation_id)


async def event_types(store: WorkStore, operation_id: str) -> list[str]:
    """Types of all events, once it is sure that their sequence has no gap."""
    events = await store.events(operation_id, limit=1000)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (await store.get(operation_id)).last_sequence == len(events)
    return [event.type for event in events]


def checkpoint(step: str, progress: int | None = None, **payload: Any) -> Checkpoint:
    return Checkpoint(step, "succeeded", payload or None, progress, f"{step} done")


async def test_a_submitted_operation_is_read_back_as_it_was_written(store: WorkStore) -> None:
    request = {"model": "gemma", "memory_bytes": 2**60, "tags": ["a", "ü"], "none": None}
    operation, created = await store.submit(
        new(
            request=request,
            max_attempts=7,
            wait_deadline_s=12.5,
            affinity="node-1",
            cleanup_if_unstarted=True,
        )
    )
    assert created
    assert await store.get(operation.operation_id) == operation
    assert operation.state is OperationState.PENDING
    assert operation.request == request
    assert (operation.attempt, operation.max_attempts, operation.progress) == (0, 7, 0)
    assert (operation.wait_deadline_s, operation.affinity, operation.cleanup_if_unstarted) == (
        12.5,
        "node-1",
        True,
    )
    assert operation.next_attempt_at == operation.created_at
    assert abs((await store.now() - operation.created_at).total_seconds()) < 60
    assert await event_types(store, operation.operation_id) == ["submitted"]


async def test_the_same_key_and_body_give_the_same_operation_even_when_it_has_ended(store: WorkStore) -> None:
    first, _ = await store.submit(new(request={"a": 1, "b": 2}, idempotency_key="k"))
    assert await store.submit(new(request={"b": 2, "a": 1}, idempotency_key="k")) == (first, False)
    [operation] = await store.claim(offer())
    assert operation.lease is not None
    ended = await applied(store, operation.lease, Start(), Succeed({"answer": 42}))
    assert await store.submit(new(request={"a": 1, "b": 2}, idempotency_key="k")) == (ended, False)


@pytest.mark.parametrize("changes", [{"request": {"a": 2}}, {"name": "beta"}])
async def test_the_same_key_with_another_body_is_refused(store: WorkStore, changes: dict[str, Any]) -> None:
    first, _ = await store.submit(new(request={"a": 1}, idempotency_key="k"))
    with pytest.raises(Conflict) as refused:
        await store.submit(new(**({"request": {"a": 1}, "idempotency_key": "k"} | changes)))
    assert (refused.value.code, refused.value.operation_id) == ("idempotency_key_reused", first.operation_id)


async def test_a_busy_resource_names_its_own_operation_not_an_older_one_without_a_key(
    store: WorkStore,
) -> None:
    older, lease = await claimed(store)
    await applied(store, lease, Start(), Succeed(None))
    assert older.idempotency_key is None
    standing, _ = await store.submit(new())
    with pytest.raises(Conflict) as refused:
        await store.submit(new())
    assert (refused.value.code, refused.value.operation_id) == ("resource_busy", standing.operation_id)


async def test_a_resource_has_one_unresolved_operation_at_a_time(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    with pytest.raises(Conflict) as refused:
        await store.submit(new(kind="instance.stop"))
    assert (refused.value.code, refused.value.operation_id) == ("resource_busy", operation.operation_id)
    await store.submit(new(name="beta"))
    await applied(store, lease, Start(), Succeed(None))
    _, created = await store.submit(new(kind="instance.stop"))
    assert created


async def test_of_many_submissions_at_once_for_one_resource_one_wins(store: WorkStore) -> None:
    results = await asyncio.gather(*(store.submit(new()) for _ in range(12)), return_exceptions=True)
    won = [result for result in results if isinstance(result, tuple)]
    refused = [result for result in results if isinstance(result, Conflict)]
    assert (len(won), len(refused)) == (1, 11)
    assert {conflict.operation_id for conflict in refused} == {won[0][0].operation_id}


async def test_of_many_submissions_at_once_with_one_key_all_get_the_same(store: WorkStore) -> None:
    results = await asyncio.gather(*(store.submit(new(idempotency_key="k")) for _ in range(12)))
    assert len({operation.operation_id for operation, _ in results}) == 1
    assert sum(created for _, created in results) == 1


async def test_a_claim_leases_and_counts(store: WorkStore) -> None:
    operation, _ = await claimed(store)
    assert operation.state is OperationState.LEASED
    assert (operation.lease_owner, operation.lease_generation, operation.attempt) == ("w1", 1, 1)
    assert operation.lease_expires_at is not None
    assert 25 < (operation.lease_expires_at - await store.now()).total_seconds() <= 30
    assert await store.get(operation.operation_id) == operation
    assert await store.claim(offer("w2")) == []


async def test_of_many_claims_at_once_each_operation_goes_to_one(store: WorkStore) -> None:
    for number in range(10):
        await store.submit(new(f"r{number}"))
    batches = await asyncio.gather(*(store.claim(offer(f"w{number}", limit=3)) for number in range(8)))
    taken = [operation.operation_id for batch in batches for operation in batch]
    assert len(taken) == len(set(taken)) == 10


async def test_claims_take_the_longest_due_first_and_no_more_than_asked(
    store: WorkStore, harness: Harness
) -> None:
    ids = [(await store.submit(new(f"r{number}")))[0].operation_id for number in range(3)]
    await harness.let_pass(ids[2], 60)
    await harness.let_pass(ids[0], 30)
    assert [operation.operation_id for operation in await store.claim(offer(limit=2))] == [ids[2], ids[0]]


async def test_claims_pass_over_what_is_not_due_not_known_or_bound_elsewhere(store: WorkStore) -> None:
    await store.submit(new("later", delay_s=60))
    await store.submit(new("other", kind="price.refresh"))
    await store.submit(new("bound", affinity="node-2"))
    assert await store.claim(offer(affinities=["node-1"])) == []
    [bound] = await store.claim(offer(affinities=["node-1", "node-2"]))
    assert bound.resource_name == "bound"


async def test_an_expired_lease_is_taken_over_and_the_old_holder_can_write_nothing(
    store: WorkStore, harness: Harness
) -> None:
    operation, old = await claimed(store)
    await applied(store, old, Start(), checkpoint("one", 10))
    await harness.let_pass(operation.operation_id, 31)
    [again] = await store.claim(offer("w2"))
    assert (again.attempt, again.lease_generation, again.lease_owner) == (2, 2, "w2")
    before = await store.get(operation.operation_id)
    for rule in (
        Heartbeat(30),
        checkpoint("two", 50),
        PersistIdentity("p", {"k": 1}),
        Succeed(None),
        Release(),
    ):
        with pytest.raises(LeaseLost):
            await store.apply(old, rule)
    assert await store.get(operation.operation_id) == before
    assert [step.name for step in await store.steps(operation.operation_id)] == ["one"]
    assert await event_types(store, operation.operation_id) == [
        *("submitted", "claimed", "step.succeeded", "lease_expired", "claimed")
    ]


async def test_a_lease_that_ran_out_is_lost_even_if_nobody_took_it(
    store: WorkStore, harness: Harness
) -> None:
    operation, lease = await claimed(store)
    await store.apply(lease, Start())
    await harness.let_pass(operation.operation_id, 31)
    before = await store.get(operation.operation_id)
    with pytest.raises(LeaseLost):
        await store.apply(lease, Heartbeat(30))
    assert await store.get(operation.operation_id) == before


@pytest.mark.parametrize("forged", [("w2", 1), ("w1", 2), ("w1", 0)])
async def test_owner_and_generation_must_both_match(store: WorkStore, forged: tuple[str, int]) -> None:
    operation, _ = await claimed(store)
    with pytest.raises(LeaseLost):
        await store.apply(Lease(operation.operation_id, *forged), Start())
    assert (await store.get(operation.operation_id)).state is OperationState.LEASED


async def test_a_heartbeat_extends_the_lease(store: WorkStore, harness: Harness) -> None:
    operation, lease = await claimed(store)
    await store.apply(lease, Start())
    await harness.let_pass(operation.operation_id, 25)
    await store.apply(lease, Heartbeat(30))
    await harness.let_pass(operation.operation_id, 25)
    assert (await store.apply(lease, checkpoint("one"))).operation.state is OperationState.RUNNING


async def test_steps_events_and_progress_are_written_together(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    now = await applied(store, lease, Start(), checkpoint("fetch", 40, size_bytes=3), checkpoint("probe", 20))
    assert (now.progress, now.message) == (40, "probe done")
    fetch, probe = await store.steps(operation.operation_id)
    assert (fetch.name, fetch.status, fetch.payload, fetch.attempt) == (
        "fetch",
        "succeeded",
        {"size_bytes": 3},
        1,
    )
    assert (probe.name, probe.payload, probe.message) == ("probe", None, "probe done")
    events = await store.events(operation.operation_id, after_sequence=2, limit=1)
    assert [(event.sequence, event.type, event.payload) for event in events] == [
        (3, "step.succeeded", {"step": "fetch", "progress": 40, "state": "running"})
    ]


async def test_a_checkpoint_repeated_unchanged_writes_nothing(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    before = await applied(store, lease, Start(), checkpoint("fetch", 40, part=1))
    assert await applied(store, lease, checkpoint("fetch", 40, part=1)) == before
    await store.apply(lease, checkpoint("fetch", 40, part=2))
    [step] = await store.steps(operation.operation_id)
    assert step.payload == {"part": 2}
    assert (await event_types(store, operation.operation_id)).count("step.succeeded") == 2


async def test_an_identity_is_written_once_and_survives_checkpoints(
    store: WorkStore, harness: Harness
) -> None:
    operation, lease = await claimed(store)
    await store.apply(lease, Start())
    first = await store.apply(lease, PersistIdentity("machine", {"key": "m-1"}))
    assert first.step is not None
    assert first.step.payload == {"key": "m-1"}
    await store.apply(lease, checkpoint("machine", 10))
    await harness.let_pass(operation.operation_id, 31)
    [again] = await store.claim(offer("w2"))
    assert again.lease is not None
    await store.apply(again.lease, Start())
    second = await store.apply(again.lease, PersistIdentity("machine", {"key": "m-2"}))
    assert second.step is not None
    assert second.step.payload == {"key": "m-1"}


async def test_waiting_costs_no_attempt_and_says_so_once(store: WorkStore, harness: Harness) -> None:
    operation, lease = await claimed(store, max_attempts=1)
    for _ in range(5):
        waiting = await applied(store, lease, Start(), Wait("capacity", "no GPU free", 5.0))
        assert (waiting.state, waiting.waiting_reason, waiting.attempt) == (
            OperationState.WAITING,
            "capacity",
            0,
        )
        assert await store.claim(offer()) == []
        await harness.let_pass(operation.operation_id, 5)
        [again] = await store.claim(offer())
        assert again.lease is not None
        lease = again.lease
    assert 24.9 < again.waited_s < 60
    assert await event_types(store, operation.operation_id) == ["submitted", "claimed", "waiting"]


async def test_the_wait_deadline_fails_the_operation_after_one_more_look(
    store: WorkStore, harness: Harness
) -> None:
    operation, lease = await claimed(store, wait_deadline_s=7.0)
    waiting = await applied(store, lease, Start(), Wait("capacity", "no GPU free", 60.0))
    assert waiting.next_attempt_at is not None
    assert waiting.waiting_since is not None
    assert (waiting.next_attempt_at - waiting.waiting_since).total_seconds() == pytest.approx(7.0)
    await harness.let_pass(operation.operation_id, 3600)
    [again] = await store.claim(offer())
    assert again.lease is not None
    failing = await applied(store, again.lease, Start(), Wait("capacity", "no GPU free", 60.0))
    assert (failing.cleaning_for, failing.error_code) == (OperationState.FAILED, "wait_deadline_exceeded")
    assert (await applied(store, again.lease, FinishCleanup())).state is OperationState.FAILED


async def test_exhausted_attempts_keep_the_original_error_through_cleanup(
    store: WorkStore, harness: Harness
) -> None:
    operation, lease = await claimed(store, max_attempts=2)
    retried = await applied(store, lease, Start(), Retry("provider_busy", "try later", 1.0))
    assert (retried.state, retried.attempt, retried.error_code) == (
        OperationState.WAITING,
        1,
        "provider_busy",
    )
    await harness.let_pass(operation.operation_id, 1)
    [again] = await store.claim(offer())
    assert again.lease is not None
    failing = await applied(store, again.lease, Start(), Retry("provider_busy", "still", 1.0))
    assert (failing.state, failing.cleaning_for) == (OperationState.RUNNING, OperationState.FAILED)
    ended = await applied(store, again.lease, FinishCleanup())
    assert (ended.state, ended.error_code, ended.error_message, ended.error_retryable) == (
        *(OperationState.FAILED, "provider_busy", "still", True),
    )
    assert "attempts_exhausted" in await event_types(store, operation.operation_id)


async def test_a_crash_on_the_last_attempt_is_taken_over_for_cleanup(
    store: WorkStore, harness: Harness
) -> None:
    operation, lease = await claimed(store, max_attempts=1)
    await store.apply(lease, Start())
    await harness.let_pass(operation.operation_id, 31)
    [again] = await store.claim(offer("w2"))
    assert (again.state, again.cleaning_for, again.error_code) == (
        *(OperationState.LEASED, OperationState.FAILED, "worker_lost"),
    )
    assert again.attempt == 1
    assert again.lease is not None
    assert (await applied(store, again.lease, Start(), FinishCleanup())).state is OperationState.FAILED


async def test_the_reaper_frees_what_no_worker_would_claim(store: WorkStore, harness: Harness) -> None:
    operation, lease = await claimed(store, max_attempts=1)
    await store.apply(lease, Start())
    assert await store.reap() == 0
    await harness.let_pass(operation.operation_id, 31)
    assert await store.reap() == 1
    freed = await store.get(operation.operation_id)
    assert (freed.state, freed.lease_owner, freed.cleaning_for) == (
        *(OperationState.WAITING, None, OperationState.FAILED),
    )


async def test_a_release_gives_the_attempt_back_and_is_due_at_once(store: WorkStore) -> None:
    _, lease = await claimed(store, max_attempts=1)
    await applied(store, lease, Start(), checkpoint("one"), Release())
    [again] = await store.claim(offer("w2"))
    assert (again.attempt, again.lease_generation, again.state) == (1, 2, OperationState.LEASED)


async def test_cancelling_before_the_start_ends_at_once(store: WorkStore) -> None:
    operation, _ = await store.submit(new())
    cancelled = await store.request_cancel(operation.operation_id)
    assert cancelled.state is OperationState.CANCELLED
    assert cancelled.completed_at is not None
    assert await store.claim(offer()) == []
    assert await store.request_cancel(operation.operation_id) == cancelled
    await store.submit(new())


async def test_cancelling_before_the_start_leaves_the_submitters_state_to_cleanup(store: WorkStore) -> None:
    operation, _ = await store.submit(new(cleanup_if_unstarted=True, delay_s=60))
    assert (await store.request_cancel(operation.operation_id)).state is OperationState.CANCELLING
    [again] = await store.claim(offer())
    assert (again.state, again.cleaning_for, again.attempt) == (
        *(OperationState.CANCELLING, OperationState.CANCELLED, 0),
    )
    assert again.lease is not None
    assert (await applied(store, again.lease, Start(), FinishCleanup())).state is OperationState.CANCELLED


async def test_cancelling_work_under_way_keeps_the_lease_and_turns_success_into_cleanup(
    store: WorkStore,
) -> None:
    operation, lease = await claimed(store)
    await store.apply(lease, Start())
    assert (await store.request_cancel(operation.operation_id)).state is OperationState.CANCELLING
    still = await applied(store, lease, Succeed({"too": "late"}), Retry("x", "y", 1.0), Fail("x", "y"))
    assert (still.state, still.lease, still.result) == (OperationState.CANCELLING, lease, None)
    ended = await applied(store, lease, FinishCleanup())
    assert (ended.state, ended.cancel_requested) == (OperationState.CANCELLED, True)


async def test_cancelling_a_wait_is_due_at_once(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    await applied(store, lease, Start(), Wait("capacity", "none", 600.0))
    assert (await store.request_cancel(operation.operation_id)).state is OperationState.CANCELLING
    [again] = await store.claim(offer())
    assert (again.state, again.cleaning_for) == (OperationState.CANCELLING, OperationState.CANCELLED)


async def test_success_keeps_the_result_and_forgets_earlier_errors(
    store: WorkStore, harness: Harness
) -> None:
    operation, lease = await claimed(store)
    await applied(store, lease, Start(), Retry("provider_busy", "try later", 1.0))
    await harness.let_pass(operation.operation_id, 1)
    [again] = await store.claim(offer())
    assert again.lease is not None
    ended = await applied(store, again.lease, Start(), Succeed({"endpoint": "e"}))
    assert (ended.state, ended.progress, ended.result) == (OperationState.SUCCEEDED, 100, {"endpoint": "e"})
    assert (ended.error_code, ended.error_message, ended.error_retryable, ended.lease_owner) == (None,) * 4
    with pytest.raises(LeaseLost):
        await store.apply(again.lease, Succeed(None))


async def test_pruning_deletes_old_ends_and_nothing_else(store: WorkStore, harness: Harness) -> None:
    old, lease = await claimed(store)
    await applied(store, lease, Start(), checkpoint("one"), Succeed(None))
    fresh, lease = await claimed(store, name="beta")
    await applied(store, lease, Start(), Succeed(None))
    open_, _ = await store.submit(new("gamma"))
    await harness.let_pass(old.operation_id, 3601)
    await harness.let_pass(open_.operation_id, 3601)
    assert await store.prune(3600) == 1
    assert await store.prune(3600) == 0
    with pytest.raises(UnknownOperation):
        await store.get(old.operation_id)
    assert await store.steps(old.operation_id) == []
    assert await store.events(old.operation_id) == []
    assert (await store.get(fresh.operation_id)).state is OperationState.SUCCEEDED
    assert (await store.get(open_.operation_id)).state is OperationState.PENDING


async def test_an_unknown_operation_is_named(store: WorkStore) -> None:
    for call in (store.get, store.request_cancel):
        with pytest.raises(UnknownOperation, match="op_nope"):
            await call("op_nope")

"""Writes that race or whose answer was lost and that are asked for again, on every store."""

from __future__ import annotations

import asyncio

from operations.conftest import Harness
from operations.test_operation_store import applied, checkpoint, claimed, event_types, offer
from wharfinger.operations.port import WorkStore
from wharfinger.operations.transitions import PersistIdentity, Start, Succeed


async def test_an_identity_is_written_once_by_many_at_once(store: WorkStore) -> None:
    _, lease = await claimed(store)
    await store.apply(lease, Start())
    for number in range(10):
        rules = [PersistIdentity(f"m{number}", {"key": f"k{racer}"}) for racer in range(8)]
        changes = await asyncio.gather(*(store.apply(lease, rule) for rule in rules))
        assert len({str(change.step.payload) for change in changes if change.step is not None}) == 1
        steps = {step.name: step.payload for step in await store.steps(lease.operation_id)}
        assert changes[0].step is not None
        assert steps[f"m{number}.identity"] == changes[0].step.payload


async def test_a_checkpoint_repeated_by_many_at_once_is_written_once(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    await store.apply(lease, Start())
    await asyncio.gather(*(store.apply(lease, checkpoint("fetch", 40, part=1)) for _ in range(8)))
    assert await event_types(store, operation.operation_id) == ["submitted", "claimed", "step.succeeded"]


async def test_a_start_whose_answer_was_lost_can_be_asked_for_again(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    await store.apply(lease, Start())
    before = await store.get(operation.operation_id)
    await store.apply(lease, Start())
    assert await store.get(operation.operation_id) == before


async def test_a_claim_whose_answer_was_lost_costs_no_attempt(store: WorkStore, harness: Harness) -> None:
    operation, _ = await claimed(store, max_attempts=1)
    for generation in range(2, 5):
        await harness.let_pass(operation.operation_id, 31)
        [again] = await store.claim(offer("w2"))
        assert (again.lease_generation, again.attempt, again.cleaning_for) == (generation, 1, None)


async def test_every_event_says_the_progress_and_state_it_led_to(store: WorkStore) -> None:
    operation, lease = await claimed(store)
    await applied(store, lease, Start(), checkpoint("fetch", 50), Succeed(None))
    told = [
        (event.type, event.payload and (event.payload["progress"], event.payload["state"]))
        for event in await store.events(operation.operation_id)
    ]
    assert told == [
        ("submitted", (0, "pending")),
        ("claimed", (0, "leased")),
        ("step.succeeded", (50, "running")),
        ("succeeded", (100, "succeeded")),
    ]

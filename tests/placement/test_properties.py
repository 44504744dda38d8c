"""Properties that hold for every fleet, card and request."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TypeVar

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from placement_strategies import REQUESTS, cards, fleets

from support.fleets import GIB, MIB, ask
from wharfinger.catalog.card import ModelCard
from wharfinger.placement import memory
from wharfinger.placement.backends import engine_of
from wharfinger.placement.planner import plan
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceMeta,
    NodeFacts,
    Plan,
    PlanRequest,
    Sharding,
)


def check_charges(snapshot: FleetSnapshot, model: ModelCard, chosen: Plan) -> None:
    """No pool is charged more than it has, and shared or capped memory not more than once."""
    by_id = {node.node_id: node for node in snapshot.nodes}
    for rank in chosen.ranks:
        node = by_id[rank.node_id]
        own = [r for r in snapshot.reservations if r.node_id == node.node_id]
        pools = {pool.device_index: pool.usable_bytes for pool in memory.usable(node, rank.backend, own)}
        assert len({charge.device_index for charge in rank.charges}) == len(rank.charges)
        for charge in rank.charges:
            usable = pools.get(charge.device_index, memory.host_pool(node, own).usable_bytes)
            assert usable == charge.usable_bytes
            assert charge.needed_bytes <= charge.usable_bytes
        in_ram = {
            pool.device_index for pool in memory.usable(node, rank.backend, own) if pool.domain == "ram"
        }
        shared = [charge for charge in rank.charges if charge.device_index in in_ram | {None}]
        if shared:
            assert sum(charge.needed_bytes for charge in shared) <= min(each.usable_bytes for each in shared)
        cap = memory.node_cap_left(node, own)
        assert cap is None or rank.needed_bytes <= cap


def check_layers(model: ModelCard, chosen: Plan) -> None:
    """Every layer once and in order, read from what the devices are charged for."""
    n_layers = model.n_layers
    if chosen.sharding is Sharding.TENSOR:
        assert all((rank.start_layer, rank.end_layer) == (0, n_layers) for rank in chosen.ranks)
        return
    held = {
        (charge.start_layer, charge.end_layer)
        for rank in chosen.ranks
        for charge in rank.charges
        if charge.end_layer
    }
    covered = [layer for start, end in sorted(held) for layer in range(start, end)]
    assert covered == list(range(n_layers))
    if chosen.meta is not InstanceMeta.RPC:
        assert [rank.start_layer for rank in chosen.ranks] == [0, *(r.end_layer for r in chosen.ranks[:-1])]


def backend_of(chosen: Plan) -> str:
    """The backend of every rank, or the engine of unlike ones."""
    tags = {rank.backend for rank in chosen.ranks}
    return tags.pop() if len(tags) == 1 else engine_of(tags.pop())


@settings(max_examples=120)
@given(fleets(), cards(), REQUESTS)
def test_every_plan_fits_and_covers_the_layers(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest
) -> None:
    """No plan exceeds any device, whatever the fleet; exclusions, width and windows hold."""
    result = plan(snapshot, model, asked)
    assert bool(result.plans) is (result.refusal is None)
    for chosen in result.plans:
        check_charges(snapshot, model, chosen)
        check_layers(model, chosen)
        assert not asked.excluded_node_ids & set(chosen.node_ids)
        assert len(chosen.node_ids) >= asked.min_nodes
        assert chosen.context_tokens is not None
        assert 0 < chosen.context_tokens <= model.context_length
        assert asked.context_tokens is None or chosen.context_tokens == asked.context_tokens
        assert chosen.max_context_tokens is not None
        assert chosen.context_tokens <= chosen.max_context_tokens
        assert chosen.port in range(24000, 32000)
        assert all(
            chosen.port not in instance.ports
            for instance in snapshot.instances
            if set(instance.node_ids) & set(chosen.node_ids)
        )


Fact = TypeVar("Fact")


def shuffled(facts: tuple[Fact, ...], random: Random) -> tuple[Fact, ...]:
    """The same facts in another order."""
    return tuple(random.sample(facts, len(facts)))


@settings(max_examples=60)
@given(fleets(), cards(), REQUESTS, st.randoms(use_true_random=False))
def test_order_of_facts_means_nothing(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest, random: Random
) -> None:
    """Equal facts in another order give the equal answer, refusals and previews included."""

    other = FleetSnapshot(
        shuffled(snapshot.nodes, random),
        shuffled(snapshot.links, random),
        shuffled(snapshot.reservations, random),
        shuffled(snapshot.instances, random),
    )
    assert plan(other, model, asked) == plan(snapshot, model, asked)
    assert preview_answer(other, model, asked).rows == preview_answer(snapshot, model, asked).rows


@settings(max_examples=60)
@given(fleets(), cards(), REQUESTS)
def test_names_mean_nothing_but_break_ties(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest
) -> None:
    """Renaming nodes without changing their order renames the answer and changes nothing else."""
    new = {node.node_id: f"x-{node.node_id}" for node in snapshot.nodes} | {"n0": "x-n0", "n4": "x-n4"}
    renamed = FleetSnapshot(
        tuple(replace(node, node_id=new[node.node_id]) for node in snapshot.nodes),
        tuple(replace(link, source=new[link.source], sink=new[link.sink]) for link in snapshot.links),
        tuple(replace(each, node_id=new[each.node_id]) for each in snapshot.reservations),
        tuple(replace(each, node_ids=tuple(new[i] for i in each.node_ids)) for each in snapshot.instances),
    )
    there = replace(asked, excluded_node_ids=frozenset(new[i] for i in asked.excluded_node_ids))
    before, after = plan(snapshot, model, asked), plan(renamed, model, there)
    assert [[new[i] for i in each.node_ids] for each in before.plans] == [
        [*each.node_ids] for each in after.plans
    ]
    assert [[*p.memory_by_node.values()] for p in before.plans] == [
        [*p.memory_by_node.values()] for p in after.plans
    ]
    if before.refusal is not None:
        assert after.refusal is not None
        assert after.refusal.code == before.refusal.code


@settings(max_examples=80)
@given(fleets(), cards(), REQUESTS, st.integers(0, 4), st.integers(1, 64))
def test_more_memory_never_makes_a_plannable_model_unplannable(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest, which: int, more_gib: int
) -> None:
    """Memory added to one node, on RAM and on every device."""
    assume(plan(snapshot, model, asked).plans)
    at = which % len(snapshot.nodes)
    grown = grow(snapshot.nodes[at], more_gib * GIB)
    more = replace(snapshot, nodes=(*snapshot.nodes[:at], grown, *snapshot.nodes[at + 1 :]))
    assert plan(more, model, asked).plans


def grow(node: NodeFacts, size: int) -> NodeFacts:
    """The node with at least that much more usable in every pool: totals grow by enough for the 0.75 and 0.90 caps."""
    bigger = 2 * size + MIB
    devices = tuple(
        device if device.total_bytes is None else replace(device, total_bytes=device.total_bytes + bigger)
        for device in node.devices
    )
    return replace(
        node,
        ram_total_bytes=None if node.ram_total_bytes is None else node.ram_total_bytes + bigger,
        ram_available_bytes=None if node.ram_available_bytes is None else node.ram_available_bytes + bigger,
        memory_cap_bytes=None if node.memory_cap_bytes is None else node.memory_cap_bytes + bigger * 8,
        devices=devices,
    )


@settings(max_examples=120)
@given(fleets(), cards(), st.sampled_from([None, 2048, 16384]))
def test_removing_the_reported_shortage_makes_the_node_fit(
    snapshot: FleetSnapshot, model: ModelCard, context: int | None
) -> None:
    """Each node said to be short fits once every pool has that much more, also one with more claimed than it has."""
    result = plan(snapshot, model, ask(context_tokens=context))
    refused = result.node_refusals if result.refusal is None else result.refusal.nodes
    for refusal in refused:
        if refusal.code != "memory_short":
            continue
        assert refusal.short_by_bytes is not None
        assert refusal.needed_bytes == sum(part.size_bytes for part in refusal.parts)
        assert refusal.short_by_bytes > 0
        assert refusal.needed_bytes is not None
        assert refusal.usable_bytes is not None
        assert refusal.short_by_bytes == refusal.needed_bytes - refusal.usable_bytes
        assert refusal.counted
        node = next(node for node in snapshot.nodes if node.node_id == refusal.node_id)
        alone = replace(snapshot, nodes=(grow(node, refusal.short_by_bytes),), links=())
        assert plan(alone, model, ask(context_tokens=context)).plans


@settings(max_examples=60)
@given(fleets(), cards(), REQUESTS)
def test_a_preview_is_what_a_launch_gets(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest
) -> None:
    """Each row is byte for byte among the plans of a launch pinned to its nodes, shape and backend."""
    for row in preview_answer(snapshot, model, asked).rows:
        if row.plan is None:
            continue
        pinned = replace(
            asked,
            sharding=row.sharding,
            meta=row.meta,
            min_nodes=len(row.plan.node_ids),
            max_nodes=len(row.plan.node_ids),
            required_node_ids=frozenset(row.plan.node_ids),
            backend=backend_of(row.plan),
        )
        assert plan(snapshot, model, pinned).best == row.plan


@settings(max_examples=60)
@given(fleets(), cards(), REQUESTS)
def test_suggestions_keep_their_promise(
    snapshot: FleetSnapshot, model: ModelCard, asked: PlanRequest
) -> None:
    """What the refusal says would help, does."""
    refusal = plan(snapshot, model, asked).refusal
    if refusal is None:
        return
    if refusal.category == "placement_info_pending":
        assert refusal.suggestions == ()
        assert any(node.missing_facts for node in refusal.nodes)
    for suggestion in refusal.suggestions:
        changed = asked
        match suggestion.kind:
            case "lower_context":
                changed = replace(asked, context_tokens=suggestion.context_tokens)
            case "drop_exclusion":
                changed = replace(
                    asked, excluded_node_ids=asked.excluded_node_ids - {suggestion.node_id or ""}
                )
            case "lower_min_nodes":
                changed = replace(asked, min_nodes=int(suggestion.message.rsplit(" ", 1)[1]))
            case "pipeline_sharding":
                changed = replace(asked, sharding=Sharding.PIPELINE)
            case _:
                continue
        assert plan(snapshot, model, changed).plans, suggestion

"""``POST /instance``: run exactly the placement the caller computed, after checking all of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from wharfinger.access.callers import Operator
from wharfinger.api.answers import answers
from wharfinger.api.bodies import RequestBody
from wharfinger.api.dependencies import IdempotencyKey
from wharfinger.api.errors import PLACEMENT_FAILURE_HEADER, ApiError
from wharfinger.api.exact_wire import Shard, read_instance, read_shards
from wharfinger.api.instances import acknowledgement
from wharfinger.api.schemas import Acknowledgement
from wharfinger.api.text import shown
from wharfinger.catalog.card import ModelCard
from wharfinger.placement import codes
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.types import FleetSnapshot, PlanRequest, PlanResult
from wharfinger.workflows.admission import Asked
from wharfinger.workflows.facts import excluding_by_name
from wharfinger.workflows.serving import Control

router = APIRouter(tags=["Instances"])

IDENTITY_MISMATCH = "model_card_identity_mismatch"


class CreateInstanceBody(RequestBody):
    """An exact placement."""

    instance: dict[str, Any] = Field(description="One tagged instance, as a preview row carries it")


@router.post("/instance", **answers(Acknowledgement, 404, 409, 413, 415, placement=True))
async def create_instance(
    control: Control, _: Operator, body: CreateInstanceBody, idempotency_key: IdempotencyKey
) -> dict[str, Any]:
    """Launch an exact placement. It is checked against the fleet, the catalog and the reservations of this moment."""
    meta, instance = read_instance(body.instance)
    if instance.system_role is not None:
        raise ApiError(400, "system_role", "systemRole is not the caller's to set", param="systemRole")
    assignments = instance.shard_assignments
    card = (await control.catalog.get(assignments.model_id)).card
    sharding, shards = read_shards(meta, assignments)
    for shard in shards.values():
        _check_card(shard.model_card, card)
    node_of = {runner: node for node, runner in assignments.node_to_runner.items()}
    ordered = sorted(shards.items(), key=lambda item: item[1].device_rank)
    _check_world([shard for _, shard in ordered], card)
    placement = ExactPlacement(
        shards=tuple(
            ExactShard(node_of[runner], shard.start_layer, shard.end_layer, shard.resolved_backend)
            for runner, shard in ordered
        ),
        sharding=sharding,
        meta=meta,
        card_digest=card.digest,
        context_tokens=instance.context_token_limit,
    )
    request = control.with_defaults(
        PlanRequest(
            sharding=sharding,
            meta=meta,
            min_nodes=len(ordered),
            excluded_node_ids=frozenset(instance.excluded_nodes),
            context_tokens=instance.context_token_limit,
        )
    )

    def planner(snapshot: FleetSnapshot) -> PlanResult:
        return check_exact(snapshot, card, placement, excluding_by_name(request, snapshot.nodes))

    asked = Asked(
        {"placement": asdict(placement), "excluded_node_ids": sorted(instance.excluded_nodes)}
        | {"context_tokens": instance.context_token_limit},
        idempotency_key,
    )
    admitted = await control.create(card, instance.instance_id, asked, planner)
    return acknowledgement(admitted, admitted.operation.operation_id)


def _check_world(shards: list[Shard], card: ModelCard) -> None:
    """What a shard says of the whole must be so: the caller planned for that."""
    n_shards = len(shards)
    for rank, shard in enumerate(shards):
        if shard.device_rank != rank:
            ranks = ", ".join(str(shard.device_rank) for shard in shards[:16])
            raise _mismatch(f"deviceRank must be 0 to {n_shards - 1}, each once; the shards have {ranks}")
        if shard.world_size != n_shards:
            raise _mismatch(f"worldSize is {shard.world_size}, but there are {n_shards} shards")
        if shard.n_layers != card.n_layers:
            raise _mismatch(f"nLayers is {shard.n_layers}, but {card.model_id} has {card.n_layers} layers")


def _mismatch(message: str) -> ApiError:
    headers = {PLACEMENT_FAILURE_HEADER: codes.category(codes.SHARDING_MISMATCH)}
    return ApiError(400, codes.SHARDING_MISMATCH, message, param="instance.shardAssignments", headers=headers)


def _check_card(given: ModelCard, card: ModelCard) -> None:
    if given.digest != card.digest:
        raise ApiError(
            400,
            IDENTITY_MISMATCH,
            f"the shard's card of {shown(given.model_id)} is not the catalog's card of {card.model_id} "
            f"(digest {given.digest[:12]}… instead of {card.digest[:12]}…); take it from a fresh preview",
            param="instance.shardAssignments",
            headers={PLACEMENT_FAILURE_HEADER: IDENTITY_MISMATCH},
        )

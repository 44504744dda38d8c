"""``POST /instance``: run exactly the placement the caller computed, after checking all of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from wharfinger.api.dependencies import Control, IdempotencyKey, Operator
from wharfinger.api.errors import PLACEMENT_FAILURE_HEADER, ApiError
from wharfinger.api.instances import acknowledgement
from wharfinger.api.wire import INSTANCE_TAGS, SHARD_TAGS
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.memory import MAX_CONTEXT_TOKENS
from wharfinger.placement.types import FleetSnapshot, InstanceMeta, PlanRequest, PlanResult, Sharding
from wharfinger.workflows.admission import Asked

router = APIRouter(tags=["Instances"])

IDENTITY_MISMATCH = "model_card_identity_mismatch"
_Part = TypeVar("_Part", bound=BaseModel)
_META_BY_TAG = {tag: meta for meta, tag in INSTANCE_TAGS.items()}
_SHARDING_BY_TAG = {tag: sharding for sharding, tag in SHARD_TAGS.items()}


class CreateInstanceBody(BaseModel):
    """An exact placement."""

    model_config = ConfigDict(extra="forbid")

    instance: dict[str, Any] = Field(description="One tagged instance, as a preview row carries it")


class _WirePart(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class _Shard(_WirePart):
    model_card: ModelCard
    device_rank: int = Field(ge=0)
    start_layer: int = Field(ge=0)
    end_layer: int = Field(ge=0)
    resolved_backend: str | None = None


class _Assignments(_WirePart):
    model_id: str
    runner_to_shard: dict[str, dict[str, Any]]
    node_to_runner: dict[str, str]


class _Instance(_WirePart):
    instance_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    shard_assignments: _Assignments
    context_token_limit: int | None = Field(default=None, le=MAX_CONTEXT_TOKENS)
    excluded_nodes: list[str] = []
    system_role: str | None = None


@router.post("/instance")
async def create_instance(
    control: Control, _: Operator, body: CreateInstanceBody, idempotency_key: IdempotencyKey
) -> dict[str, Any]:
    """Launch an exact placement. It is checked against the fleet, the catalog and the reservations of this moment."""
    meta, instance = _instance(body.instance)
    if instance.system_role is not None:
        raise ApiError(400, "system_role", "systemRole is not the caller's to set", param="systemRole")
    assignments = instance.shard_assignments
    card = (await control.catalog.get(assignments.model_id)).card
    sharding, shards = _shards(assignments)
    for shard in shards.values():
        _check_card(shard.model_card, card)
    node_of = {runner: node for node, runner in assignments.node_to_runner.items()}
    ordered = sorted(shards.items(), key=lambda item: item[1].device_rank)
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
        return check_exact(snapshot, card, placement, request)

    asked = Asked(
        {"placement": asdict(placement), "excluded_node_ids": sorted(instance.excluded_nodes)}
        | {"context_tokens": instance.context_token_limit},
        idempotency_key,
    )
    admitted = await control.create(card, instance.instance_id, asked, planner)
    return acknowledgement(admitted, admitted.operation.operation_id)


def _instance(tagged: dict[str, Any]) -> tuple[InstanceMeta, _Instance]:
    tag = next(iter(tagged), None)
    if len(tagged) != 1 or tag not in _META_BY_TAG:
        accepted = ", ".join(_META_BY_TAG)
        raise ApiError(
            422,
            "invalid_request",
            f"instance must have exactly one key, one of: {accepted}",
            param="instance",
        )
    return _META_BY_TAG[tag], _parsed(_Instance, tagged[tag], f"instance.{tag}")


def _shards(assignments: _Assignments) -> tuple[Sharding, dict[str, _Shard]]:
    runners = set(assignments.node_to_runner.values())
    where = "instance.shardAssignments"
    if runners != assignments.runner_to_shard.keys() or len(runners) != len(assignments.node_to_runner):
        raise ApiError(
            422,
            "invalid_request",
            "nodeToRunner and runnerToShard must name the same runners, one for each node",
            param=where,
        )
    tags = {tag for shard in assignments.runner_to_shard.values() for tag in shard}
    if len(tags) != 1 or not tags <= _SHARDING_BY_TAG.keys():
        accepted = ", ".join(_SHARDING_BY_TAG)
        raise ApiError(
            422,
            "invalid_request",
            f"every shard must have one and the same tag, one of: {accepted}; given: {', '.join(sorted(tags))}",
            param=where,
        )
    tag = tags.pop()
    shards = {
        runner: _parsed(_Shard, shard[tag], f"{where}.runnerToShard.{runner}")
        for runner, shard in assignments.runner_to_shard.items()
    }
    return _SHARDING_BY_TAG[tag], shards


def _check_card(given: ModelCard, card: ModelCard) -> None:
    if given.digest != card.digest:
        raise ApiError(
            400,
            IDENTITY_MISMATCH,
            f"the shard's card of {given.model_id} is not the catalog's card of {card.model_id} "
            f"(digest {given.digest[:12]}… instead of {card.digest[:12]}…); take it from a fresh preview",
            param="instance.shardAssignments",
            headers={PLACEMENT_FAILURE_HEADER: IDENTITY_MISMATCH},
        )


def _parsed(kind: type[_Part], value: Any, where: str) -> _Part:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([where, *(str(part) for part in first["loc"])])
        raise ApiError(422, "invalid_request", f"{field}: {first['msg']}", param=field) from error

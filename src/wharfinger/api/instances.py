"""The instances API: previews, quick launch, exact create, look-up, delete, list, logs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from wharfinger.access.callers import Operator, Viewer
from wharfinger.api.answers import answers
from wharfinger.api.bodies import RequestBody
from wharfinger.api.dependencies import IdempotencyKey
from wharfinger.api.errors import ApiError
from wharfinger.api.schemas import Acknowledgement, DeleteAcknowledgement, Previews, TaggedInstance
from wharfinger.api.schemas_own import InstanceDetails, Instances
from wharfinger.api.text import Name, Names, shown
from wharfinger.api.wire import (
    instance_wire,
    previews_wire,
    view_wire,
)
from wharfinger.fleet.agent import LogChunk
from wharfinger.placement.hypothetical import FleetError
from wharfinger.placement.memory import MAX_CONTEXT_TOKENS, MIN_CONTEXT_TOKENS
from wharfinger.placement.serial import plan_to_json
from wharfinger.placement.tags import accepted_instead
from wharfinger.placement.types import InstanceMeta, PlanRequest, Sharding
from wharfinger.workflows.admission import Admitted
from wharfinger.workflows.control import InstanceView
from wharfinger.workflows.serving import Control

router = APIRouter(tags=["Instances"])

MAX_NODES = 1024
EXCLUDED = "Ids or names of nodes that must not take part; one that no node has is without effect"
ContextTokens = Annotated[int | None, Field(strict=True, ge=MIN_CONTEXT_TOKENS, le=MAX_CONTEXT_TOKENS)]


def _known_tag(tag: str) -> str:
    accepted = accepted_instead(shown(tag))
    if accepted is not None:
        raise PydanticCustomError("backend", "{accepted}", {"accepted": f"accepted: {accepted}"})
    return tag


Backend = Annotated[
    Name,
    AfterValidator(_known_tag),
    Field(description="An engine, or one with its compute, e.g. llama_cpp-cpu; the planner's choice without"),
]


class PlaceInstanceBody(RequestBody):
    """A quick launch: say what, not where."""

    model_id: Name
    sharding: Sharding = Sharding.PIPELINE
    instance_meta: InstanceMeta = InstanceMeta.RING
    min_nodes: Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)] = 1
    excluded_nodes: Names = Field(default_factory=list, description=EXCLUDED)
    node_ids: Names = Field(default_factory=list)
    """Nodes that must take part (ours)."""
    backend: Backend | None = None
    """Only this engine, or engine with its compute (ours)."""
    context_tokens: ContextTokens = None


@router.get("/instance/previews", **answers(Previews, 404))
async def preview_placements(
    control: Control,
    _: Viewer,
    model_id: Name,
    node_ids: Annotated[Names | None, Query()] = None,
    excluded_node_ids: Annotated[Names | None, Query(description=EXCLUDED)] = None,
    context_tokens: Annotated[int | None, Query(ge=MIN_CONTEXT_TOKENS, le=MAX_CONTEXT_TOKENS)] = None,
    min_nodes: Annotated[int, Query(ge=1, le=MAX_NODES)] = 1,
    sharding: Sharding | None = None,
    backend: Annotated[Backend | None, Query()] = None,
    what_if: Annotated[Names | None, Query(description="Machines to imagine, e.g. +1xH100-80GB")] = None,
) -> dict[str, Any]:
    """Where a model could run now, best first, with the reasons where it could not."""
    request = PlanRequest(
        sharding=sharding or Sharding.PIPELINE,
        min_nodes=min_nodes,
        excluded_node_ids=frozenset(excluded_node_ids or []),
        required_node_ids=frozenset(node_ids or []),
        context_tokens=context_tokens,
        backend=backend,
    )
    try:
        found = await control.previews(model_id, request, what_if=what_if or (), sharding=sharding)
    except FleetError as error:
        raise ApiError(400, "invalid_what_if", str(error), param="what_if") from error
    return previews_wire(found.card, found.snapshot, found.answer, request.excluded_node_ids)


@router.post("/place_instance", **answers(Acknowledgement, 404, 409, 413, 415, placement=True))
async def place_instance(
    control: Control, _: Operator, body: PlaceInstanceBody, idempotency_key: IdempotencyKey
) -> dict[str, Any]:
    """Launch a model where the planner thinks best. Follow the answer's ``operation_id``."""
    request = PlanRequest(
        sharding=body.sharding,
        meta=body.instance_meta,
        min_nodes=body.min_nodes,
        excluded_node_ids=frozenset(body.excluded_nodes),
        required_node_ids=frozenset(body.node_ids),
        context_tokens=body.context_tokens,
        backend=body.backend,
    )
    admitted = await control.place(body.model_id, request, idempotency_key=idempotency_key)
    return acknowledgement(admitted, admitted.instance_id)


@router.get("/instance", **answers(Instances))
async def list_instances(control: Control, _: Viewer) -> dict[str, Any]:
    """Every instance with its status and runners."""
    return {"instances": [view_wire(view) for view in await control.instances()]}


@router.get("/instance/{instance_id}", **answers(TaggedInstance, 404))
async def get_instance(control: Control, _: Viewer, instance_id: Name) -> dict[str, Any]:
    """The placement of one instance, as the contract's tagged object."""
    return tagged(await control.instance(instance_id))


@router.get("/api/v1/instances/{instance_id}", **answers(InstanceDetails, 404))
async def show_instance(control: Control, _: Viewer, instance_id: Name) -> dict[str, Any]:
    """One instance with its status, runners, plan and the failure that ended it."""
    view = await control.instance(instance_id)
    failure = next((f for f in await control.failures() if f.instance_id == instance_id), None)
    return view_wire(view) | {
        "plan": plan_to_json(view.instance.plan),
        "failure": None
        if failure is None
        else {
            "code": failure.error_code,
            "message": failure.error_message,
            "log_tail": list(failure.log_tail),
            "recorded_at": failure.recorded_at.isoformat(),
        },
    }


@router.delete("/instance/{instance_id}", **answers(DeleteAcknowledgement, 404, 409))
async def delete_instance(
    control: Control, _: Operator, instance_id: Name, idempotency_key: IdempotencyKey, force: bool = False
) -> dict[str, Any]:
    """Stop an instance and release what it holds. The work goes on under ``operation_id``.

    ``force`` forgets one whose nodes left the fleet, without proof that it ended; there is no operation then.
    """
    if force:
        await control.abandon(instance_id)
        return {"message": "Abandoned.", "command_id": None, "instance_id": instance_id, "operation_id": None}
    operation = await control.stop(instance_id, idempotency_key=idempotency_key)
    return {
        "message": "Command received.",
        "command_id": operation.operation_id,
        "instance_id": instance_id,
        "operation_id": operation.operation_id,
    }


@router.get("/api/v1/instances/{instance_id}/logs", **answers(LogChunk, 404))
async def read_logs(
    control: Control,
    _: Viewer,
    instance_id: Name,
    offset: int = 0,
    limit_bytes: Annotated[int, Query(ge=1, le=1 << 20)] = 1 << 16,
    rank: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, Any]:
    """A runner's log from ``offset`` (negative: from the end). Ask again from ``next_offset`` to follow it."""
    view = await control.instance(instance_id)
    ranks = len(view.instance.plan.ranks)
    if rank >= ranks:
        raise ApiError(
            400, "invalid_rank", f"rank {rank} does not exist; accepted: 0 to {ranks - 1}", param="rank"
        )
    chunk = await control.read_log(instance_id, offset, limit_bytes, rank)
    return chunk.model_dump(mode="json")


def acknowledgement(admitted: Admitted, command_id: str) -> dict[str, Any]:
    """The contract's answer to an accepted launch, with our operation."""
    return {
        "message": "Command received.",
        "command_id": command_id,
        "instance_id": admitted.instance_id,
        "operation_id": admitted.operation.operation_id,
        "model_card": admitted.card.to_wire(),
    }


def tagged(view: InstanceView) -> dict[str, Any]:
    """The wire shape of a stored instance."""
    instance = view.instance
    asked = instance.request.get("request", {})
    return instance_wire(
        instance.instance_id,
        instance.card,
        instance.plan,
        excluded=list(asked.get("excluded_node_ids", [])),
        wished=asked.get("context_tokens"),
    )

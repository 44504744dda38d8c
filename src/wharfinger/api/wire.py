"""The instances contract on the wire: tagged unions, camelCase inside, snake_case envelopes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wharfinger.catalog.card import ModelCard
from wharfinger.fleet.agent import RunnerReport, RunnerState
from wharfinger.placement.memory import MIN_CONTEXT_TOKENS, reserves_context_at_load
from wharfinger.placement.previews import PreviewAnswer
from wharfinger.placement.serial import node_refusal_to_json, plan_to_json, refusal_to_json
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceMeta,
    Plan,
    PreviewRow,
    RankPlan,
    Sharding,
)
from wharfinger.workflows.admission import new_instance_id
from wharfinger.workflows.control import InstanceView
from wharfinger.workflows.instances import InstanceFailure, InstanceStatus

INSTANCE_TAGS = {
    InstanceMeta.RING: "MlxRingInstance",
    InstanceMeta.JACCL: "MlxJacclInstance",
    InstanceMeta.RPC: "LlamaRpcInstance",
}
SHARD_TAGS = {Sharding.PIPELINE: "PipelineShardMetadata", Sharding.TENSOR: "TensorShardMetadata"}


def instance_wire(
    instance_id: str,
    card: ModelCard,
    plan: Plan,
    excluded: list[str] | None = None,
    wished: int | None = None,
) -> dict[str, Any]:
    """A placement as the contract's tagged instance."""
    card_wire = card.to_wire()
    runner_ids = {rank.rank: f"{instance_id}-r{rank.rank}" for rank in plan.ranks}
    body: dict[str, Any] = {
        "instanceId": instance_id,
        "shardAssignments": {
            "modelId": card.model_id,
            "runnerToShard": {
                runner_ids[rank.rank]: {SHARD_TAGS[plan.sharding]: _shard(rank, plan, card, card_wire)}
                for rank in plan.ranks
            },
            "nodeToRunner": {rank.node_id: runner_ids[rank.rank] for rank in plan.ranks},
        },
        "contextTokenLimit": plan.context_tokens,
        "excludedNodes": sorted(excluded or []),
        "systemRole": None,
        # The contract's type has this lower bound, and a small model's window may be below it.
        "requestedContextTokens": None if wished is None or wished < MIN_CONTEXT_TOKENS else wished,
    }
    if plan.meta is InstanceMeta.RPC:
        driver = plan.ranks[0].node_id
        body["driverNode"] = driver
        body["donorEndpoints"] = {
            node_id: f"{hosts[0][0]}:{hosts[0][1]}"
            for node_id, hosts in plan.hosts_by_node.items()
            if node_id != driver
        }
    elif plan.meta is InstanceMeta.JACCL:
        body["jacclDevices"] = [list(row) for row in plan.rdma_interfaces]
        body["jacclCoordinators"] = {
            node_id: f"{ip}:{port}" for node_id, (ip, port) in plan.coordinators.items()
        }
    else:
        body["hostsByNode"] = _hosts(plan)
        body["ephemeralPort"] = plan.port
    return {INSTANCE_TAGS[plan.meta]: body}


def _hosts(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    if plan.hosts_by_node:
        return {
            node_id: [{"ip": ip, "port": port} for ip, port in hosts]
            for node_id, hosts in plan.hosts_by_node.items()
        }
    return {rank.node_id: [{"ip": "0.0.0.0", "port": plan.port}] for rank in plan.ranks}


def _shard(rank: RankPlan, plan: Plan, card: ModelCard, card_wire: dict[str, Any]) -> dict[str, Any]:
    return {
        "modelCard": card_wire,
        "deviceRank": rank.rank,
        "worldSize": len(plan.ranks),
        "startLayer": rank.start_layer,
        "endLayer": rank.end_layer,
        "nLayers": card.n_layers,
        "resolvedBackend": rank.backend,
        "resolvedEngineBuild": rank.engine_build,
    }


def preview_wire(row: PreviewRow, card: ModelCard, excluded: list[str]) -> dict[str, Any]:
    """One preview row, its instance under an id of its own, so that it can be sent to ``POST /instance`` as it is.

    ``plan`` and ``refusal`` carry our explanation beside the contract's fields.
    """
    plan, refusal = row.plan, row.refusal
    return {
        "model_id": card.model_id,
        "sharding": row.sharding.value,
        "instance_meta": row.meta.value,
        "instance": None if plan is None else instance_wire(new_instance_id(), card, plan, excluded),
        "memory_delta_by_node": None if plan is None else plan.memory_by_node,
        "error": None if refusal is None else refusal.message,
        "error_code": None if refusal is None else refusal.category,
        "alternative": row.alternative,
        "card_digest": card.digest,
        "max_context_tokens": None if plan is None else plan.max_context_tokens,
        "default_context_tokens": None if plan is None else plan.context_tokens,
        "reserves_context_at_load": plan is not None and reserves_context_at_load(plan.ranks[0].backend),
        "kv_bytes_per_token": None if plan is None else plan.kv_bytes_per_token,
        "compatibility_source": "card",
        "support_claim_ids": [],
        "compatibility_detail": None,
        "trust_requirement": None,
        "plan": None if plan is None else plan_to_json(plan),
        "refusal": None if refusal is None else refusal_to_json(refusal),
    }


def previews_wire(
    card: ModelCard, snapshot: FleetSnapshot, answer: PreviewAnswer, excluded: Iterable[str]
) -> dict[str, Any]:
    """The whole previews answer. ``nodes`` says why each node that is in no plan is out (ours)."""
    return {
        "previews": [preview_wire(row, card, sorted(excluded)) for row in answer.rows],
        "nodes": [node_refusal_to_json(node) for node in answer.node_refusals],
        "node_names": {node.node_id: node.name for node in snapshot.nodes},
    }


def runner_wire(report: RunnerReport) -> dict[str, Any]:
    """A runner's status as the contract's tagged union."""
    body: dict[str, Any] = {}
    if report.state is RunnerState.LOADING:
        body = {"layersLoaded": report.layers_loaded, "totalLayers": report.total_layers}
    if report.state is RunnerState.FAILED:
        body = {"errorMessage": report.error_message or report.error_code or "the runner failed"}
    return {report.state.value: body}


def view_wire(view: InstanceView) -> dict[str, Any]:
    """Our own summary of an instance: status, runners, where it runs and what it takes (nothing once it failed)."""
    instance, plan = view.instance, view.instance.plan
    memory = plan.memory_by_node
    if instance.status is InstanceStatus.FAILED:
        memory = dict.fromkeys(memory, 0)
    return {
        "instance_id": instance.instance_id,
        "model_id": instance.model_id,
        "status": instance.status.value,
        "status_reason": instance.status_reason,
        "operation_id": instance.operation_id,
        "created_at": instance.created_at.isoformat(),
        "ready_at": None if instance.ready_at is None else instance.ready_at.isoformat(),
        "node_ids": list(plan.node_ids),
        "backend": plan.ranks[0].backend,
        "sharding": plan.sharding.value,
        "context_tokens": plan.context_tokens,
        "memory_by_node": memory,
        "runners": [runner_summary(report) for report in view.runners],
    }


def runner_summary(report: RunnerReport) -> dict[str, Any]:
    """A runner for people: state, process, endpoint, how it ended."""
    return report.model_dump(mode="json") | {"state": report.state.value.removeprefix("Runner").lower()}


def failure_wire(failure: InstanceFailure) -> dict[str, Any]:
    """An entry of ``State.instanceFailures``; ``logTail`` is ours."""
    return {
        "instanceId": failure.instance_id,
        "modelId": failure.model_id,
        "systemRole": None,
        "errorCode": failure.error_code,
        "errorMessage": failure.error_message,
        "affectedNodeIds": list(failure.affected_node_ids),
        "recordedAt": failure.recorded_at.isoformat(),
        "logTail": list(failure.log_tail),
    }

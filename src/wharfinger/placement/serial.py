"""Plans, requests and refusals as plain snake_case JSON, to be stored and compared; plans are also read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from wharfinger.placement.types import (
    DeviceCharge,
    InstanceMeta,
    MemoryPart,
    NodeRefusal,
    Plan,
    PlanRequest,
    RankPlan,
    Refusal,
    ScorePart,
    ServingSettings,
    Sharding,
)

Json = dict[str, Any]


def plan_to_json(plan: Plan) -> Json:
    """A plan as JSON. ``needed_bytes`` and ``memory_by_node`` are written for readers and ignored on reading."""
    return {
        "model_id": plan.model_id,
        "card_digest": plan.card_digest,
        "sharding": plan.sharding.value,
        "meta": plan.meta.value,
        "ranks": [_rank_to_json(rank) for rank in plan.ranks],
        "context_tokens": plan.context_tokens,
        "max_context_tokens": plan.max_context_tokens,
        "reserves_context_at_load": plan.reserves_context_at_load,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "settings": asdict(plan.settings),
        "score": [{"name": part.name, "value": part.value, "detail": part.detail} for part in plan.score],
        "flags": list(plan.flags),
        "hosts_by_node": {
            node: [[ip, port] for ip, port in hosts] for node, hosts in sorted(plan.hosts_by_node.items())
        },
        "port": plan.port,
        "coordinators": {node: [ip, port] for node, (ip, port) in sorted(plan.coordinators.items())},
        "rdma_interfaces": [list(row) for row in plan.rdma_interfaces],
        "memory_by_node": plan.memory_by_node,
    }


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Read back what :func:`plan_to_json` wrote.

    Raises:
        KeyError, ValueError, TypeError: the document is not a stored plan.
    """
    return Plan(
        model_id=data["model_id"],
        card_digest=data["card_digest"],
        sharding=Sharding(data["sharding"]),
        meta=InstanceMeta(data["meta"]),
        ranks=tuple(_rank_from_json(rank) for rank in data["ranks"]),
        context_tokens=data["context_tokens"],
        max_context_tokens=data["max_context_tokens"],
        reserves_context_at_load=data["reserves_context_at_load"],
        kv_bytes_per_token=data["kv_bytes_per_token"],
        settings=ServingSettings(**data["settings"]),
        score=tuple(ScorePart(part["name"], part["value"], part["detail"]) for part in data["score"]),
        flags=tuple(data["flags"]),
        hosts_by_node=MappingProxyType(
            {node: tuple((ip, port) for ip, port in hosts) for node, hosts in data["hosts_by_node"].items()}
        ),
        port=data["port"],
        coordinators=MappingProxyType(
            {node: (ip, port) for node, (ip, port) in data["coordinators"].items()}
        ),
        rdma_interfaces=tuple(tuple(row) for row in data["rdma_interfaces"]),
    )


def _rank_to_json(rank: RankPlan) -> Json:
    return {
        "node_id": rank.node_id,
        "rank": rank.rank,
        "start_layer": rank.start_layer,
        "end_layer": rank.end_layer,
        "backend": rank.backend,
        "engine_build": rank.engine_build,
        "needed_bytes": rank.needed_bytes,
        "charges": [
            {
                "device_index": charge.device_index,
                "parts": parts_to_json(charge.parts),
                "needed_bytes": charge.needed_bytes,
                "usable_bytes": charge.usable_bytes,
                "start_layer": charge.start_layer,
                "end_layer": charge.end_layer,
            }
            for charge in rank.charges
        ],
    }


def _rank_from_json(data: Mapping[str, Any]) -> RankPlan:
    return RankPlan(
        data["node_id"],
        data["rank"],
        data["start_layer"],
        data["end_layer"],
        data["backend"],
        data["engine_build"],
        tuple(
            DeviceCharge(
                charge["device_index"],
                tuple(MemoryPart(part["name"], part["size_bytes"]) for part in charge["parts"]),
                charge["usable_bytes"],
                charge["start_layer"],
                charge["end_layer"],
            )
            for charge in data["charges"]
        ),
    )


def parts_to_json(parts: tuple[MemoryPart, ...]) -> list[Json]:
    """Named memory parts in their order."""
    return [{"name": part.name, "size_bytes": part.size_bytes} for part in parts]


def request_to_json(request: PlanRequest) -> Json:
    """A request as JSON; node sets are sorted lists."""
    return {
        "sharding": request.sharding.value,
        "meta": request.meta.value,
        "min_nodes": request.min_nodes,
        "max_nodes": request.max_nodes,
        "excluded_node_ids": sorted(request.excluded_node_ids),
        "required_node_ids": sorted(request.required_node_ids),
        "context_tokens": request.context_tokens,
        "backend": request.backend,
        "settings": asdict(request.settings),
        "default_context_tokens": request.default_context_tokens,
    }


def node_refusal_to_json(refusal: NodeRefusal) -> Json:
    """Why one node is out, with its arithmetic."""
    return {
        "node_id": refusal.node_id,
        "node_name": refusal.node_name,
        "code": refusal.code,
        "message": refusal.message,
        "needed_bytes": refusal.needed_bytes,
        "usable_bytes": refusal.usable_bytes,
        "short_by_bytes": refusal.short_by_bytes,
        "parts": parts_to_json(refusal.parts),
        "missing_facts": list(refusal.missing_facts),
        "counted": [
            {
                "device_index": pool.device_index,
                "usable_bytes": pool.usable_bytes,
                "figures": dict(pool.figures),
            }
            for pool in refusal.counted
        ],
    }


def refusal_to_json(refusal: Refusal) -> Json:
    """A refusal with its nodes and suggestions."""
    return {
        "code": refusal.code,
        "category": refusal.category,
        "message": refusal.message,
        "nodes": [node_refusal_to_json(node) for node in refusal.nodes],
        "suggestions": [
            {
                "kind": suggestion.kind,
                "message": suggestion.message,
                "instance_id": suggestion.instance_id,
                "instance_ids": list(suggestion.instance_ids),
                "context_tokens": suggestion.context_tokens,
                "model_id": suggestion.model_id,
                "node_id": suggestion.node_id,
            }
            for suggestion in refusal.suggestions
        ],
    }

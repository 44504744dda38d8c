"""Stable reason codes of the planner and the contract categories they belong to.

A code never changes its meaning; new reasons get new codes. ``docs/placement.md`` publishes this list.
"""

from __future__ import annotations

from typing import Final

NO_VALID_PLACEMENT: Final = "no_valid_placement"
INFO_PENDING: Final = "placement_info_pending"
CARD_MISMATCH: Final = "model_card_identity_mismatch"

# Facts that have not arrived yet: waiting may turn these into a plan.
ENGINES_UNKNOWN: Final = "engines_unknown"
MEMORY_UNKNOWN: Final = "memory_unknown"
LINKS_UNKNOWN: Final = "links_unknown"
ENGINE_BUILD_UNKNOWN: Final = "engine_build_unknown"

# One node is out.
NODE_EXCLUDED: Final = "node_excluded"
NODE_UNREACHABLE: Final = "node_unreachable"
ROLE_NOT_SERVING: Final = "role_not_serving"
ENGINE_MISSING: Final = "engine_missing"
ENGINE_BUILD: Final = "engine_build"
DEVICE_MISSING: Final = "device_missing"
MIN_VRAM: Final = "min_vram"
MEMORY_SHORT: Final = "memory_short"
NO_FREE_PORT: Final = "no_free_port"
NODE_NOT_CHOSEN: Final = "node_not_chosen"

# The whole request, or a set of nodes, is out.
NO_NODES: Final = "no_nodes"
NODE_BOUNDS_CONFLICT: Final = "node_bounds_conflict"
TOO_FEW_NODES: Final = "too_few_nodes"
ALL_NODES_EXCLUDED: Final = "all_nodes_excluded"
REQUIRED_NODE_UNKNOWN: Final = "required_node_unknown"
REQUIRED_NODE_EXCLUDED: Final = "required_node_excluded"
REQUIRED_NODE_UNFIT: Final = "required_node_unfit"
BACKEND_NOT_ACCEPTED: Final = "backend_not_accepted"
ENGINE_CANNOT_SPAN: Final = "engine_cannot_span"
NO_COMMON_ENGINE: Final = "no_common_engine"
LINKS_UNSUPPORTED: Final = "links_unsupported"
LINK_MISSING: Final = "link_missing"
NO_ROUTABLE_ADDRESS: Final = "no_routable_address"
RDMA_MISSING: Final = "rdma_missing"
META_NOT_APPLICABLE: Final = "meta_not_applicable"
TENSOR_UNSUPPORTED: Final = "tensor_unsupported"
TENSOR_INDIVISIBLE: Final = "tensor_indivisible"
TENSOR_OVER_RPC: Final = "tensor_over_rpc"
SPLIT_LIMITED: Final = "split_limited"
TOO_FEW_LAYERS: Final = "too_few_layers"
CONTEXT_NOT_POSITIVE: Final = "context_not_positive"
CONTEXT_OUT_OF_RANGE: Final = "context_out_of_range"
CONTEXT_TOO_LARGE: Final = "context_too_large"
WEIGHTS_UNKNOWN: Final = "weights_unknown"

# Exact placement only.
IDENTITY_MISMATCH: Final = "card_identity_mismatch"
NODE_UNKNOWN: Final = "node_unknown"
NODE_REPEATED: Final = "node_repeated"
LAYERS_NOT_COVERED: Final = "layers_not_covered"
SHARDING_MISMATCH: Final = "sharding_mismatch"

PENDING_CODES: Final = frozenset({ENGINES_UNKNOWN, ENGINE_BUILD_UNKNOWN, MEMORY_UNKNOWN, LINKS_UNKNOWN})

MEANINGS: Final[dict[str, str]] = {
    ENGINES_UNKNOWN: "the node has not reported its engines yet",
    ENGINE_BUILD_UNKNOWN: "the card needs certain builds of the engine, and the node's is not known",
    MEMORY_UNKNOWN: "a memory or VRAM figure of the node has not been measured yet",
    LINKS_UNKNOWN: "links between the nodes have not been observed yet",
    NODE_EXCLUDED: "the request excludes the node",
    NODE_UNREACHABLE: "the node does not answer",
    ROLE_NOT_SERVING: "the node's role is not full",
    ENGINE_MISSING: "no engine of the node accepts the card, or not the backend asked for",
    ENGINE_BUILD: "the node's build of the engine is none that the card runs with",
    DEVICE_MISSING: "the engine is there but no device it can use",
    MIN_VRAM: "no device reaches the card's minVramGib",
    MEMORY_SHORT: "the shard does not fit the memory usable now",
    NO_FREE_PORT: "every port of 24000..31999 is in use",
    NODE_NOT_CHOSEN: "the node would do, but other nodes rank before it in the plans shown",
    NO_NODES: "the fleet has no nodes",
    NODE_BOUNDS_CONFLICT: "max_nodes is smaller than min_nodes, or than the number of required nodes",
    TOO_FEW_NODES: "fewer nodes than min_nodes",
    ALL_NODES_EXCLUDED: "the exclusions leave no node, or fewer than min_nodes",
    REQUIRED_NODE_UNKNOWN: "a required node is not in the fleet",
    REQUIRED_NODE_EXCLUDED: "a required node is excluded by the same request",
    REQUIRED_NODE_UNFIT: "a required node failed a filter",
    BACKEND_NOT_ACCEPTED: "the card does not accept the backend asked for",
    ENGINE_CANNOT_SPAN: "the card's engines run on one machine only",
    NO_COMMON_ENGINE: "no one backend that can span machines is on enough nodes",
    LINKS_UNSUPPORTED: "models sharded over machines are not run yet",
    LINK_MISSING: "the nodes are not linked in the way the engine needs",
    NO_ROUTABLE_ADDRESS: "only link-local or loopback addresses lead to a donor",
    RDMA_MISSING: "MlxJaccl needs RDMA between every two nodes",
    META_NOT_APPLICABLE: "the instance meta asked for does not go with the engine",
    TENSOR_UNSUPPORTED: "the card does not support tensor sharding",
    TENSOR_INDIVISIBLE: "hidden size, heads or KV heads do not divide by the width",
    TENSOR_OVER_RPC: "llama.cpp RPC is pipeline only",
    SPLIT_LIMITED: "the card's maxPipelineSplitLayer leaves fewer starts than ranks",
    TOO_FEW_LAYERS: "fewer layers than ranks",
    CONTEXT_NOT_POSITIVE: "the window asked for is zero or negative",
    CONTEXT_OUT_OF_RANGE: "the window asked for is outside 256..1048576 tokens",
    CONTEXT_TOO_LARGE: "the window asked for is larger than what the card, the engine or memory allow",
    WEIGHTS_UNKNOWN: "the card gives neither storageSize nor the sizes of its layers",
    IDENTITY_MISMATCH: "a shard's card is not the catalog's card",
    NODE_UNKNOWN: "the placement names a node that is not in the fleet",
    NODE_REPEATED: "the placement uses a node twice",
    LAYERS_NOT_COVERED: "the shards do not cover every layer once and in order",
    SHARDING_MISMATCH: "the shards do not have the shape their sharding needs",
}
"""Every code with its meaning, one line each."""


def category(code: str) -> str:
    """The contract's category (header and ``error_code``) of a fine code."""
    if code in PENDING_CODES:
        return INFO_PENDING
    return CARD_MISMATCH if code == IDENTITY_MISMATCH else NO_VALID_PLACEMENT

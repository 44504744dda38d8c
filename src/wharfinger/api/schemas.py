"""The answers' shapes for the OpenAPI document: the contract's own, and errors.

They describe and never serialise: routes build plain dictionaries. ``tests/api/test_openapi.py`` holds real answers
against them, and no field that is not here passes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.alias_generators import to_camel

from wharfinger.catalog.card import ByteSize, ModelCard
from wharfinger.placement.types import InstanceMeta, Sharding


class Answer(BaseModel):
    """Base of what a route answers: snake_case."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class DomainObject(BaseModel):
    """Base of the contract's domain objects: camelCase."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, protected_namespaces=())


class ErrorBody(Answer):
    """What went wrong, and what to do about it."""

    message: str
    type: str = Field(description="The HTTP reason phrase")
    param: str | None = Field(description="The part of the request that is wrong")
    code: int = Field(description="The HTTP status")
    reason: str = Field(description="A stable code")
    details: dict[str, Any] = Field({}, description="The structured rest, such as the planner's refusal")


class Problem(Answer):
    """One wrong part of a request."""

    loc: list[str | int]
    msg: str
    type: str


class Error(Answer):
    """The envelope of every error."""

    error: ErrorBody


class InvalidRequest(Error):
    """The envelope of a request that does not match the schema."""

    detail: list[Problem]


class Part(Answer):
    """A named amount of memory."""

    name: str
    size_bytes: int


class Charge(Answer):
    """What one device is to hold."""

    device_index: int | None
    parts: list[Part]
    needed_bytes: int
    usable_bytes: int
    start_layer: int
    end_layer: int


class Rank(Answer):
    """One node's part in a plan."""

    node_id: str
    rank: int
    start_layer: int
    end_layer: int
    backend: str
    engine_build: str | None
    needed_bytes: int
    charges: list[Charge]


class Score(Answer):
    """One reason for a plan's place in the ranking."""

    name: str
    value: float | None
    detail: str


class PlanShape(Answer):
    """Where a model is to run and what it takes."""

    model_id: str
    card_digest: str
    sharding: Sharding
    meta: InstanceMeta
    ranks: list[Rank]
    context_tokens: int | None
    max_context_tokens: int | None
    reserves_context_at_load: bool
    kv_bytes_per_token: int | None
    settings: dict[str, Any]
    score: list[Score]
    flags: list[str]
    hosts_by_node: dict[str, list[tuple[str, int]]]
    port: int | None
    coordinators: dict[str, tuple[str, int]]
    rdma_interfaces: list[list[str | None]]
    memory_by_node: dict[str, int]


class Pool(Answer):
    """A pool of memory as it was counted."""

    device_index: int | None
    usable_bytes: int
    figures: dict[str, int]


class NodeRefusalShape(Answer):
    """Why one node is out, with its arithmetic."""

    node_id: str
    node_name: str
    code: str
    message: str
    needed_bytes: int | None
    usable_bytes: int | None
    short_by_bytes: int | None
    parts: list[Part]
    missing_facts: list[str]
    counted: list[Pool]


class SuggestionShape(Answer):
    """Something that would help; it was checked by planning it."""

    kind: str
    message: str
    instance_id: str | None
    instance_ids: list[str]
    context_tokens: int | None
    model_id: str | None
    node_id: str | None


class RefusalShape(Answer):
    """Why a model can run nowhere."""

    code: str
    category: str
    message: str
    nodes: list[NodeRefusalShape]
    suggestions: list[SuggestionShape]


class ShardShape(DomainObject):
    """The piece of the model that one runner holds."""

    model_card: ModelCard
    device_rank: int
    world_size: int
    start_layer: int
    end_layer: int
    n_layers: int
    resolved_backend: str | None
    resolved_engine_build: str | None


class TaggedPipelineShard(Answer):
    """A shard of whole layers."""

    PipelineShardMetadata: ShardShape


class TaggedTensorShard(Answer):
    """A shard of every layer."""

    TensorShardMetadata: ShardShape


class ShardAssignments(DomainObject):
    """Which runner holds what, and on which node it is."""

    model_id: str
    runner_to_shard: dict[str, TaggedPipelineShard | TaggedTensorShard]
    node_to_runner: dict[str, str]


class Host(Answer):
    """An address of a rank."""

    ip: str
    port: int


class InstanceShape(DomainObject):
    """What all instances have."""

    instance_id: str
    shard_assignments: ShardAssignments
    context_token_limit: int | None
    excluded_nodes: list[str]
    system_role: str | None
    requested_context_tokens: int | None


class RingInstance(InstanceShape):
    """One node, or a ring of nodes."""

    hosts_by_node: dict[str, list[Host]]
    ephemeral_port: int | None


class JacclInstance(InstanceShape):
    """Nodes joined by RDMA."""

    jaccl_devices: list[list[str | None]]
    jaccl_coordinators: dict[str, str]


class RpcInstance(InstanceShape):
    """A llama.cpp driver with its donors."""

    driver_node: str
    donor_endpoints: dict[str, str]


class TaggedRing(Answer):
    """See the tag's own object."""

    MlxRingInstance: RingInstance


class TaggedJaccl(Answer):
    """See the tag's own object."""

    MlxJacclInstance: JacclInstance


class TaggedRpc(Answer):
    """See the tag's own object."""

    LlamaRpcInstance: RpcInstance


class TaggedInstance(RootModel[TaggedRing | TaggedJaccl | TaggedRpc]):
    """An instance under its one tag."""


class PreviewShape(Answer):
    """One way to run the model, or why a shape of it cannot be. ``plan`` and ``refusal`` are ours."""

    model_id: str
    sharding: Sharding
    instance_meta: InstanceMeta
    instance: TaggedInstance | None
    memory_delta_by_node: dict[str, int] | None
    error: str | None
    error_code: str | None
    alternative: bool
    card_digest: str
    max_context_tokens: int | None
    default_context_tokens: int | None
    reserves_context_at_load: bool
    kv_bytes_per_token: int | None
    compatibility_source: str | None
    support_claim_ids: list[str]
    compatibility_detail: str | None
    trust_requirement: None
    plan: PlanShape | None
    refusal: RefusalShape | None


class Previews(Answer):
    """Ways to run the model, best first, and the nodes that are in none of them."""

    previews: list[PreviewShape]
    nodes: list[NodeRefusalShape]
    node_names: dict[str, str]


class Acknowledgement(Answer):
    """A launch that was accepted; its work goes on under ``operation_id``."""

    message: str
    command_id: str
    instance_id: str
    operation_id: str
    model_card: ModelCard


class DeleteAcknowledgement(Answer):
    """A stop that was accepted; one that was forced has no operation."""

    message: str
    command_id: str | None
    instance_id: str
    operation_id: str | None


class NodeMemory(DomainObject):
    """RAM and swap; ``null`` was not measured."""

    ram_total: ByteSize | None
    ram_available: ByteSize | None
    swap_total: ByteSize | None
    swap_available: ByteSize | None


class Accelerator(DomainObject):
    """A node's first device."""

    vendor: str
    name: str | None
    vram_total_bytes: int | None
    vram_used_bytes: int | None
    gtt_total_bytes: int | None
    compute_capability: str | None


class NodeSystem(DomainObject):
    """Load and device of a node."""

    cpu_percent: float | None
    accelerator: Accelerator


class NodeIdentity(DomainObject):
    """What a node is."""

    friendly_name: str
    model_id: str | None
    os_version: str


class NodeDisk(DomainObject):
    """The disk that models lie on."""

    total: ByteSize | None
    available: ByteSize | None


class NodeResources(DomainObject):
    """What a node can run."""

    backends: list[str]
    participation: str
    engine_builds: dict[str, str | None]
    hardware_classes: list[str]


class HealthReason(Answer):
    """One thing that is not well, and what to do."""

    code: str
    message: str
    remediation: str


class NodeHealth(Answer):
    """The worst of the reasons is the level."""

    level: Literal["ok", "warn", "error"]
    reasons: list[HealthReason]


class Topology(Answer):
    """Nodes and their connections."""

    nodes: list[str]
    connections: dict[str, Any]


class InstanceFailureShape(DomainObject):
    """An instance that ended badly. ``logTail`` is ours."""

    instance_id: str
    model_id: str
    system_role: str | None
    error_code: str
    error_message: str
    affected_node_ids: list[str]
    recorded_at: datetime
    log_tail: list[str]


class State(DomainObject):
    """The fleet at one moment."""

    instances: dict[str, TaggedInstance]
    runners: dict[str, dict[str, dict[str, Any]]]
    downloads: dict[str, list[dict[str, dict[str, Any]]]]
    tasks: dict[str, Any]
    last_seen: dict[str, datetime]
    topology: Topology
    tracing_enabled: bool
    last_event_applied_idx: int
    node_network: dict[str, Any]
    node_thunderbolt: dict[str, Any]
    node_thunderbolt_bridge: dict[str, Any]
    thunderbolt_bridge_cycles: list[Any]
    node_rdma_ctl: dict[str, Any]
    node_memory: dict[str, NodeMemory]
    node_system: dict[str, NodeSystem]
    node_identities: dict[str, NodeIdentity]
    node_disk: dict[str, NodeDisk]
    node_resources: dict[str, NodeResources]
    node_health: dict[str, NodeHealth]
    instance_failures: list[InstanceFailureShape]

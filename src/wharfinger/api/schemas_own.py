"""The shapes of the answers that are ours and not the contract's, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import create_model

from wharfinger.api.schemas import Answer, NodeHealth, PlanShape
from wharfinger.catalog.card import ModelCard
from wharfinger.fleet.agent import NodeReport, RunnerReport
from wharfinger.operations.model import OperationState
from wharfinger.placement.types import Sharding

RunnerSummary = create_model(
    "RunnerSummary", __base__=RunnerReport, __doc__="A runner, its state in a word.", state=(str, ...)
)


class InstanceSummary(Answer):
    """An instance: status, where it runs and what it takes."""

    instance_id: str
    model_id: str
    status: str
    status_reason: str | None
    operation_id: str | None
    created_at: datetime
    ready_at: datetime | None
    node_ids: list[str]
    backend: str
    sharding: Sharding
    context_tokens: int | None
    memory_by_node: dict[str, int]
    runners: list[RunnerSummary]  # type: ignore[valid-type]


class Instances(Answer):
    """Every instance."""

    instances: list[InstanceSummary]


class Failure(Answer):
    """What ended an instance."""

    code: str
    message: str
    log_tail: list[str]
    recorded_at: datetime


class InstanceDetails(InstanceSummary):
    """An instance with its plan and the failure that ended it."""

    plan: PlanShape
    failure: Failure | None


class Node(NodeReport):
    """A node's own report, and what the control plane knows of it."""

    state: Literal["present", "lost"]
    seen_at: datetime
    health: NodeHealth
    reserved_bytes: int


class Nodes(Answer):
    """Every node there is a record of."""

    nodes: list[Node]


class ModelEntry(Answer):
    """A model of the catalog."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    hugging_face_id: str
    name: str
    description: str
    context_length: int
    tags: list[str]
    storage_size_megabytes: int
    supports_tensor: bool
    tasks: list[str]
    is_custom: bool
    family: str
    quantization: str
    base_model: str
    capabilities: list[str]
    architecture: str
    n_layers: int
    catalog_source: str
    artifact_path: str | None


class Models(Answer):
    """The catalog."""

    object: Literal["list"]
    data: list[ModelEntry]


class ModelDetails(ModelEntry):
    """A model with its whole card."""

    card: ModelCard
    card_digest: str


class ModelRemoved(Answer):
    """The model is out of the catalog; its file stays."""

    message: str
    model_id: str


class OperationError(Answer):
    """Why an operation failed."""

    code: str
    message: str | None
    retryable: bool | None


class OperationSummary(Answer):
    """Durable work."""

    id: str
    kind: str
    resource_type: str | None
    resource: str | None
    state: OperationState
    progress: int
    message: str | None
    waiting_reason: str | None
    waiting_since: datetime | None
    waited_s: float
    wait_deadline_s: float | None
    error: OperationError | None
    attempt: int
    max_attempts: int
    cancel_requested: bool
    cleaning_for: str | None
    cleanup_failures: int
    affinity: str | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    result: Any
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    next_attempt_at: datetime | None


class Operations(Answer):
    """Operations, newest first; ``next_cursor`` asks for older ones."""

    operations: list[OperationSummary]
    next_cursor: str | None


class Step(Answer):
    """A step of an operation."""

    name: str
    status: str
    message: str | None
    payload: Any
    attempt: int
    updated_at: datetime


class OperationDetails(OperationSummary):
    """An operation with its steps."""

    steps: list[Step]


class Event(Answer):
    """Something that happened to an operation."""

    sequence: int
    type: str
    level: str
    message: str | None
    payload: Any
    at: datetime


class Events(Answer):
    """Events in order; ``next_after`` asks for later ones."""

    events: list[Event]
    next_after: int | None


class WhoAmI(Answer):
    """The caller."""

    key_id: str
    name: str
    role: str


class Key(Answer):
    """An API key without its secret."""

    key_id: str
    name: str
    role: str
    created_at: datetime
    revoked_at: datetime | None


class NewKey(Key):
    """An API key with its secret, which is shown this once."""

    key: str


class KeyList(Answer):
    """All keys."""

    keys: list[Key]


class KeyRevoked(Answer):
    """The key works no more."""

    message: str
    key_id: str


class Alive(Answer):
    """The process answers."""

    status: Literal["ok"]
    version: str


class Ready(Answer):
    """The control plane can work."""

    status: Literal["ok"]


class NotReady(Answer):
    """It cannot."""

    status: Literal["not ready"]
    problems: list[str]

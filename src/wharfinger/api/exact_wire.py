"""What ``POST /instance`` takes: the contract's instance, with every field it knows and no other."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from wharfinger.api.bodies import RequestBody
from wharfinger.api.text import MAX_NAMES, Name, Names, shown
from wharfinger.api.wire import INSTANCE_TAGS, SHARD_TAGS
from wharfinger.catalog.card import ModelCard
from wharfinger.placement.memory import MAX_CONTEXT_TOKENS, MIN_CONTEXT_TOKENS
from wharfinger.placement.types import InstanceMeta, Sharding

MAX_INSTANCE_ID_CHARACTERS = 56
"""The ids of its runners, which are longer by a rank, have 64."""

_Part = TypeVar("_Part", bound=BaseModel)
_META_BY_TAG = {tag: meta for meta, tag in INSTANCE_TAGS.items()}
_SHARDING_BY_TAG = {tag: sharding for sharding, tag in SHARD_TAGS.items()}
_Layer = Annotated[int, Field(ge=0)]


class _WirePart(RequestBody):
    model_config = ConfigDict(alias_generator=to_camel, strict=True)


class Shard(_WirePart):
    """The piece of the model that one runner holds."""

    model_card: ModelCard
    device_rank: _Layer
    world_size: Annotated[int, Field(ge=1)]
    start_layer: _Layer
    end_layer: _Layer
    n_layers: _Layer
    resolved_backend: Name | None = None
    resolved_engine_build: Name | None = None
    """The node's own is taken."""
    llama_server_settings: dict[str, Any] | None = None
    """The node's own are taken."""
    immediate_exception: Literal[False] = False
    should_timeout: Literal[False] = False


class Assignments(_WirePart):
    """Which runner holds what, and on which node it is."""

    model_id: Name
    runner_to_shard: Annotated[dict[Name, dict[str, Any]], Field(max_length=MAX_NAMES)]
    node_to_runner: Annotated[dict[Name, Name], Field(max_length=MAX_NAMES)]


class ExactInstance(_WirePart):
    """What all instances have. Addresses and ports are typed below, and chosen anew at the launch."""

    instance_id: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=MAX_INSTANCE_ID_CHARACTERS)
    ]
    shard_assignments: Assignments
    context_token_limit: Annotated[int, Field(le=MAX_CONTEXT_TOKENS)] | None = None
    excluded_nodes: Names = Field(default_factory=list)
    system_role: Name | None = None
    requested_context_tokens: Annotated[int, Field(ge=MIN_CONTEXT_TOKENS, le=MAX_CONTEXT_TOKENS)] | None = (
        None
    )
    """The limit counts; this one is what an earlier launch was asked for."""


_Port = Annotated[int, Field(ge=0, le=65535)]
_PerNode = Field(max_length=MAX_NAMES)


class _Host(_WirePart):
    ip: Name
    port: _Port


class _Ring(ExactInstance):
    hosts_by_node: Annotated[dict[Name, Annotated[list[_Host], _PerNode]], _PerNode] = Field(
        default_factory=dict
    )
    ephemeral_port: _Port | None = None


class _Jaccl(ExactInstance):
    jaccl_devices: Annotated[list[Annotated[list[Name | None], _PerNode]], _PerNode] = Field(
        default_factory=list
    )
    jaccl_coordinators: Annotated[dict[Name, Name], _PerNode] = Field(default_factory=dict)


class _Rpc(ExactInstance):
    driver_node: Name | None = None
    donor_endpoints: Annotated[dict[Name, Name], _PerNode] = Field(default_factory=dict)


_KINDS: dict[InstanceMeta, type[ExactInstance]] = {
    InstanceMeta.RING: _Ring,
    InstanceMeta.JACCL: _Jaccl,
    InstanceMeta.RPC: _Rpc,
}


def read_instance(tagged: dict[str, Any]) -> tuple[InstanceMeta, ExactInstance]:
    """The instance under its tag.

    Raises:
        RequestValidationError: naming the wrong fields.
    """
    tag = next(iter(tagged), None)
    if len(tagged) != 1 or tag not in _META_BY_TAG:
        accepted = ", ".join(_META_BY_TAG)
        raise _invalid(("instance",), f"must have exactly one key, one of: {accepted}")
    meta = _META_BY_TAG[tag]
    return meta, _parsed(_KINDS[meta], tagged[tag], ("instance", tag))


def read_shards(meta: InstanceMeta, assignments: Assignments) -> tuple[Sharding, dict[str, Shard]]:
    """The shards by runner, all of one sharding.

    Raises:
        RequestValidationError: naming the wrong fields.
    """
    runners = set(assignments.node_to_runner.values())
    where = ("instance", INSTANCE_TAGS[meta], "shardAssignments")
    if runners != assignments.runner_to_shard.keys() or len(runners) != len(assignments.node_to_runner):
        raise _invalid(where, "nodeToRunner and runnerToShard must name the same runners, one for each node")
    where = (*where, "runnerToShard")
    tags = {tag for shard in assignments.runner_to_shard.values() for tag in shard}
    if len(tags) != 1 or not tags <= _SHARDING_BY_TAG.keys():
        accepted, given = ", ".join(_SHARDING_BY_TAG), shown(", ".join(sorted(tags)) or "none")
        raise _invalid(
            where, f"every shard must have one and the same tag, one of: {accepted}; given: {given}"
        )
    tag = tags.pop()
    shards: dict[str, Shard] = {}
    for runner, shard in assignments.runner_to_shard.items():
        if tag not in shard:
            raise _invalid((*where, runner, tag), "Field required")
        shards[runner] = _parsed(Shard, shard[tag], (*where, runner, tag))
    return _SHARDING_BY_TAG[tag], shards


def _parsed(kind: type[_Part], value: Any, where: tuple[str, ...]) -> _Part:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**problem, "loc": ("body", *where, *problem["loc"])} for problem in problems]
        ) from error


def _invalid(where: tuple[str, ...], message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body", *where), "msg": message, "type": "value_error"}])

"""Nodes that may take part in a set: screened once per run, then measured per backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from wharfinger.placement import backends
from wharfinger.placement.backends import DeviceUse, Span
from wharfinger.placement.memory.interface import Pool
from wharfinger.placement.ranking import bandwidth_of
from wharfinger.placement.shapes import Shape
from wharfinger.placement.single import TagRefusal, awaits_device, gate, offered_refusal
from wharfinger.placement.types import InstanceMeta, NodeFacts, PlanRequest
from wharfinger.placement.workspace import HostMemory, Workspace


@dataclass(frozen=True, slots=True)
class Member:
    """One node as a possible part of a set under one backend."""

    node_id: str
    node: NodeFacts
    tag: str
    """The backend it would run."""
    pools: tuple[Pool, ...]
    """Measured pools, largest first."""
    host: HostMemory
    usable: int
    """Bytes it brings: all devices for engines that lay layers over them, else the largest device."""
    rank_key: tuple[int, float, float, float, int, str]
    """Sorts nodes by what a plan ranks by: bandwidth unknown, bandwidth, files, load, memory, id (more is negative)."""
    all_bytes: int
    """Bytes of all its measured pools: no shard can take more."""


@dataclass(frozen=True)
class MemberIndex:
    """Members of one backend, sorted once."""

    by_rank: tuple[Member, ...]
    """Best-ranked first."""
    refused: dict[str, TagRefusal]
    """Node id to why a linked node that has the backend is not among them."""
    lonely: tuple[NodeFacts, ...] = ()
    """Nodes that have the backend but no link of the kind that is needed."""

    @cached_property
    def by_memory(self) -> tuple[Member, ...]:
        """Most memory first."""
        return tuple(largest(self.by_rank))

    @cached_property
    def by_id(self) -> dict[str, Member]:
        """Members by node id."""
        return {member.node_id: member for member in self.by_rank}

    @cached_property
    def rank_of(self) -> dict[str, int]:
        """Place in ``by_rank`` by node id."""
        return {member.node_id: index for index, member in enumerate(self.by_rank)}

    @cached_property
    def memory_rank_of(self) -> dict[str, int]:
        """Place in ``by_memory`` by node id."""
        return {member.node_id: index for index, member in enumerate(self.by_memory)}

    @cached_property
    def brought(self) -> tuple[int, ...]:
        """``brought[k]`` is the most bytes any ``k`` members bring."""
        return (
            0,
            *accumulate(member.all_bytes for member in sorted(self.by_rank, key=lambda m: -m.all_bytes)),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that may share a model: those with one backend, or unlike ones with one engine."""

    tag: str
    """The backend, or the bare engine."""
    preference: int
    """Best place in the card's preference that a set of the group can have."""


@dataclass(slots=True)
class Screening:
    """Outcome of the filters that come before memory, for one set of exclusions."""

    serving: tuple[NodeFacts, ...]
    gated: dict[str, str]
    """Node id to the code of the filter that removed it."""
    carriers: dict[str, tuple[NodeFacts, ...]] = field(default_factory=dict[str, tuple[NodeFacts, ...]])
    """Nodes that have a backend, by tag."""
    members: dict[tuple[str, bool, bool], MemberIndex] = field(
        default_factory=dict[tuple[str, bool, bool], MemberIndex]
    )
    """Possible members of sets: by tag, whether RDMA is needed, whether one driver suffices."""
    groups: tuple[Group, ...] | None = None
    spanning: int | None = None
    """How many of the serving nodes have an engine that can span machines."""
    able_together: dict[tuple[object, ...], tuple[list[NodeFacts], ...]] = field(
        default_factory=dict[tuple[object, ...], tuple[list[NodeFacts], ...]]
    )
    """Nodes that hold the model at least by the sum of their memory, by what a request asks of their number."""


def screen(work: Workspace, request: PlanRequest) -> Screening:
    """Run every filter before memory once per set of exclusions and backend."""
    key = (request.excluded_node_ids, request.backend)
    found = work.screenings.get(key)
    if found is None:
        gated: dict[str, str] = {}
        serving: list[NodeFacts] = []
        for node in work.nodes:
            code = gate(work, node, request)
            if code is None:
                serving.append(node)
            else:
                gated[node.node_id] = code
        found = work.screenings[key] = Screening(tuple(serving), gated)
    return found


def spanning_groups(work: Workspace, request: PlanRequest) -> tuple[Group, ...]:
    """Groups of serving nodes whose engine can span machines, most preferred first.

    Nodes with one backend come before unlike nodes of the same place.
    """
    screening = screen(work, request)
    if screening.groups is None:
        offered = {tags for node in screening.serving if (tags := work.tags(node, request.backend))}
        tags = {tag for each in offered for tag in each if backends.span_of(tag) is not Span.NONE}
        groups = [
            Group(tag, work.preference(tag))
            for tag in backends.eligible_tags(work.card, tags, request.backend)
        ]
        for engine in sorted({backends.engine_of(tag) for tag in tags}):
            own = [tag for tag in tags if backends.engine_of(tag) == engine]
            if len(own) > 1 and may_mix(work, own):
                groups.append(Group(engine, sorted(map(work.preference, own))[1]))
        screening.groups = tuple(sorted(groups, key=lambda group: group.preference))
    return screening.groups


def spanning_nodes(work: Workspace, request: PlanRequest) -> int:
    """How many serving nodes have an engine that can share a model with other nodes."""
    screening = screen(work, request)
    if screening.spanning is None:
        able = [backends.any_spans(work.tags(node, request.backend)) for node in screening.serving]
        screening.spanning = sum(able)
    return screening.spanning


def may_mix(work: Workspace, tags: Sequence[str]) -> bool:
    """Whether members may run different backends of one engine.

    vLLM's ranks talk over one accelerator's library. A vision projector over llama.cpp RPC needs one accelerator.
    """
    if len({backends.engine_of(tag) for tag in tags}) > 1:
        return False
    span = backends.span_of(tags[0])
    one_accelerator = len({compute for tag in tags if (compute := backends.compute_of(tag))}) <= 1
    projector = any(companion.role == "projector" for companion in work.card.companions)
    return one_accelerator or not (span is Span.MESH or (span is Span.STAR and projector))


def _own_tags(work: Workspace, node: NodeFacts, request: PlanRequest, tag: str) -> tuple[str, ...]:
    """Backends of the node that count as ``tag``, best first: itself, or those of a bare engine."""
    tags = work.tags(node, request.backend)
    if backends.compute_of(tag) is None:
        return tuple(own for own in tags if backends.engine_of(own) == tag)
    return (tag,) if tag in tags else ()


def _measure_best(work: Workspace, node: NodeFacts, tags: Sequence[str]) -> Member | TagRefusal:
    """What the node brings with the first backend it can use; else why not with the best."""
    first: TagRefusal | None = None
    for tag in tags:
        outcome = measure(work, node, tag)
        if isinstance(outcome, Member):
            return outcome
        first = first or outcome
    assert first is not None, "carriers have at least one backend"
    return first


def carriers(work: Workspace, request: PlanRequest, tag: str) -> tuple[NodeFacts, ...]:
    """Serving nodes that have the backend, or one of the engine when ``tag`` is a bare engine."""
    screening = screen(work, request)
    found = screening.carriers.get(tag)
    if found is None:
        found = screening.carriers[tag] = tuple(
            node for node in screening.serving if _own_tags(work, node, request, tag)
        )
    return found


def linked_members(work: Workspace, request: PlanRequest, shape: Shape) -> MemberIndex:
    """Nodes with the backend, a link of the kind the shape needs and measured memory."""
    screening = screen(work, request)
    rdma, star = shape.meta is InstanceMeta.JACCL, shape.span is Span.STAR
    key = (shape.tag, rdma, star)
    found = screening.members.get(key)
    if found is None:
        linked = work.links.rdma_mutual if rdma else work.links.mutual
        members: list[Member] = []
        refused: dict[str, TagRefusal] = {}
        lonely: list[NodeFacts] = []
        for node in carriers(work, request, shape.tag):
            if not (work.links.observed_from(node.node_id) if star else node.node_id in linked):
                lonely.append(node)
                continue
            outcome = _measure_best(work, node, _own_tags(work, node, request, shape.tag))
            if isinstance(outcome, Member):
                outcome = awaits_device(work, node, outcome.tag, request.backend) or outcome
            if isinstance(outcome, Member):
                members.append(outcome)
            else:
                refused[node.node_id] = outcome
        members.sort(key=lambda member: member.rank_key)
        found = screening.members[key] = MemberIndex(tuple(members), refused, tuple(lonely))
    return found


def measure(work: Workspace, node: NodeFacts, tag: str) -> Member | TagRefusal:
    """What the node brings to a set, or the missing fact or filter that keeps it out."""
    offered = work.pools(node, tag)
    refusal = offered_refusal(work, node, tag, offered)
    if refusal is not None:
        return refusal
    pools = tuple(
        sorted(offered.devices, key=lambda pool: (-(pool.usable_bytes or 0), pool.device_index or 0))
    )
    layered = backends.device_use(tag) is DeviceUse.LAYERS
    usable = sum(pool.usable_bytes or 0 for pool in pools) if layered else pools[0].usable_bytes or 0
    bandwidth = bandwidth_of(node, pools[0].device_index)
    rank_key = (
        1 if bandwidth is None else 0,
        -(bandwidth or 0.0),
        -node.local_artifacts.get(work.card.model_id, 0.0),
        float(work.instance_counts.get(node.node_id, 0) + (node.active_requests or 0)),
        -usable,
        node.node_id,
    )
    return Member(
        node.node_id,
        node,
        tag,
        pools,
        offered.host,
        usable,
        rank_key,
        sum(pool.usable_bytes or 0 for pool in pools),
    )


def largest(members: Iterable[Member]) -> list[Member]:
    """Members by the memory they bring, most first, ids breaking ties."""
    return sorted(members, key=lambda member: (-member.usable, member.node_id))

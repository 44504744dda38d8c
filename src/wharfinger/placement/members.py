"""Nodes that may take part in a set: screened once per run, then measured per backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from wharfinger.placement import backends, codes
from wharfinger.placement.backends import DeviceUse, Span
from wharfinger.placement.memory.interface import Pool
from wharfinger.placement.ranking import bandwidth_of
from wharfinger.placement.single import TagRefusal, gate, needs_host, offered_refusal
from wharfinger.placement.types import NodeFacts, PlanRequest
from wharfinger.placement.workspace import HostMemory, Workspace


@dataclass(frozen=True, slots=True)
class Member:
    """One node as a possible part of a set under one backend."""

    node: NodeFacts
    pools: tuple[Pool, ...]
    """Measured pools, largest first."""
    host: HostMemory
    usable: int
    """Bytes it brings: all devices for engines that lay layers over them, else the largest device."""
    rank_key: tuple[object, ...]
    """Sorts nodes by what a plan ranks by: speed, files, load, memory, id."""
    all_bytes: int
    """Bytes of all its measured pools: no shard can take more."""

    @property
    def node_id(self) -> str:
        """Id of the node."""
        return self.node.node_id


@dataclass(frozen=True)
class MemberIndex:
    """Members of one backend, sorted once."""

    by_rank: tuple[Member, ...]
    """Best-ranked first."""
    refused: dict[str, TagRefusal]
    """Node id to why a node that has the backend is not among them."""

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


@dataclass(slots=True)
class Screening:
    """Outcome of the filters that come before memory, for one set of exclusions."""

    serving: tuple[NodeFacts, ...]
    gated: dict[str, str]
    """Node id to the code of the filter that removed it."""
    by_tag: dict[str, MemberIndex] = field(default_factory=dict[str, MemberIndex])
    linked: dict[tuple[str, bool, bool], MemberIndex] = field(
        default_factory=dict[tuple[str, bool, bool], MemberIndex]
    )
    """Members of a backend that have links of the kind a shape needs: by tag, RDMA, one-way."""
    spanning: tuple[str, ...] | None = None


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


def spanning_tags(work: Workspace, request: PlanRequest) -> tuple[str, ...]:
    """Backends of serving nodes that can span machines, best first."""
    screening = screen(work, request)
    if screening.spanning is None:
        tags = {tag for node in screening.serving for tag in work.tags(node, request.backend)}
        spanning = [tag for tag in tags if backends.span_of(tag) is not Span.NONE]
        screening.spanning = backends.eligible_tags(work.card, spanning, request.backend)
    return screening.spanning


def members_for(work: Workspace, request: PlanRequest, tag: str) -> MemberIndex:
    """Nodes with the backend and measured memory, and why others that have the backend are out."""
    screening = screen(work, request)
    found = screening.by_tag.get(tag)
    if found is None:
        members: list[Member] = []
        refused: dict[str, TagRefusal] = {}
        for node in screening.serving:
            if tag not in work.tags(node, request.backend):
                continue
            outcome = _measure(work, node, tag)
            if isinstance(outcome, Member):
                members.append(outcome)
            else:
                refused[node.node_id] = outcome
        members.sort(key=lambda member: member.rank_key)
        found = screening.by_tag[tag] = MemberIndex(tuple(members), refused)
    return found


def linked_members(
    work: Workspace, request: PlanRequest, tag: str, *, rdma: bool, one_way: bool
) -> MemberIndex:
    """Members of a backend with at least one link of the kind that is needed."""
    screening = screen(work, request)
    key = (tag, rdma, one_way)
    found = screening.linked.get(key)
    if found is None:
        members = members_for(work, request, tag)
        linked = work.links.rdma_mutual if rdma else work.links.mutual
        kept = tuple(
            member
            for member in members.by_rank
            if (work.links.observed_from(member.node_id) if one_way else member.node_id in linked)
        )
        found = screening.linked[key] = MemberIndex(kept, members.refused)
    return found


def _measure(work: Workspace, node: NodeFacts, tag: str) -> Member | TagRefusal:
    offered = work.pools(node, tag)
    refusal = offered_refusal(work, node, tag, offered)
    if refusal is not None:
        return refusal
    if offered.host_missing and not offered.host.shared and needs_host(work, tag):
        return TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=offered.host_missing)
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
        work.instance_counts.get(node.node_id, 0) + (node.active_requests or 0),
        -usable,
        node.node_id,
    )
    return Member(node, pools, offered.host, usable, rank_key, sum(pool.usable_bytes or 0 for pool in pools))


def largest(members: Iterable[Member]) -> list[Member]:
    """Members by the memory they bring, most first, ids breaking ties."""
    return sorted(members, key=lambda member: (-member.usable, member.node_id))

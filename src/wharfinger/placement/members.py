"""Nodes that may take part in a set: screened once per run, then measured per backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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

    @property
    def node_id(self) -> str:
        """Id of the node."""
        return self.node.node_id


@dataclass(slots=True)
class Screening:
    """Outcome of the filters that come before memory, for one set of exclusions."""

    serving: tuple[NodeFacts, ...]
    gated: dict[str, str]
    """Node id to the code of the filter that removed it."""
    by_tag: dict[str, tuple[tuple[Member, ...], dict[str, TagRefusal]]] = field(
        default_factory=dict[str, tuple[tuple[Member, ...], dict[str, TagRefusal]]]
    )


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
    tags = {tag for node in screen(work, request).serving for tag in work.tags(node, request.backend)}
    spanning = [tag for tag in tags if backends.span_of(tag) is not Span.NONE]
    return backends.eligible_tags(work.card, spanning, request.backend)


def members_for(
    work: Workspace, request: PlanRequest, tag: str
) -> tuple[tuple[Member, ...], dict[str, TagRefusal]]:
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
        found = screening.by_tag[tag] = (tuple(members), refused)
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
    return Member(node, pools, offered.host, usable, rank_key)


def largest(members: Iterable[Member]) -> list[Member]:
    """Members by the memory they bring, most first, ids breaking ties."""
    return sorted(members, key=lambda member: (-member.usable, member.node_id))

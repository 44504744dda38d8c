"""Writing a chosen candidate out as a plan: ranks, ports, addresses, score."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wharfinger.placement import backends, memory
from wharfinger.placement.links import COORDINATOR_ORDER
from wharfinger.placement.ranking import Candidate, Score, score_parts
from wharfinger.placement.types import InstanceMeta, LinkFacts, NodeFacts, Plan, RankPlan
from wharfinger.placement.workspace import Workspace

NOT_A_NEIGHBOUR: Final = "198.51.100.1"
"""Address standing for ring members that are not neighbours (TEST-NET-2, never routed)."""
ANY_ADDRESS: Final = "0.0.0.0"
FLAG_CONTEXT_LENGTH: Final = "context_length_unknown"
"""The card names no window of its own: the one stamped is what memory allows, and the model may end before."""


def build_plan(work: Workspace, candidate: Candidate, ranked: Score) -> Plan:
    """The plan of a candidate, complete enough to reserve and launch."""
    members, fit, tag = candidate.members, candidate.fit, candidate.tag
    port = work.free_port(members)
    return Plan(
        model_id=work.card.model_id,
        card_digest=work.card_digest,
        sharding=candidate.sharding,
        meta=candidate.meta,
        ranks=_ranks(work, candidate),
        context_tokens=fit.context_tokens,
        max_context_tokens=fit.max_context_tokens,
        reserves_context_at_load=memory.reserves_context_at_load(tag),
        kv_bytes_per_token=work.kv_bytes_per_token(tag),
        settings=work.settings,
        score=score_parts(ranked),
        flags=_flags(work, candidate),
        hosts_by_node=_hosts(work, candidate, port),
        port=port,
        coordinators=_coordinators(work, candidate, port),
        rdma_interfaces=_rdma_interfaces(work, candidate),
    )


def _flags(work: Workspace, candidate: Candidate) -> tuple[str, ...]:
    flags = set(candidate.fit.flags)
    if not work.card.context_length and work.kv_bytes_per_token(candidate.tag) is not None:
        flags.add(FLAG_CONTEXT_LENGTH)
    return tuple(sorted(flags))


def _ranks(work: Workspace, candidate: Candidate) -> tuple[RankPlan, ...]:
    n_layers, engine = work.card.n_layers, backends.engine_of(candidate.tag)
    if len(candidate.members) == 1:
        node, tag = candidate.members[0], candidate.fit.arrangement.tag_of(0)
        build = node.engine_builds.get(engine)
        return (RankPlan(node.node_id, 0, 0, n_layers, tag, build, candidate.fit.charges[0]),)
    spans = [[n_layers, 0] for _ in candidate.members]
    for stage, (start, end) in zip(candidate.fit.arrangement.stages, candidate.fit.ranges, strict=True):
        span = spans[stage.member]
        span[0], span[1] = min(span[0], start), max(span[1], end)
    ranks: list[RankPlan] = []
    for index, (node, charges) in enumerate(zip(candidate.members, candidate.fit.charges, strict=True)):
        start, end = spans[index]
        if candidate.meta is InstanceMeta.RPC:
            # The contract's RPC shape: the driver holds the nominal whole, donors an empty shard.
            start, end = (0, n_layers) if index == 0 else (0, 0)
        tag, build = candidate.fit.arrangement.tag_of(index), node.engine_builds.get(engine)
        ranks.append(RankPlan(node.node_id, index, start, end, tag, build, charges))
    return tuple(ranks)


def _hosts(
    work: Workspace, candidate: Candidate, port: int | None
) -> Mapping[str, tuple[tuple[str, int], ...]]:
    members = candidate.members
    if port is None:
        return MappingProxyType({})
    if candidate.meta is InstanceMeta.RPC:
        driver, *donors = members
        return MappingProxyType(
            {donor.node_id: (_address(work, driver, donor, port, routable=True),) for donor in donors}
        )
    if candidate.meta is InstanceMeta.JACCL:
        return MappingProxyType({})
    width = len(members)
    hosts: dict[str, tuple[tuple[str, int], ...]] = {}
    for index, node in enumerate(members):
        row: list[tuple[str, int]] = []
        for other, peer in enumerate(members):
            if other == index:
                row.append((ANY_ADDRESS, port))
            elif (other - index) % width in (1, width - 1):
                row.append(_address(work, node, peer, port))
            else:
                row.append((NOT_A_NEIGHBOUR, 0))
        hosts[node.node_id] = tuple(row)
    return MappingProxyType(hosts)


def _address(
    work: Workspace, source: NodeFacts, sink: NodeFacts, port: int, *, routable: bool = False
) -> tuple[str, int]:
    return _known_address(work.links.best(source.node_id, sink.node_id, routable=routable)), port


def _known_address(link: LinkFacts | None) -> str:
    """The address of a link; sets are only made over links that have one."""
    if link is None or link.address is None:
        raise ValueError("a plan was made over a link without an address")
    return link.address


def _coordinators(work: Workspace, candidate: Candidate, port: int | None) -> Mapping[str, tuple[str, int]]:
    if candidate.meta is not InstanceMeta.JACCL or port is None:
        return MappingProxyType({})
    first, *others = candidate.members
    found = {first.node_id: (ANY_ADDRESS, port)}
    for node in others:
        link = work.links.best(node.node_id, first.node_id, COORDINATOR_ORDER)
        found[node.node_id] = (_known_address(link), port)
    return MappingProxyType(found)


def _rdma_interfaces(work: Workspace, candidate: Candidate) -> tuple[tuple[str | None, ...], ...]:
    if candidate.meta is not InstanceMeta.JACCL:
        return ()
    ids = [node.node_id for node in candidate.members]
    return tuple(
        tuple(None if source == sink else work.links.rdma_interface(source, sink) for sink in ids)
        for source in ids
    )

"""Observed links: who reaches whom, over which address, and the best order of a ring."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, permutations
from typing import Final

from wharfinger.placement.types import LinkFacts

RING_ORDER: Final = ("thunderbolt", "maybe_ethernet", "ethernet", "wifi", "unknown", "vpn")
"""Interfaces for bulk traffic between neighbours, best first."""
COORDINATOR_ORDER: Final = ("ethernet", "wifi", "unknown", "maybe_ethernet", "thunderbolt", "vpn")
"""Interfaces for reaching a coordinator, best first."""
_VPN_NETWORKS: Final = (ipaddress.ip_network("100.64.0.0/10"), ipaddress.ip_network("fd7a:115c:a1e0::/48"))
_EXACT_RING_NODES: Final = 7
"""Up to here every ring is compared; beyond, the nearest neighbour is taken. 6! / 2 = 360 rings."""


@lru_cache(maxsize=65536)
def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, or ``None`` when it is a name."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


@lru_cache(maxsize=65536)
def _in_vpn(address: str) -> bool:
    ip = _ip(address)
    return ip is not None and any(ip in network for network in _VPN_NETWORKS if network.version == ip.version)


def interface_class(link: LinkFacts) -> str:
    """The link's interface, except that an address of a VPN range is ``vpn`` whatever its label says."""
    if link.address is not None and _in_vpn(link.address):
        return "vpn"
    return link.interface if link.interface in RING_ORDER else "unknown"


def is_routable(link: LinkFacts) -> bool:
    """False for link-local and loopback addresses; a link without an address, or with a name, counts as routable."""
    ip = None if link.address is None else _ip(link.address)
    return ip is None or not (ip.is_link_local or ip.is_loopback)


class LinkIndex:
    """Links by pair of nodes. A link without a reverse does not make a pair."""

    def __init__(self, links: Iterable[LinkFacts]) -> None:
        self._best: dict[tuple[str, str, tuple[str, ...], bool], LinkFacts | None] = {}
        self._costs: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._by_pair: defaultdict[tuple[str, str], list[LinkFacts]] = defaultdict(list)
        self._rdma: set[tuple[str, str]] = set()
        for link in links:
            pair = (link.source, link.sink)
            self._by_pair[pair].append(link)
            if link.rdma:
                self._rdma.add(pair)

    @cached_property
    def mutual(self) -> dict[str, frozenset[str]]:
        """Nodes each node is linked with in both directions."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for source, sink in self._by_pair:
            if (sink, source) in self._by_pair:
                found[source].add(sink)
        return {node: frozenset(others) for node, others in found.items()}

    @cached_property
    def reaches(self) -> dict[str, frozenset[str]]:
        """Nodes each node reaches over a routable address, whether or not they reach it."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for (source, sink), links in self._by_pair.items():
            if any(is_routable(link) for link in links):
                found[source].add(sink)
        return {node: frozenset(others) for node, others in found.items()}

    @cached_property
    def rdma_mutual(self) -> dict[str, frozenset[str]]:
        """Nodes each node is linked with over RDMA in both directions."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for source, sink in self._rdma:
            if (sink, source) in self._rdma:
                found[source].add(sink)
        return {node: frozenset(others) for node, others in found.items()}

    def observed_from(self, node_id: str) -> bool:
        """Whether any link of the node, in either direction, has been observed."""
        return node_id in self._touched

    @cached_property
    def _touched(self) -> frozenset[str]:
        return frozenset(node for pair in self._by_pair for node in pair)

    def best(
        self, source: str, sink: str, order: tuple[str, ...] = RING_ORDER, *, routable: bool = False
    ) -> LinkFacts | None:
        """Best link from source to sink: by interface class, then bandwidth, latency and address."""
        key = (source, sink, order, routable)
        if key not in self._best:
            links = self._by_pair.get((source, sink), ())
            if routable:
                links = [link for link in links if is_routable(link)]
            self._best[key] = (
                links[0]
                if len(links) == 1
                else min(
                    links,
                    key=lambda link: (
                        order.index(interface_class(link)),
                        *_speed_key(link),
                        link.address or "~",
                    ),
                    default=None,
                )
            )
        return self._best[key]

    def rdma_interface(self, source: str, sink: str) -> str | None:
        """Name of the RDMA interface that leads from source to sink; ``None`` without one."""
        names = [link.rdma_interface for link in self._by_pair.get((source, sink), ()) if link.rdma]
        return min((name for name in names if name is not None), default=None)

    def cost(self, left: str, right: str) -> tuple[int, float, float]:
        """How bad the worse direction between two neighbours is; smaller is better."""
        key = (left, right) if left < right else (right, left)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = max(self._one_way_cost(*key), self._one_way_cost(*key[::-1]))
        return found

    def _one_way_cost(self, source: str, sink: str) -> tuple[int, float, float]:
        link = self.best(source, sink)
        if link is None:
            return (len(RING_ORDER), 0.0, 0.0)
        return (RING_ORDER.index(interface_class(link)), *_speed_key(link))

    def ring(self, node_ids: Sequence[str]) -> tuple[str, ...] | None:
        """Best closed ring over the nodes, from the smallest id on; ``None`` when they do not form one.

        Up to seven nodes every ring is compared by its worst link, then by the sum over all; beyond that the
        nearest neighbour is followed.
        """
        ids = sorted(node_ids)
        if len(ids) <= 2:
            return tuple(ids) if self.closed(ids) else None
        if self._uniform(ids):
            return tuple(ids)
        if len(ids) <= _EXACT_RING_NODES:
            return self._exact_ring(ids)
        return self._nearest_ring(ids)

    def closed(self, ring: Sequence[str]) -> bool:
        """Whether every neighbour in the ring is linked in both directions."""
        if len(ring) == 1:
            return True
        mutual = self.mutual
        pairs = [*pairwise(ring), (ring[-1], ring[0])]
        return all(right in mutual.get(left, ()) for left, right in pairs)

    def _uniform(self, ids: Sequence[str]) -> bool:
        first = self.cost(ids[0], ids[1])
        if first[0] == len(RING_ORDER):
            return False
        return all(self.cost(a, b) == first for i, a in enumerate(ids) for b in ids[i + 1 :])

    def _exact_ring(self, ids: Sequence[str]) -> tuple[str, ...] | None:
        head, *rest = ids
        costs = {(a, b): self.cost(a, b) for a in ids for b in ids if a != b}
        best: tuple[tuple[object, ...], tuple[str, ...]] | None = None
        for order in permutations(rest):
            if order[0] > order[-1]:
                continue  # the same ring the other way round
            ring = (head, *order)
            edges = sorted((costs[pair] for pair in [*pairwise(ring), (ring[-1], head)]), reverse=True)
            if edges[0][0] == len(RING_ORDER):
                continue
            key = (tuple(edges), ring)
            if best is None or key < best:
                best = key
        return best[1] if best else None

    def _nearest_ring(self, ids: Sequence[str]) -> tuple[str, ...] | None:
        for head in ids:
            ring, left = [head], set(ids) - {head}
            while left:
                near = min(left, key=lambda node: (self.cost(ring[-1], node), node))
                ring.append(near)
                left.remove(near)
            if self.closed(ring):
                start = ring.index(ids[0])
                return tuple(ring[start:] + ring[:start])
        return None


def _speed_key(link: LinkFacts) -> tuple[float, float]:
    bandwidth = -link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s is not None else 0.0
    return bandwidth, link.latency_s if link.latency_s is not None else float("inf")

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


@lru_cache(maxsize=65536)
def _is_loopback(address: str) -> bool:
    ip = _ip(address)
    return ip is not None and ip.is_loopback


def is_dialable(link: LinkFacts) -> bool:
    """Whether the sink can be reached on this path: its address is known (or a name) and is no loopback address."""
    return link.address is not None and not _is_loopback(link.address)


def is_routable(link: LinkFacts) -> bool:
    """Dialable, and not over a link-local address."""
    ip = None if link.address is None else _ip(link.address)
    return is_dialable(link) and (ip is None or not ip.is_link_local)


class LinkIndex:
    """Links by pair of nodes. A link without a reverse does not make a pair. Each view is built when first asked for.

    Only dialable links lead anywhere; those of unknown address are remembered as facts that are missing.
    """

    def __init__(self, links: Iterable[LinkFacts]) -> None:
        self.links = tuple(links)
        self._best: dict[tuple[str, str, tuple[str, ...], bool], LinkFacts | None] = {}
        self._costs: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._grouped: dict[str, dict[str, list[LinkFacts]]] = {}

    @cached_property
    def mutual(self) -> dict[str, frozenset[str]]:
        """Nodes each node can dial, and is dialled by."""
        return _mutual(link for links in self._dialable.values() for link in links)

    @cached_property
    def reaches(self) -> dict[str, frozenset[str]]:
        """Nodes each node reaches over a routable address, whether or not they reach it."""
        found: dict[str, frozenset[str]] = {}
        for source, links in self._dialable.items():
            sinks = frozenset(link.sink for link in links if is_routable(link))
            if sinks:
                found[source] = sinks
        return found

    @cached_property
    def rdma_mutual(self) -> dict[str, frozenset[str]]:
        """Nodes each node is linked with over RDMA interfaces of known name and can dial, in both directions.

        The coordinator is dialled over an address.
        """
        named = _mutual(link for link in self.links if link.rdma and link.rdma_interface is not None)
        both = {node: others & self.mutual.get(node, frozenset()) for node, others in named.items()}
        return {node: others for node, others in both.items() if others}

    @cached_property
    def _seen_mutual(self) -> dict[str, frozenset[str]]:
        return _mutual(self.links)

    @cached_property
    def _seen_rdma(self) -> dict[str, frozenset[str]]:
        return _mutual(link for link in self.links if link.rdma)

    @cached_property
    def all_named(self) -> bool:
        """Whether every RDMA link names its interface."""
        return all(not link.rdma or link.rdma_interface is not None for link in self.links)

    @cached_property
    def all_addressed(self) -> bool:
        """Whether every link's address is known."""
        return all(link.address is not None for link in self.links)

    def unnamed_rdma(self, left: str, right: str) -> bool:
        """Whether only an interface's name is missing for the two nodes to talk over RDMA."""
        if self.all_named or right in self.rdma_mutual.get(left, ()):
            return False
        return right in self._seen_rdma.get(left, ()) and not self.unaddressed(left, right)

    def unaddressed(self, left: str, right: str) -> bool:
        """Whether only an address is missing for the two nodes to be neighbours."""
        if self.all_addressed or right in self.mutual.get(left, ()):
            return False
        return right in self._seen_mutual.get(left, ()) and any(
            link.address is None for link in (*self._pair(left, right), *self._pair(right, left))
        )

    def unaddressed_from(self, source: str, sink: str) -> bool:
        """Whether only an address is missing for the source to reach the sink."""
        if self.all_addressed or sink in self.reaches.get(source, ()):
            return False
        return any(link.address is None for link in self._pair(source, sink))

    def observed_from(self, node_id: str) -> bool:
        """Whether any link of the node, in either direction, has been observed."""
        return node_id in self._touched

    @cached_property
    def _touched(self) -> frozenset[str]:
        return frozenset(link.sink for link in self.links).union(self._by_source)

    @cached_property
    def _by_source(self) -> dict[str, list[LinkFacts]]:
        found: defaultdict[str, list[LinkFacts]] = defaultdict(list)
        for link in self.links:
            found[link.source].append(link)
        return found

    @cached_property
    def _dialable(self) -> dict[str, list[LinkFacts]]:
        addresses = {link.address for link in self.links}
        if None not in addresses and not any(_is_loopback(address) for address in addresses if address):
            return self._by_source
        return {source: list(filter(is_dialable, links)) for source, links in self._by_source.items()}

    def _pair(self, source: str, sink: str) -> Sequence[LinkFacts]:
        """Every link from source to sink, grouped for one source at a time."""
        grouped = self._grouped.get(source)
        if grouped is None:
            grouped = self._grouped[source] = {}
            for link in self._by_source.get(source, ()):
                grouped.setdefault(link.sink, []).append(link)
        return grouped.get(sink, ())

    def best(
        self, source: str, sink: str, order: tuple[str, ...] = RING_ORDER, *, routable: bool = False
    ) -> LinkFacts | None:
        """Best dialable link from source to sink: by interface class, then bandwidth, latency and address."""
        key = (source, sink, order, routable)
        if key not in self._best:
            usable = is_routable if routable else is_dialable
            links = [link for link in self._pair(source, sink) if usable(link)]
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
        names = [link.rdma_interface for link in self._pair(source, sink) if link.rdma]
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


def _mutual(links: Iterable[LinkFacts]) -> dict[str, frozenset[str]]:
    """Nodes each node has a link to and from."""
    sinks: defaultdict[str, set[str]] = defaultdict(set)
    for link in links:
        sinks[link.source].add(link.sink)
    nobody = set[str]()
    found = {
        node: frozenset([other for other in others if node in sinks.get(other, nobody)])
        for node, others in sinks.items()
    }
    return {node: others for node, others in found.items() if others}


def _speed_key(link: LinkFacts) -> tuple[float, float]:
    bandwidth = -link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s is not None else 0.0
    return bandwidth, link.latency_s if link.latency_s is not None else float("inf")

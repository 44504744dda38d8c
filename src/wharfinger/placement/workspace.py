"""One planning run's view of the facts: sorted, indexed and with every repeated calculation kept.

Keeps nothing between runs but footprints, which depend on the card alone, and does no I/O. Several searches over the
same facts (a preview) share one workspace.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import backends, codes, memory
from wharfinger.placement.links import LinkIndex
from wharfinger.placement.memory.interface import RAM_DOMAIN, Footprint, Pool, ShardShape
from wharfinger.placement.memory.profile import MemoryProfile, profile_of
from wharfinger.placement.ports import free_port
from wharfinger.placement.types import (
    FleetSnapshot,
    MemoryPart,
    NodeFacts,
    NodeRefusal,
    PlanRequest,
    ReservationFacts,
    ServingSettings,
)
from wharfinger.placement.window import WindowGoal, goal_for

if TYPE_CHECKING:
    from wharfinger.placement.fit import Fit, Shortage
    from wharfinger.placement.members import Screening

ENGINE_FLOOR: Final = "engine_floor"
"""Name of the memory part an engine's process takes before it holds a model."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A footprint with its sums taken once."""

    parts: tuple[MemoryPart, ...]
    host_parts: tuple[MemoryPart, ...]
    device_bytes: int
    host_bytes: int
    host_floor_bytes: int
    """The part of ``host_bytes`` the engine's process takes, once per node."""
    flags: tuple[str, ...]

    @classmethod
    def of(cls, print_: Footprint) -> Sized:
        """Sum a footprint."""
        device = host = floor = 0
        for part in print_.parts:
            device += part.size_bytes
        for part in print_.host_parts:
            host += part.size_bytes
            if part.name == ENGINE_FLOOR:
                floor += part.size_bytes
        return cls(print_.parts, print_.host_parts, device, host, floor, print_.flags)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A node's memory beside the devices that run a shard."""

    usable: int | None
    """RAM for host parts, negative when claims exceed it; ``None`` when it was not measured or host parts come out of
    the pool itself."""
    shared: bool
    """RAM and every device are one memory (or the backend runs in RAM)."""
    cap_left: int | None = None
    """What an operator's cap leaves over all pools; ``None`` without a cap."""


@dataclass(frozen=True, slots=True)
class NodePools:
    """What one node offers to one backend."""

    devices: tuple[Pool, ...]
    """Pools a shard's device part may use, all measured; the RAM pool for CPU backends."""
    host: HostMemory
    missing: tuple[str, ...] = ()
    """Facts of devices, or of RAM, that were not measured."""
    host_missing: tuple[str, ...] = ()


def distinctly_named(nodes: Iterable[NodeFacts]) -> tuple[NodeFacts, ...]:
    """The nodes, with the id added to names that several have, so that messages say which one is meant."""
    nodes = tuple(nodes)
    named = Counter(node.name for node in nodes)
    if len(named) == len(nodes):
        return nodes
    return tuple(
        replace(node, name=f"{node.name} ({node.node_id})") if named[node.name] > 1 else node
        for node in nodes
    )


_SizeKey = tuple[str, int, int, int, int, bool]
_MODELS_KEPT: Final = 32
_SIZES_KEPT: Final = 4096
"""Footprints kept of one model; a search that comes to more begins anew the next time."""
_sizes: OrderedDict[tuple[str, ServingSettings], dict[_SizeKey, Sized]] = OrderedDict()


def _sizes_of(card_digest: str, settings: ServingSettings) -> dict[_SizeKey, Sized]:
    """Footprints worked out before for a card and settings: they depend on no fleet."""
    key = (card_digest, settings)
    known = _sizes.get(key)
    if known is None or len(known) > _SIZES_KEPT:
        known = _sizes[key] = {}
        if len(_sizes) > _MODELS_KEPT:
            _sizes.popitem(last=False)
    return known


class Workspace:
    """Facts of one fleet for one card and one way of serving it."""

    def __init__(
        self,
        snapshot: FleetSnapshot,
        card: ModelCard,
        settings: ServingSettings,
        links: LinkIndex | None = None,
    ) -> None:
        """Index lazily; ``links`` is the index of a workspace over the same links, to build it only once."""
        self.snapshot = snapshot
        self._links = links
        self.card = card
        self.settings = settings
        self.card_digest = card.digest
        self.nodes = distinctly_named(sorted(snapshot.nodes, key=lambda node: node.node_id))
        self._tags: dict[tuple[frozenset[str], str | None], tuple[str, ...]] = {}
        self._builds = {need.engine: need.builds for need in card.placement.engine_builds}
        self._pools: dict[tuple[str, str], NodePools] = {}
        self._claims: dict[str, memory.Claims] = {}
        self._sized = _sizes_of(self.card_digest, settings)
        self.screenings: dict[tuple[frozenset[str], str | None], Screening] = {}
        """Filters before memory, run once per set of exclusions and backend."""
        self.probed_windows: dict[object, list[int]] = {}
        """Windows already sized, by shape: see :func:`wharfinger.placement.window.largest_window`."""
        self._goals: dict[tuple[str, int | None, int], WindowGoal] = {}
        self._preference: dict[str, int] = {}
        self._kv: dict[str, int | None] = {}
        self.node_fits: dict[object, Fit | Shortage] = {}
        """Outcomes for one node by backend, window goal and pools, so that equal nodes are sized once."""
        self.ruled_out: dict[tuple[str, int], str] = {}
        """Why a backend cannot use some numbers of a node's devices, by how many there are."""
        self.told: dict[tuple[str, str, str], NodeRefusal] = {}
        """Refusals of nodes for a reason that is not their own, by node, code and words."""

    @cached_property
    def node_by_id(self) -> dict[str, NodeFacts]:
        """Nodes by id."""
        return {node.node_id: node for node in self.nodes}

    @cached_property
    def links(self) -> LinkIndex:
        """Observed links, indexed."""
        return self._links if self._links is not None else LinkIndex(self.snapshot.links)

    @cached_property
    def reservations(self) -> dict[str, tuple[ReservationFacts, ...]]:
        """Reservations by node, in an order that does not depend on the snapshot's."""
        by_node: defaultdict[str, list[ReservationFacts]] = defaultdict(list)
        for reservation in self.snapshot.reservations:
            by_node[reservation.node_id].append(reservation)
        return {
            node_id: tuple(
                sorted(
                    kept,
                    key=lambda r: (
                        r.instance_id,
                        -1 if r.device_index is None else r.device_index,
                        r.size_bytes,
                        r.observed,
                    ),
                )
            )
            for node_id, kept in by_node.items()
        }

    def claims(self, node: NodeFacts) -> memory.Claims:
        """The node's reservations added up by pool."""
        found = self._claims.get(node.node_id)
        if found is None:
            reservations = self.snapshot.reservations and self.reservations.get(node.node_id, ())
            found = self._claims[node.node_id] = memory.Claims.of(node.node_id, reservations)
        return found

    @cached_property
    def instance_counts(self) -> Counter[str]:
        """Instances placed on each node now."""
        return Counter(node_id for instance in self.snapshot.instances for node_id in instance.node_ids)

    @cached_property
    def ports_in_use(self) -> dict[str, frozenset[int]]:
        """Ports taken on each node: those it reports and those of its instances."""
        used = {node.node_id: node.used_ports for node in self.nodes if node.used_ports}
        for instance in self.snapshot.instances:
            if instance.ports:
                for node_id in instance.node_ids:
                    used[node_id] = used.get(node_id, frozenset()) | instance.ports
        return used

    def free_port(self, nodes: Iterable[NodeFacts]) -> int | None:
        """The lowest port that is free on all of the nodes; ``None`` when there is none."""
        return free_port(self.ports_in_use.get(node.node_id, frozenset()) for node in nodes)

    def weight_bytes(self, start: int, end: int) -> int:
        """Weight bytes of layers ``start`` to ``end`` (exclusive)."""
        return self._profile.layer_bytes(start, end)

    def pass_bytes(self, start: int, end: int) -> float:
        """Weight bytes one token reads of layers ``start`` to ``end`` (exclusive), with the output head on the last.

        A tied head reads the embedding table. Of a mixture of experts only the experts used are read.
        """
        read = self.weight_bytes(start, end) * self._active_share
        weights = self.card.weights
        if weights is not None and end == self.card.n_layers:
            read += weights.output_bytes + (weights.embedding_bytes if weights.tied_output else 0)
        return read

    @cached_property
    def _active_share(self) -> float:
        """Share of a layer's weights that one token reads: attention, and gate, up and down of the experts used.

        From the card's widths, so shared experts and routers count as if they were routed; 1 when a width is unknown.
        """
        card, profile = self.card, self._profile
        if not (card.n_experts and card.n_experts_used and card.feed_forward_size):
            return 1.0
        key_value_width = (card.num_key_value_heads or card.num_attention_heads or 0) * (card.head_dim or 0)
        attention = 2 * profile.attention_width + 2 * key_value_width
        expert = 3 * card.feed_forward_size
        used = min(card.n_experts_used, card.n_experts)
        return (attention + used * expert) / (attention + card.n_experts * expert)

    @cached_property
    def _profile(self) -> MemoryProfile:
        return profile_of(self.card)

    @cached_property
    def _uniform(self) -> bool:
        """Whether every layer weighs and remembers the same."""
        n_layers = self.card.n_layers
        same_cache = all(number == n_layers for _, number in self._profile.counts(0, n_layers))
        return same_cache and len(set(self._profile.layer_weights)) == 1

    def tags(self, node: NodeFacts, only: str | None) -> tuple[str, ...]:
        """Backend tags of the node that may run the card, best first; empty when it has not reported engines."""
        offered = self.tags_of_any_build(node, only)
        if not self._builds:
            return offered
        return tuple(tag for tag in offered if self.build_problem(node, tag) is None)

    def build_problem(self, node: NodeFacts, tag: str) -> str | None:
        """Code of why the node's build of a tag's engine will not do for the card; ``None`` when it will."""
        engine = backends.engine_of(tag)
        wanted = self._builds.get(engine)
        if wanted is None:
            return None
        build = node.engine_builds.get(engine)
        if build is None:
            return codes.ENGINE_BUILD_UNKNOWN
        return None if build in wanted else codes.ENGINE_BUILD

    def tags_of_any_build(self, node: NodeFacts, only: str | None) -> tuple[str, ...]:
        """Like :meth:`tags`, whatever builds the card asks for."""
        if node.backends is None:
            return ()
        key = (node.backends, only)
        found = self._tags.get(key)
        if found is None:
            found = self._tags[key] = backends.eligible_tags(self.card, node.backends, only)
        return found

    def pools(self, node: NodeFacts, tag: str) -> NodePools:
        """Memory the node offers to the backend now, existing claims and foreign use already taken off."""
        key = (node.node_id, tag)
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = self._measure(node, tag)
        return found

    def _measure(self, node: NodeFacts, tag: str) -> NodePools:
        claims = self.claims(node)
        measured = pools = memory.usable(node, tag, claims)
        cap_left = memory.node_cap_left(node, claims) if node.memory_cap_bytes is not None else None
        missing: tuple[str, ...] = ()
        only_ram = True
        for pool in pools:
            if pool.missing:
                missing += pool.missing
            elif pool.domain != RAM_DOMAIN:
                only_ram = False
        if missing:
            measured = tuple(pool for pool in pools if pool.usable_bytes is not None)
        if only_ram:
            return NodePools(measured, HostMemory(None, True, cap_left), missing)
        host = memory.host_pool(node, claims)
        left = None if host.usable_bytes is None else host.left_bytes
        return NodePools(measured, HostMemory(left, False, cap_left), missing, host.missing)

    @cached_property
    def can_span(self) -> bool:
        """Whether any engine the card accepts can run over several machines."""
        accepted = backends.accepted_backends(self.card)
        return any(backends.engine_of(entry) in backends.SPANNING_ENGINES for entry in accepted)

    def preference(self, tag: str) -> int:
        """Place of the tag in the card's preference."""
        found = self._preference.get(tag)
        if found is None:
            found = self._preference[tag] = backends.preference_index(self.card, tag)
        return found

    def goal(self, tag: str, request: PlanRequest) -> WindowGoal:
        """The windows to try for a backend under a request."""
        key = (tag, request.context_tokens, request.default_context_tokens)
        found = self._goals.get(key)
        if found is None:
            found = self._goals[key] = goal_for(self.card, tag, request)
        return found

    def sized(self, tag: str, start: int, end: int, width: int, first: bool, context_tokens: int) -> Sized:
        """Footprint of layers ``start`` to ``end`` (exclusive) cut ``width`` ways, at a window."""
        if self._uniform and start > 0 and end < self.card.n_layers:
            start, end = 1, 1 + end - start  # inner ranges of equal layers differ in nothing but their place
        key = (tag, start, end, width, context_tokens, first)
        found = self._sized.get(key)
        if found is None:
            shape = ShardShape(start, end, width, first=first, last=end == self.card.n_layers)
            found = self._sized[key] = Sized.of(
                memory.footprint(self.card, tag, shape, context_tokens, self.settings)
            )
        return found

    def kv_bytes_per_token(self, tag: str) -> int | None:
        """Cache bytes one more token costs under the backend."""
        if tag not in self._kv:
            self._kv[tag] = memory.kv_bytes_per_token(self.card, tag, self.settings)
        return self._kv[tag]

"""The planner's vocabulary: facts in, plans and refusals out.

Everything here is a frozen value. ``None`` means *not measured*; it is never zero. Sizes are bytes, windows are
tokens, bandwidths are bytes per second. Equal facts give equal answers whatever order they arrive in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class MemoryKind(StrEnum):
    """Which rule says how much of a device's memory may be used."""

    DISCRETE = "discrete"
    """VRAM of its own (an NVIDIA or AMD card)."""
    APPLE = "apple"
    """Apple unified memory, wired by Metal."""
    APU = "apu"
    """AMD unified memory: a VRAM carve-out plus GTT."""
    GB10 = "gb10"
    """NVIDIA GB10 unified memory."""
    SYSTEM = "system"
    """Plain RAM, for CPU engines."""


class Role(StrEnum):
    """What a node takes part in (the contract's ``participation``)."""

    FULL = "full"
    MANAGEMENT = "management"
    FFN_ONLY = "ffn_only"


class Sharding(StrEnum):
    """How a model is cut over ranks."""

    PIPELINE = "Pipeline"
    TENSOR = "Tensor"


class InstanceMeta(StrEnum):
    """The contract's transport family of an instance."""

    RING = "MlxRing"
    JACCL = "MlxJaccl"
    RPC = "LlamaRpc"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One accelerator of a node, as measured."""

    index: int
    name: str
    compute: str
    """``cuda``, ``rocm``, ``vulkan``, ``metal``: the second half of a backend tag."""
    memory_kind: MemoryKind
    total_bytes: int | None = None
    used_bytes: int | None = None
    """All use seen on the device, foreign processes included."""
    gtt_total_bytes: int | None = None
    bandwidth_bytes_per_s: float | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One machine you own, as last reported."""

    node_id: str
    name: str
    role: Role = Role.FULL
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    ram_bandwidth_bytes_per_s: float | None = None
    disk_free_bytes: int | None = None
    devices: tuple[DeviceFacts, ...] = ()
    backends: frozenset[str] | None = None
    """Backend tags this node can launch; ``None`` when the node has not reported engines yet."""
    engine_builds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Engine name to exact build string; engines whose build is not known are left out."""
    memory_cap_bytes: int | None = None
    """Most bytes an operator lets us use on this node, over all pools."""
    local_artifacts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Model id to the fraction (0..1) of its files already on this node's disk."""
    active_requests: int | None = None
    reachable: bool = True
    unreachable_reason: str | None = None
    used_ports: frozenset[int] = frozenset()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """A directed path from ``source`` to ``sink`` that was observed to work."""

    source: str
    sink: str
    interface: str = "unknown"
    """``thunderbolt``, ``maybe_ethernet``, ``ethernet``, ``wifi``, ``unknown`` or ``vpn``."""
    address: str | None = None
    """IP address of the sink on this path."""
    rdma: bool = False
    rdma_interface: str | None = None
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReservationFacts:
    """Memory promised to an instance, whether or not telemetry shows it yet."""

    instance_id: str
    node_id: str
    device_index: int | None
    """``None`` is the node's RAM pool."""
    size_bytes: int
    observed: bool = False
    """True once the memory is in use and so part of the observed figures as well."""


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """An instance that is placed now; used for suggestions, ports and load."""

    instance_id: str
    model_id: str
    node_ids: tuple[str, ...]
    ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All facts of one moment. Build it once and plan with it; order of the tuples means nothing."""

    nodes: tuple[NodeFacts, ...]
    links: tuple[LinkFacts, ...] = ()
    reservations: tuple[ReservationFacts, ...] = ()
    instances: tuple[InstanceFacts, ...] = ()
    links_supported: bool = True
    """False where models are not run over several machines at all: wider plans are refused, never pending."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """How an engine will serve the model; it decides cache and buffer sizes."""

    slots: int = 1
    """Sequences served at once."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    """``f16``, ``bf16``, ``f32``, ``q8_0``, ``q5_1``, ``q5_0``, ``q4_1``, ``q4_0``, ``iq4_nl`` or ``fp8``."""
    batch_tokens: int = 2048
    micro_batch_tokens: int = 512
    block_tokens: int = 16
    """Page size of paged-cache engines (vLLM)."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the caller asks for. The same type serves preview, dry run, launch, exact create and repair."""

    sharding: Sharding = Sharding.PIPELINE
    meta: InstanceMeta = InstanceMeta.RING
    min_nodes: int = 1
    max_nodes: int | None = None
    excluded_node_ids: frozenset[str] = frozenset()
    required_node_ids: frozenset[str] = frozenset()
    """All of these must take part."""
    context_tokens: int | None = None
    """The window wished for; may lower what fits, never raise it."""
    backend: str | None = None
    """Only this backend tag; ``None`` follows the card's preference."""
    settings: ServingSettings = ServingSettings()
    default_context_tokens: int = 32768
    """Window given to engines that reserve it at load when nobody asked for one."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One named part of a footprint, e.g. ``weights`` or ``kv_cache``."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceCharge:
    """What one shard takes from one memory pool of a node."""

    device_index: int | None
    """``None`` is the RAM pool."""
    parts: tuple[MemoryPart, ...]
    usable_bytes: int
    start_layer: int = 0
    end_layer: int = 0

    @property
    def needed_bytes(self) -> int:
        """Sum of the parts: what admission reserves."""
        return sum([part.size_bytes for part in self.parts])


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The shard one node holds. Layers are ``start_layer`` (inclusive) to ``end_layer`` (exclusive)."""

    node_id: str
    rank: int
    start_layer: int
    end_layer: int
    backend: str
    engine_build: str | None
    charges: tuple[DeviceCharge, ...]

    @property
    def needed_bytes(self) -> int:
        """Bytes this rank takes on its node over all pools."""
        return sum(charge.needed_bytes for charge in self.charges)


@dataclass(frozen=True, slots=True)
class ScorePart:
    """One term of the ranking, in the order of :data:`docs/placement.md`; larger is better."""

    name: str
    value: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run the model, complete enough to reserve and launch."""

    model_id: str
    card_digest: str
    sharding: Sharding
    meta: InstanceMeta
    ranks: tuple[RankPlan, ...]
    context_tokens: int | None
    """The window a launch would stamp."""
    max_context_tokens: int | None
    reserves_context_at_load: bool
    kv_bytes_per_token: int | None
    settings: ServingSettings
    score: tuple[ScorePart, ...] = ()
    flags: tuple[str, ...] = ()
    """Estimates that are pessimistic or unknown, e.g. ``kv_geometry_unknown``."""
    hosts_by_node: Mapping[str, tuple[tuple[str, int], ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Ring: node to one ``(ip, port)`` per rank. RPC: each donor to the one ``(ip, port)`` its driver uses."""
    port: int | None = None
    coordinators: Mapping[str, tuple[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    """MlxJaccl: node to the ``(ip, port)`` by which it reaches the coordinator, which is rank 0."""
    rdma_interfaces: tuple[tuple[str | None, ...], ...] = ()
    """MlxJaccl: row and column by rank, the interface that leads there; the diagonal is ``None``."""

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Nodes in rank order."""
        return tuple(rank.node_id for rank in self.ranks)

    @property
    def memory_by_node(self) -> dict[str, int]:
        """Bytes admission would charge on each node."""
        return {rank.node_id: rank.needed_bytes for rank in self.ranks}


@dataclass(frozen=True, slots=True)
class PoolCount:
    """How the usable bytes of a memory pool were counted."""

    device_index: int | None
    """``None`` is the RAM pool."""
    usable_bytes: int
    """Negative when more is claimed than there is."""
    figures: Mapping[str, int]
    """``total_bytes``, ``used_bytes``, ``claimed_bytes`` (reservations), ``unseen_bytes`` (of those, what telemetry
    does not show yet), ``ram_available_bytes`` and so on, as the pool's rule reads them."""


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why one node is out: which filter, and the arithmetic when it is memory."""

    node_id: str
    node_name: str
    code: str
    message: str
    needed_bytes: int | None = None
    """Of the memory that is too small; so are the next two. Pools with room to spare do not count."""
    usable_bytes: int | None = None
    """Negative when more is claimed than there is."""
    short_by_bytes: int | None = None
    """``needed_bytes - usable_bytes``."""
    parts: tuple[MemoryPart, ...] = ()
    missing_facts: tuple[str, ...] = ()
    """For pending answers: the facts that have not been measured."""
    counted: tuple[PoolCount, ...] = ()
    """The pools that are too small."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something that would help, already checked by planning it."""

    kind: str
    """``stop_instance``, ``lower_context``, ``other_quantization``, ``add_node``, ``drop_exclusion``, …"""
    message: str
    instance_id: str | None = None
    context_tokens: int | None = None
    model_id: str | None = None
    node_id: str | None = None
    instance_ids: tuple[str, ...] = ()
    """``stop_instances``: all of them, none of which is enough alone."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A structured no (or not yet)."""

    code: str
    """Stable reason code, published in docs/placement.md."""
    category: str
    """The contract's category: ``no_valid_placement``, ``placement_info_pending`` or
    ``model_card_identity_mismatch``."""
    message: str
    """One line in the manner of ``0/5 nodes can run this: 3 short of memory (least short: lab-2 by 1.3 GiB)``."""
    nodes: tuple[NodeRefusal, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Ranked plans, best first; or a refusal when there are none."""

    plans: tuple[Plan, ...]
    refusal: Refusal | None = None
    node_refusals: tuple[NodeRefusal, ...] = ()
    """Why the nodes that are in no plan are out, also when there are plans."""

    @property
    def best(self) -> Plan | None:
        """The plan a quick launch takes."""
        return self.plans[0] if self.plans else None


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """One row of ``GET /instance/previews``; exactly one of ``plan`` and ``refusal`` is set."""

    sharding: Sharding
    meta: InstanceMeta
    plan: Plan | None
    refusal: Refusal | None
    alternative: bool = False

"""Fleets that are described instead of measured: what-if nodes and ``fleet.yaml``.

``+2xRTX4090-24GB`` is one machine with two such cards. ``+2xM4Max-128GB`` and ``+2xcpu-64GB`` are two machines,
because a machine has one of those. Sizes follow the one rule of :mod:`wharfinger.sizes`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from wharfinger.placement.fleet_fields import LEAST_BYTES, MOST_DEVICES, Fields, FleetError
from wharfinger.placement.hardware import (
    ACCELERATORS,
    GIB,
    accelerator_named,
    compute_of_name,
    known_accelerator,
)
from wharfinger.placement.links import RING_ORDER
from wharfinger.placement.tags import accepted_instead
from wharfinger.placement.types import (
    DeviceFacts,
    FleetSnapshot,
    LinkFacts,
    MemoryKind,
    NodeFacts,
    Role,
)
from wharfinger.sizes import size_of

_WHAT_IF: Final = re.compile(
    r"\+?([0-9]{1,9})\s*x\s*([a-z0-9]+(?:-(?:PCIe|NVL))?)(?:-([0-9.]+\s*[a-z]*))?",
    re.IGNORECASE | re.ASCII,
)
_OS_SHARE: Final = 10
"""Per cent of RAM an idle machine is assumed to use itself."""
_APU_CARVE_OUT: Final = GIB // 2
"""RAM a firmware keeps for the GPU alone where nobody set more; the rest it maps as it needs."""
ENGINES_BY_COMPUTE: Final = {
    "cuda": ("llama_cpp-cuda", "llama_server-cuda", "vllm-cuda", "llama_cpp-cpu", "llama_server-cpu"),
    "rocm": ("llama_cpp-rocm", "llama_server-rocm", "vllm-rocm", "llama_cpp-cpu", "llama_server-cpu"),
    "metal": ("mlx", "mlx-metal", "llama_cpp-metal", "llama_server-metal"),
    "vulkan": ("llama_cpp-vulkan", "llama_server-vulkan", "llama_cpp-cpu", "llama_server-cpu"),
    "cpu": ("llama_cpp-cpu", "llama_server-cpu"),
}
"""Engines a described node is taken to have when the description does not list them."""
_GPU_COMPUTES: Final = tuple(compute for compute in ENGINES_BY_COMPUTE if compute != "cpu")


@dataclass(frozen=True, slots=True)
class _Card:
    """What is known of a device before its machine is: a product of the table, or one that was described."""

    name: str
    compute: str
    memory_kind: MemoryKind
    memory_bytes: int | None
    """Of its own; of the machine where it is unified. ``None`` for a unified one outside the table."""
    bandwidth_bytes_per_s: float | None
    sold_bytes: int | None = None
    """Its memory on the data sheet."""

    def size(self, named_bytes: int | None) -> int | None:
        """Memory of the size that was named for it. The data sheet's is what is sold, not what can be used."""
        return self.memory_bytes if named_bytes in (None, self.sold_bytes) else named_bytes

    @property
    def unified(self) -> bool:
        """Whether the machine has one memory for it and the CPU."""
        return self.memory_kind is not MemoryKind.DISCRETE


def _listed(name: str, size_bytes: int | None) -> _Card | None:
    """A product of the table; of one that is sold with several sizes, that of ``size_bytes``."""
    product = accelerator_named(name) or known_accelerator(name)
    if product is None:
        return None
    if size_bytes is not None and size_bytes % GIB == 0:
        product = accelerator_named(f"{product.name}-{size_bytes // GIB}GB") or product
    kind, bandwidth = product.memory_kind, product.bandwidth_bytes_per_s
    return _Card(
        product.name, product.compute, kind, product.usable_bytes, bandwidth, product.memory_gib * GIB
    )


def _unlisted(name: str, compute: str | None) -> _Card | None:
    """A product outside the table, with the compute that was given or that its name tells; ``None`` without any."""
    compute = compute or compute_of_name(name)
    if compute is None:
        return None
    # Metal runs on Apple's chips only, and theirs is the machine's memory.
    kind = MemoryKind.APPLE if compute == "metal" else MemoryKind.DISCRETE
    return _Card(name, compute, kind, None, None)


def _not_known(name: str) -> str:
    names = {"cpu": "cpu"} | {product.name.lower(): product.name for product in ACCELERATORS}
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    alike = f"; alike: {', '.join(names[each] for each in close)}" if close else ""
    return f"{name!r} is not a known accelerator{alike}"


def add_what_if(snapshot: FleetSnapshot, specs: Sequence[str]) -> FleetSnapshot:
    """The fleet with hypothetical nodes, each linked by Ethernet with every other node.

    On a fleet that runs no model over several machines none is linked.

    Raises:
        FleetError: a spec that cannot be read, or more than 64 machines together.
    """
    added: list[NodeFacts] = []
    for spec in specs:
        added.extend(parse_what_if(spec, first_number=len(added) + 1))
        if len(added) > MOST_DEVICES:
            raise FleetError(
                f"what-if: more than {MOST_DEVICES} machines together; accepted are {MOST_DEVICES} at most"
            )
    if not added:
        return snapshot
    taken = {node.node_id for node in snapshot.nodes}
    clash = next((node.node_id for node in added if node.node_id in taken), None)
    if clash is not None:
        raise FleetError(f"the fleet already has a node {clash}; rename it to use what-if nodes")
    if not snapshot.links_supported:
        return replace(snapshot, nodes=(*snapshot.nodes, *added))
    links = list(snapshot.links)
    known = [node.node_id for node in snapshot.nodes]
    for node in added:
        for other in known:
            links.append(LinkFacts(node.node_id, other, "ethernet", other))
            links.append(LinkFacts(other, node.node_id, "ethernet", node.node_id))
        known.append(node.node_id)
    return replace(snapshot, nodes=(*snapshot.nodes, *added), links=tuple(links))


def parse_what_if(spec: str, *, first_number: int = 1) -> tuple[NodeFacts, ...]:
    """The nodes of a spec such as ``+1xH100-80GB``, ``+2xRTX4090-24GB``, ``+1xcpu-64GB`` or ``+1xM3Ultra-512GB``.

    Args:
        first_number: nodes are called ``what-if-<number>`` from here on.

    Raises:
        FleetError: not of that form, an unknown name, no memory, or a count outside 1..64.
    """
    where = f"what-if {spec!r}"
    match = _WHAT_IF.fullmatch(spec.strip())
    if match is None:
        raise FleetError(
            f"{where}: expected +COUNTxNAME or +COUNTxNAME-SIZE, e.g. +1xH100-80GB or +1xcpu-64GB"
        )
    count, name, size_text = int(match[1]), match[2], match[3]
    if not 1 <= count <= MOST_DEVICES:
        raise FleetError(f"{where}: the count is {count}; accepted are 1 to {MOST_DEVICES}")
    size = None if size_text is None else size_of(size_text)
    if size_text is not None and (size is None or size < LEAST_BYTES):
        accepted = "in bytes, not bits" if size is None else "above 1 MiB"
        raise FleetError(
            f"{where}: the size is {size_text}; accepted is one {accepted}, such as 80GB or 80GiB"
        )
    ids = tuple(f"what-if-{first_number + index}" for index in range(count))
    if name.lower() == "cpu":
        if size is None:
            raise FleetError(f"{where}: a cpu node needs its RAM, e.g. +1xcpu-64GB")
        return tuple(_cpu_node(node_id, size) for node_id in ids)
    card = _listed(name, size) or _unlisted(name, None)
    if card is None:
        raise FleetError(
            f"{where}: {_not_known(name)}. Any other is described in a fleet.yaml, with its memory and compute."
        )
    size = card.size(size)
    if size is None:
        raise FleetError(f"{where}: {_not_known(name)}; name its memory to use it, e.g. +{count}x{name}-16GB")
    if card.unified:
        return tuple(_unified_node(node_id, card, size) for node_id in ids)
    return (_gpu_node(ids[0], card, count, size),)


def _idle(ram_bytes: int) -> int:
    return ram_bytes * (100 - _OS_SHARE) // 100


def _cpu_node(node_id: str, ram_bytes: int) -> NodeFacts:
    return NodeFacts(
        node_id,
        node_id,
        ram_total_bytes=ram_bytes,
        ram_available_bytes=_idle(ram_bytes),
        backends=frozenset(ENGINES_BY_COMPUTE["cpu"]),
    )


def _unified_node(node_id: str, card: _Card, ram_bytes: int) -> NodeFacts:
    own_bytes = _carve_out(ram_bytes) if card.memory_kind is MemoryKind.APU else ram_bytes
    ram = _ram_of(card, ram_bytes, own_bytes)
    return replace(
        _cpu_node(node_id, ram),
        ram_bandwidth_bytes_per_s=card.bandwidth_bytes_per_s,
        devices=(_device(0, card, own_bytes, ram),),
        backends=frozenset(ENGINES_BY_COMPUTE[card.compute]),
    )


def _gpu_node(node_id: str, card: _Card, count: int, vram_bytes: int) -> NodeFacts:
    # Servers are usually bought with at least twice the RAM of their VRAM.
    ram = max(64 * GIB, 2 * count * vram_bytes)
    return replace(
        _cpu_node(node_id, ram),
        devices=tuple(_device(index, card, vram_bytes, ram) for index in range(count)),
        backends=frozenset(ENGINES_BY_COMPUTE[card.compute]),
    )


def _carve_out(installed_bytes: int) -> int:
    return min(_APU_CARVE_OUT, installed_bytes // 2)


def _ram_of(card: _Card, ram_bytes: int, own_bytes: int) -> int:
    """RAM the system sees: an APU's carve-out is taken off what is installed."""
    return ram_bytes - own_bytes if card.memory_kind is MemoryKind.APU else ram_bytes


def _device(index: int, card: _Card, size_bytes: int, ram_bytes: int, used_bytes: int = 0) -> DeviceFacts:
    """A device as an agent would report it; ``ram_bytes`` is the RAM its machine's system sees."""
    kind, gtt = card.memory_kind, None
    if kind is MemoryKind.APU:
        # Its driver must be allowed to map all RAM, or an agent takes the carve-out for a card of its own.
        kind, gtt = (MemoryKind.APU, ram_bytes) if ram_bytes > size_bytes else (MemoryKind.DISCRETE, None)
    return DeviceFacts(
        index,
        card.name,
        card.compute,
        kind,
        total_bytes=size_bytes,
        used_bytes=used_bytes,
        gtt_total_bytes=gtt,
        bandwidth_bytes_per_s=card.bandwidth_bytes_per_s,
    )


def fleet_from_mapping(described: object) -> FleetSnapshot:
    """The fleet of a parsed ``fleet.yaml``; the format is in ``docs/placement.md``.

    Raises:
        FleetError: an unknown or missing field, or a value that cannot be read.
    """
    fields = Fields(described, "fleet", ("nodes", "links"))
    entries = fields.items("nodes")
    if not entries:
        raise FleetError("fleet.nodes is empty: describe at least one node")
    nodes = [_node(entry, f"nodes[{index}]") for index, entry in enumerate(entries)]
    ids = [node.node_id for node in nodes]
    for node_id in ids:
        if ids.count(node_id) > 1:
            raise FleetError(f"nodes: the name {node_id!r} occurs twice; names must differ")
    links = fields.get("links")
    if links == "all":
        pairs = [(left, right) for left in ids for right in ids if left != right]
        return FleetSnapshot(
            tuple(nodes), tuple(LinkFacts(left, right, "ethernet", right) for left, right in pairs)
        )
    found: list[LinkFacts] = []
    for index, entry in enumerate(fields.items("links")):
        found.extend(_links(entry, f"links[{index}]", ids))
    return FleetSnapshot(tuple(nodes), tuple(found))


_NODE_FIELDS: Final = (
    "name",
    "ram",
    "ram_available",
    "ram_bandwidth",
    "memory_cap",
    "gpus",
    "backends",
    "role",
    "models",
)
_GPU_FIELDS: Final = ("model", "count", "memory", "used", "compute", "bandwidth")
_LINK_FIELDS: Final = ("between", "interface", "bandwidth", "rdma")


def _node(entry: object, where: str) -> NodeFacts:
    fields = Fields(entry, where, _NODE_FIELDS)
    name = fields.text("name")
    installed = fields.size("ram")
    if installed is None:
        raise fields.error("ram", "a size such as 64GiB")
    devices: list[DeviceFacts] = []
    ram = installed
    for index, gpu in enumerate(fields.items("gpus")):
        described = _Gpus(gpu, f"{where}.gpus[{index}]", len(devices), installed)
        devices.extend(described.devices())
        ram -= described.carve_out_bytes
    return NodeFacts(
        node_id=name,
        name=name,
        role=Role(fields.choice("role", [role.value for role in Role]) or "full"),
        ram_total_bytes=ram,
        ram_available_bytes=_available(fields, ram, devices),
        ram_bandwidth_bytes_per_s=fields.speed("ram_bandwidth"),
        memory_cap_bytes=fields.size("memory_cap"),
        devices=tuple(devices),
        backends=frozenset(_engines(fields, devices)),
        local_artifacts=MappingProxyType(dict.fromkeys(fields.texts("models"), 1.0)),
    )


def _available(fields: Fields, ram: int, devices: Sequence[DeviceFacts]) -> int:
    """RAM that is free now; what other programs hold of a memory that CPU and GPU share is not."""
    shared = (MemoryKind.APPLE, MemoryKind.GB10)
    held = sum(device.used_bytes or 0 for device in devices if device.memory_kind in shared)
    available = fields.size("ram_available", zero=True)
    if available is None:
        return max(0, _idle(ram) - held)
    if available > ram:
        raise fields.error("ram_available", f"at most ram ({fields.get('ram')})")
    if held:
        raise fields.error("ram_available", "this, or gpus[].used: CPU and GPU share one memory")
    return available


def _engines(fields: Fields, devices: Sequence[DeviceFacts]) -> Iterator[str]:
    if fields.get("backends") is None:
        for compute in [device.compute for device in devices] or ["cpu"]:
            yield from ENGINES_BY_COMPUTE[compute]
        return
    for tag in fields.texts("backends"):
        accepted = accepted_instead(tag)
        if accepted is not None:
            raise fields.error("backends", accepted)
        yield tag


class _Gpus:
    """An entry of ``gpus``: ``count`` equal devices of a machine."""

    def __init__(self, entry: object, where: str, first_index: int, installed_bytes: int) -> None:
        self._fields = Fields(entry, where, _GPU_FIELDS)
        self._first_index = first_index
        self._installed_bytes = installed_bytes
        self._card = self._described(where)
        self._size_bytes = self._size()

    @property
    def carve_out_bytes(self) -> int:
        """RAM that is installed but the GPU's alone."""
        return self._installed_bytes - _ram_of(self._card, self._installed_bytes, self._size_bytes)

    def devices(self) -> list[DeviceFacts]:
        """The devices, numbered in the machine's order."""
        fields, card = self._fields, self._card
        count = fields.count("count", 1)
        if card.unified and self._first_index + count > 1:
            raise fields.error(
                "count", f"1, alone: a machine has one {card.name}; describe each machine as a node"
            )
        used = fields.size("used", zero=True) or 0
        if used > self._size_bytes:
            accepted = f"at most the device's memory ({self._size_bytes / GIB:g} GiB)"
            if card.memory_kind is MemoryKind.APU:
                accepted += "; give ram_available for what is held beyond it"
            raise fields.error("used", accepted)
        ram = self._installed_bytes - self.carve_out_bytes
        return [_device(self._first_index + i, card, self._size_bytes, ram, used) for i in range(count)]

    def _described(self, where: str) -> _Card:
        fields = self._fields
        name, compute = fields.text("model"), fields.choice("compute", _GPU_COMPUTES)
        card = _listed(name, fields.size("memory")) or _unlisted(name, compute)
        if card is None:
            raise FleetError(
                f"{where}.model: {_not_known(name)}; to describe it, give compute "
                f"({', '.join(_GPU_COMPUTES)}) and memory"
            )
        if compute not in (None, card.compute):
            raise fields.error("compute", f"{card.compute}, which {card.name} computes with")
        bandwidth = fields.speed("bandwidth")
        return card if bandwidth is None else replace(card, bandwidth_bytes_per_s=bandwidth)

    def _size(self) -> int:
        fields, card = self._fields, self._card
        size = fields.size("memory")
        if card.memory_kind is MemoryKind.APU:
            if size is not None and size >= self._installed_bytes:
                raise fields.error("memory", "the part of ram that is kept for the GPU alone (often 512MiB)")
            return _carve_out(self._installed_bytes) if size is None else size
        if card.unified:
            if size not in (None, self._installed_bytes):
                raise fields.error(
                    "memory", f"none, because {card.name} has the machine's memory, which is ram"
                )
            return self._installed_bytes
        size = card.size(size)
        if size is None:
            raise fields.error("memory", f"its size, such as 16GiB: {_not_known(card.name)}")
        return size


def _links(entry: object, where: str, ids: Sequence[str]) -> list[LinkFacts]:
    fields = Fields(entry, where, _LINK_FIELDS)
    ends = fields.texts("between")
    if len(ends) < 2 or len(set(ends)) != len(ends) or not set(ends) <= set(ids):
        raise fields.error("between", f"two or more different nodes of {', '.join(ids)}")
    interface = fields.choice("interface", RING_ORDER) or "ethernet"
    bandwidth, rdma = fields.speed("bandwidth"), fields.flag("rdma")
    return [
        LinkFacts(
            left,
            right,
            interface,
            right,
            rdma=rdma,
            rdma_interface="rdma0" if rdma else None,
            bandwidth_bytes_per_s=bandwidth,
        )
        for left in ends
        for right in ends
        if left != right
    ]

"""Fleets that are described instead of measured: what-if nodes and ``fleet.yaml``.

``+2xRTX4090-24GB`` is one machine with two such cards. ``+2xM4Max-128GB`` and ``+2xcpu-64GB`` are two machines,
because a machine has one of those. Sizes are binary, whether written GB or GiB, as memory is sold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, cast

from wharfinger.placement.hardware import ACCELERATORS, Accelerator, accelerator_named
from wharfinger.placement.links import RING_ORDER
from wharfinger.placement.types import (
    DeviceFacts,
    FleetSnapshot,
    LinkFacts,
    MemoryKind,
    NodeFacts,
    Role,
)

_SIZE: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(GiB|GB|G|MiB|MB|M|TiB|TB|T)$", re.IGNORECASE)
_UNITS: Final = {"m": 1024**2, "g": 1024**3, "t": 1024**4}
_SPEED: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(Gbps|Mbps|GB/s|MB/s)$", re.IGNORECASE)
_SPEEDS: Final = {"gbps": 1e9 / 8, "mbps": 1e6 / 8, "gb/s": 1e9, "mb/s": 1e6}
_WHAT_IF: Final = re.compile(
    r"^\+?(\d+)\s*x\s*([A-Za-z0-9]+(?:-PCIe)?)(?:-(\d+(?:\.\d+)?)\s*(GB|GiB|TB|TiB))?$", re.IGNORECASE
)
_GIB: Final = 1024**3
_MOST: Final = 64
"""Most devices or machines one what-if may add."""
_OS_SHARE: Final = 10
"""Per cent of RAM an idle machine is assumed to use itself."""
ENGINES_BY_COMPUTE: Final = {
    "cuda": ("llama_cpp-cuda", "llama_server-cuda", "vllm-cuda", "llama_cpp-cpu", "llama_server-cpu"),
    "rocm": ("llama_cpp-rocm", "llama_server-rocm", "vllm-rocm", "llama_cpp-cpu", "llama_server-cpu"),
    "metal": ("mlx", "mlx-metal", "llama_cpp-metal", "llama_server-metal"),
    "cpu": ("llama_cpp-cpu", "llama_server-cpu"),
}
"""Engines a described node is taken to have when the description does not list them."""


class FleetError(ValueError):
    """A description is wrong; the text names the field, the value and what is accepted."""


def add_what_if(snapshot: FleetSnapshot, specs: Sequence[str]) -> FleetSnapshot:
    """The fleet with hypothetical nodes, each linked by Ethernet with every other node.

    Raises:
        FleetError: a spec that cannot be read.
    """
    added: list[NodeFacts] = []
    for spec in specs:
        added.extend(parse_what_if(spec, first_number=len(added) + 1))
    if not added:
        return snapshot
    taken = {node.node_id for node in snapshot.nodes}
    clash = next((node.node_id for node in added if node.node_id in taken), None)
    if clash is not None:
        raise FleetError(f"the fleet already has a node {clash}; rename it to use what-if nodes")
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
        FleetError: not of that form, an unknown name, or a count outside 1..64.
    """
    match = _WHAT_IF.match(spec.strip())
    if match is None:
        raise FleetError(
            f"what-if {spec!r}: expected +COUNTxNAME or +COUNTxNAME-SIZE, e.g. +1xH100-80GB or +1xcpu-64GB"
        )
    count, name, size, unit = int(match[1]), match[2], match[3], match[4]
    if not 1 <= count <= _MOST:
        raise FleetError(f"what-if {spec!r}: the count is {count}; accepted are 1 to {_MOST}")
    size_bytes = None if size is None else int(float(size) * _UNITS[unit[0].lower()])
    if name.lower() == "cpu":
        if size_bytes is None:
            raise FleetError(f"what-if {spec!r}: a cpu node needs its RAM, e.g. +1xcpu-64GB")
        return tuple(_cpu_node(f"what-if-{first_number + i}", size_bytes) for i in range(count))
    product = _product(name, f"what-if {spec!r}")
    if product.memory_kind is not MemoryKind.DISCRETE:
        ram = size_bytes or product.memory_gib * _GIB
        return tuple(_unified_node(f"what-if-{first_number + i}", product, ram) for i in range(count))
    return (_gpu_node(f"what-if-{first_number}", product, count, size_bytes or product.memory_gib * _GIB),)


def _product(name: str, where: str) -> Accelerator:
    product = accelerator_named(name)
    if product is None:
        known = ", ".join(each.name for each in ACCELERATORS)
        raise FleetError(f"{where}: {name!r} is not a known accelerator; accepted are cpu, {known}")
    return product


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


def _unified_node(node_id: str, product: Accelerator, ram_bytes: int) -> NodeFacts:
    return replace(
        _cpu_node(node_id, ram_bytes),
        ram_bandwidth_bytes_per_s=product.bandwidth_bytes_per_s,
        devices=(_device(0, product, ram_bytes),),
        backends=frozenset(ENGINES_BY_COMPUTE[product.compute]),
    )


def _gpu_node(node_id: str, product: Accelerator, count: int, vram_bytes: int) -> NodeFacts:
    # Servers are usually bought with at least twice the RAM of their VRAM.
    return replace(
        _cpu_node(node_id, max(64 * _GIB, 2 * count * vram_bytes)),
        devices=tuple(_device(index, product, vram_bytes) for index in range(count)),
        backends=frozenset(ENGINES_BY_COMPUTE[product.compute]),
    )


def _device(index: int, product: Accelerator, size_bytes: int, used_bytes: int = 0) -> DeviceFacts:
    return DeviceFacts(
        index,
        product.name,
        product.compute,
        product.memory_kind,
        total_bytes=size_bytes,
        used_bytes=used_bytes,
        bandwidth_bytes_per_s=product.bandwidth_bytes_per_s,
    )


def fleet_from_mapping(described: object) -> FleetSnapshot:
    """The fleet of a parsed ``fleet.yaml``; the format is in ``docs/placement.md``.

    Raises:
        FleetError: an unknown or missing field, or a value that cannot be read.
    """
    fields = _Fields(described, "fleet", ("nodes", "links"))
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


class _Fields:
    """A mapping whose keys are checked; errors name the field, its value and what is accepted."""

    def __init__(self, value: object, where: str, accepted: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise FleetError(f"{where} is {value!r}; expected a mapping with {', '.join(accepted)}")
        self._values = cast("Mapping[str, object]", value)
        self._where = where
        unknown = sorted(str(key) for key in self._values.keys() - set(accepted))
        if unknown:
            raise FleetError(f"{where}.{unknown[0]} is not a field; accepted are {', '.join(accepted)}")

    def error(self, field: str, accepted: str) -> FleetError:
        return FleetError(f"{self._where}.{field} is {self._values.get(field)!r}; accepted: {accepted}")

    def get(self, field: str) -> Any:
        return self._values.get(field)

    def items(self, field: str) -> list[Any]:
        value = self.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(field, "a list")
        return cast("list[Any]", value)

    def text(self, field: str) -> str:
        value = self.get(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, "a text")
        return value

    def choice(self, field: str, accepted: Iterable[str], default: str) -> str:
        value = self.get(field)
        options = list(accepted)
        if value is None:
            return default
        if value not in options:
            raise self.error(field, ", ".join(options))
        return cast("str", value)

    def size(self, field: str) -> int | None:
        value = self.get(field)
        if value is None:
            return None
        match = _SIZE.match(value) if isinstance(value, str) else None
        if match is None:
            raise self.error(field, "a size such as 64GiB")
        return int(float(match[1]) * _UNITS[match[2][0].lower()])

    def speed(self, field: str) -> float | None:
        value = self.get(field)
        if value is None:
            return None
        match = _SPEED.match(value) if isinstance(value, str) else None
        if match is None:
            raise self.error(field, "a speed such as 10Gbps or 400GB/s")
        return float(match[1]) * _SPEEDS[match[2].lower()]

    def count(self, field: str, default: int) -> int:
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise self.error(field, f"a whole number from 1 to {_MOST}")
        return value

    def flag(self, field: str) -> bool:
        value = self.get(field)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(field, "true or false")
        return value

    def texts(self, field: str) -> list[str]:
        values = self.items(field)
        if not all(isinstance(value, str) and value for value in values):
            raise self.error(field, "a list of texts")
        return values


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
_GPU_FIELDS: Final = ("model", "count", "memory", "used")
_LINK_FIELDS: Final = ("between", "interface", "bandwidth", "rdma")


def _node(entry: object, where: str) -> NodeFacts:
    fields = _Fields(entry, where, _NODE_FIELDS)
    name = fields.text("name")
    ram = fields.size("ram")
    if ram is None:
        raise fields.error("ram", "a size such as 64GiB")
    devices: list[DeviceFacts] = []
    for index, gpu in enumerate(fields.items("gpus")):
        devices.extend(_gpus(gpu, f"{where}.gpus[{index}]", len(devices), ram))
    computes = [device.compute for device in devices] or ["cpu"]
    engines = fields.texts("backends") or [tag for compute in computes for tag in ENGINES_BY_COMPUTE[compute]]
    available = fields.size("ram_available")
    if available is not None and available > ram:
        raise fields.error("ram_available", f"at most ram ({fields.get('ram')})")
    return NodeFacts(
        node_id=name,
        name=name,
        role=Role(fields.choice("role", [role.value for role in Role], "full")),
        ram_total_bytes=ram,
        ram_available_bytes=_idle(ram) if available is None else available,
        ram_bandwidth_bytes_per_s=fields.speed("ram_bandwidth"),
        memory_cap_bytes=fields.size("memory_cap"),
        devices=tuple(devices),
        backends=frozenset(engines),
        local_artifacts=MappingProxyType(dict.fromkeys(fields.texts("models"), 1.0)),
    )


def _gpus(entry: object, where: str, first_index: int, ram: int) -> list[DeviceFacts]:
    fields = _Fields(entry, where, _GPU_FIELDS)
    product = _product(fields.text("model"), f"{where}.model")
    unified = product.memory_kind is not MemoryKind.DISCRETE
    count = fields.count("count", 1)
    if unified and first_index + count > 1:
        raise fields.error(
            "count", f"1, alone: a machine has one {product.name}; describe each machine as a node"
        )
    size = fields.size("memory") or (ram if unified else product.memory_gib * _GIB)
    used = fields.size("used") or 0
    if used > size:
        raise fields.error("used", f"at most the device's memory ({size // _GIB} GiB)")
    return [_device(first_index + i, product, size, used) for i in range(count)]


def _links(entry: object, where: str, ids: Sequence[str]) -> list[LinkFacts]:
    fields = _Fields(entry, where, _LINK_FIELDS)
    ends = fields.texts("between")
    if len(ends) < 2 or len(set(ends)) != len(ends) or not set(ends) <= set(ids):
        raise fields.error("between", f"two or more different nodes of {', '.join(ids)}")
    interface = fields.choice("interface", RING_ORDER, "ethernet")
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

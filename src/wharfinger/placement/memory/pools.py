"""How much of each memory pool of a node may be used now.

Every rule has the same form: the smaller of what is free and a cap. What is free is what was observed, less
reservations that telemetry does not show yet. The cap is a share of the total, less *every* reservation, seen or
not: an instance may have claimed more than it has touched so far. Together they count the larger of claims and
observed use, and charge nothing twice.

=========  =====================================================================================
discrete   min(total - used, 0.90 total)
apple      min(available, 0.75 total) of RAM
apu        min(VRAM free, 0.90 VRAM) + min(max(0, available - 16 GiB), GTT)
gb10       min(total - used, available - 16 GiB, 0.75 RAM total); without the first where the driver counts no use
system     min(available, 0.75 total) of RAM
=========  =====================================================================================

Unified memory (apple, apu, gb10) is one memory: reservations of the node's RAM and of its unified devices both count,
those of discrete cards do not. Its pools and RAM are one ``domain``, and what is charged to them adds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final

from wharfinger.placement.memory.backends import CPU, compute_on
from wharfinger.placement.memory.elements import GIB
from wharfinger.placement.memory.interface import RAM_DOMAIN, Pool
from wharfinger.placement.types import DeviceFacts, MemoryKind, NodeFacts, ReservationFacts

OS_HEADROOM_BYTES = 16 * GIB
"""Left to the operating system where CPU and GPU share all memory (AMD APU, NVIDIA GB10)."""
_INDEX: Final = attrgetter("index")


def vram_cap(total_bytes: int) -> int:
    """0.90 of a discrete device."""
    return total_bytes * 9 // 10


def ram_cap(total_bytes: int) -> int:
    """0.75 of RAM: Metal's working set, and room for the rest of the machine."""
    return total_bytes * 3 // 4


@dataclass(slots=True)
class _Claim:
    """Reservations of one pool: all of them, and those telemetry does not show yet."""

    total: int = 0
    unseen: int = 0

    def add(self, reservation: ReservationFacts) -> None:
        self.total += reservation.size_bytes
        if not reservation.observed:
            self.unseen += reservation.size_bytes


_NO_CLAIM: Final = _Claim()


class Claims(dict[int | None, _Claim]):
    """Reservations of one node added up by device index (``None``: RAM), to be counted once for several questions."""

    @classmethod
    def of(cls, node_id: str, reservations: Iterable[ReservationFacts]) -> Claims:
        """Those of the node; the others are ignored."""
        claims = cls()
        for reservation in reservations:
            if reservation.node_id == node_id:
                claim = claims.get(reservation.device_index)
                if claim is None:
                    claim = claims[reservation.device_index] = _Claim()
                claim.add(reservation)
        return claims


def usable(
    node: NodeFacts, backend: str, reservations: Iterable[ReservationFacts] | Claims
) -> tuple[Pool, ...]:
    """The pools a backend would load into on a node: one per device it uses, or the node's RAM.

    Args:
        reservations: those of other nodes are ignored, but pass only this node's where speed matters.

    Returns:
        Pools in device order. ``usable_bytes`` is ``None`` where a figure is missing, and ``missing`` names it; a GPU
        backend on a node that reports no such device gives one pool that misses ``devices``. Each pool respects the
        node's ``memory_cap_bytes``, which is over all pools together: a plan that uses several must also check
        :func:`node_cap_left`.
    """
    compute = compute_on(node, backend)
    claims = _claims_of(node, reservations)
    if compute == CPU:
        return (_ram_pool(node, claims),)
    devices = _devices_of(node, compute)
    if devices:
        return tuple([_device_pool(node, device, claims) for device in devices])
    if compute == "metal":
        # Apple machines report one memory; without a device entry its rule is RAM's.
        return (_ram_pool(node, claims),)
    return (Pool(device_index=None, usable_bytes=None, missing=("devices",)),)


def device_totals(node: NodeFacts, backend: str) -> dict[int | None, int | None]:
    """Size of each device that a backend may use, by index: what ``minVramGib`` is compared with.

    VRAM; with GTT on an APU; the RAM where it is the device's memory. ``None`` where it was not measured, empty for
    backends that run on the CPU and where no device was reported.
    """
    compute = compute_on(node, backend)
    if compute == CPU:
        return {}
    devices = _devices_of(node, compute)
    if not devices and compute == "metal":
        return {None: node.ram_total_bytes}
    return {device.index: _size_of(node, device) for device in devices}


def _size_of(node: NodeFacts, device: DeviceFacts) -> int | None:
    match device.memory_kind:
        case MemoryKind.APPLE | MemoryKind.SYSTEM:
            return node.ram_total_bytes
        case MemoryKind.APU:
            total, gtt = device.total_bytes, device.gtt_total_bytes
            return None if total is None or gtt is None else total + gtt
        case MemoryKind.DISCRETE | MemoryKind.GB10:
            return device.total_bytes


def _devices_of(node: NodeFacts, compute: str) -> list[DeviceFacts]:
    """Devices of a compute by index; Vulkan drives any."""
    devices = [device for device in node.devices if device.compute == compute or compute == "vulkan"]
    devices.sort(key=_INDEX)
    return devices


def host_pool(node: NodeFacts, reservations: Iterable[ReservationFacts] | Claims) -> Pool:
    """The node's RAM, for the host parts of a shard that runs on a device of its own."""
    return _ram_pool(node, _claims_of(node, reservations))


def node_cap_left(node: NodeFacts, reservations: Iterable[ReservationFacts] | Claims) -> int | None:
    """What the operator's cap leaves over all pools of the node; ``None`` when there is no cap.

    Below zero when more is claimed than the cap allows.
    """
    if node.memory_cap_bytes is None:
        return None
    claims = _claims_of(node, reservations)
    return node.memory_cap_bytes - _all(claims.values()).total


def _claims_of(node: NodeFacts, reservations: Iterable[ReservationFacts] | Claims) -> Claims:
    return reservations if isinstance(reservations, Claims) else Claims.of(node.node_id, reservations)


def _device_pool(node: NodeFacts, device: DeviceFacts, claims: Claims) -> Pool:
    match device.memory_kind:
        case MemoryKind.DISCRETE:
            return _discrete_pool(node, device, claims)
        case MemoryKind.APU:
            return _apu_pool(node, device, claims)
        case MemoryKind.GB10:
            return _gb10_pool(node, device, claims)
        case MemoryKind.APPLE | MemoryKind.SYSTEM:
            return _ram_pool(node, claims, device.index)


def _discrete_pool(node: NodeFacts, device: DeviceFacts, claims: Claims) -> Pool:
    total, used = device.total_bytes, device.used_bytes
    if total is None or used is None:
        return _missing(device.index, {"total_bytes": total, "used_bytes": used})
    own = claims.get(device.index, _NO_CLAIM)
    return _pool(
        node,
        claims,
        device.index,
        free=total - used - own.unseen,
        cap=vram_cap(total) - own.total,
        counted={
            "total_bytes": total,
            "used_bytes": used,
            "claimed_bytes": own.total,
            "unseen_bytes": own.unseen,
        },
        domain=_device_domain(device.index),
    )


@lru_cache(maxsize=256)
def _device_domain(index: int) -> str:
    return f"device:{index}"


def _apu_pool(node: NodeFacts, device: DeviceFacts, claims: Claims) -> Pool:
    total, used, gtt = device.total_bytes, device.used_bytes, device.gtt_total_bytes
    available, ram = node.ram_available_bytes, node.ram_total_bytes
    if total is None or used is None or gtt is None or available is None or ram is None:
        figures = {"total_bytes": total, "used_bytes": used, "gtt_total_bytes": gtt}
        return _missing(device.index, figures | {"ram_available_bytes": available, "ram_total_bytes": ram})
    own = _of_ram(node, claims)
    carve_out = min(total - used, vram_cap(total))
    return _pool(
        node,
        claims,
        device.index,
        free=carve_out + min(max(0, available - OS_HEADROOM_BYTES), gtt) - own.unseen,
        cap=vram_cap(total) + min(max(0, ram - OS_HEADROOM_BYTES), gtt) - own.total,
        counted={
            "total_bytes": total,
            "used_bytes": used,
            "gtt_total_bytes": gtt,
            "ram_available_bytes": available,
            "claimed_bytes": own.total,
            "unseen_bytes": own.unseen,
        },
    )


def _gb10_pool(node: NodeFacts, device: DeviceFacts, claims: Claims) -> Pool:
    total, used = device.total_bytes, device.used_bytes
    available, ram = node.ram_available_bytes, node.ram_total_bytes
    if total is None or available is None or ram is None:
        figures = {"total_bytes": total, "ram_available_bytes": available, "ram_total_bytes": ram}
        return _missing(device.index, figures)
    own = _of_ram(node, claims)
    free = available - OS_HEADROOM_BYTES
    return _pool(
        node,
        claims,
        device.index,
        free=(free if used is None else min(total - used, free)) - own.unseen,
        cap=ram_cap(ram) - own.total,
        counted={
            "total_bytes": total,
            **({} if used is None else {"used_bytes": used}),
            "ram_available_bytes": available,
            "ram_total_bytes": ram,
            "claimed_bytes": own.total,
            "unseen_bytes": own.unseen,
        },
    )


def _ram_pool(node: NodeFacts, claims: Claims, device_index: int | None = None) -> Pool:
    available, total = node.ram_available_bytes, node.ram_total_bytes
    if available is None or total is None:
        return _missing(device_index, {"ram_available_bytes": available, "ram_total_bytes": total})
    own = _of_ram(node, claims)
    return _pool(
        node,
        claims,
        device_index,
        free=available - own.unseen,
        cap=ram_cap(total) - own.total,
        counted={
            "ram_available_bytes": available,
            "ram_total_bytes": total,
            "claimed_bytes": own.total,
            "unseen_bytes": own.unseen,
        },
    )


def _of_ram(node: NodeFacts, claims: Claims) -> _Claim:
    """Claims on the RAM domain. On a machine with unified memory an unreported device counts as unified."""
    if not claims:
        return _NO_CLAIM
    if all(device.memory_kind is MemoryKind.DISCRETE for device in node.devices):
        return claims.get(None, _NO_CLAIM)
    own = {device.index for device in node.devices if device.memory_kind is MemoryKind.DISCRETE}
    return _all(claim for index, claim in claims.items() if index not in own)


def _all(claims: Iterable[_Claim]) -> _Claim:
    together = _Claim()
    for claim in claims:
        together.total += claim.total
        together.unseen += claim.unseen
    return together


def _pool(
    node: NodeFacts,
    claims: Claims,
    device_index: int | None,
    *,
    free: int,
    cap: int,
    counted: dict[str, int],
    domain: str = RAM_DOMAIN,
) -> Pool:
    size_bytes = min(free, cap)
    if node.memory_cap_bytes is not None:
        counted["memory_cap_bytes"] = node.memory_cap_bytes
        size_bytes = min(size_bytes, node.memory_cap_bytes - _all(claims.values()).total)
    if size_bytes >= 0:
        return Pool(device_index, size_bytes, (), counted, domain)
    return Pool(device_index, 0, (), counted, domain, -size_bytes)


def _missing(device_index: int | None, figures: dict[str, int | None]) -> Pool:
    prefix = "" if device_index is None else f"devices[{device_index}]."
    names = tuple(
        name if name.startswith("ram_") else f"{prefix}{name}"
        for name, value in figures.items()
        if value is None
    )
    return Pool(device_index=device_index, usable_bytes=None, missing=names)

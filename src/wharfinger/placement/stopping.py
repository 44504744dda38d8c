"""Which running instances to stop so that a refused model fits. Every answer is planned before it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from wharfinger.placement import codes
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceFacts,
    NodeFacts,
    NodeRefusal,
    Refusal,
    ReservationFacts,
    Suggestion,
)
from wharfinger.placement.units import gib

_TRIES: Final = 8
"""Most plans made for single instances, and most nodes looked at for several."""
_MOST_STOPPED: Final = 16
"""Most instances a suggestion may name before it is made smaller."""

Works = Callable[[FleetSnapshot], bool]
"""Whether the request has a plan on a fleet."""


class Stopping:
    """Tries fleets that some instances have left."""

    def __init__(self, snapshot: FleetSnapshot, refusal: Refusal, works: Works) -> None:
        self._snapshot = snapshot
        self._works = works
        self._short = {node.node_id: node for node in refusal.nodes if node.code == codes.MEMORY_SHORT}
        self._held: dict[str, list[ReservationFacts]] = {}
        for reservation in snapshot.reservations:
            self._held.setdefault(reservation.instance_id, []).append(reservation)
        self._instances = sorted(
            (
                instance
                for instance in snapshot.instances
                if any(each.node_id in self._short for each in self._held.get(instance.instance_id, ()))
            ),
            key=lambda instance: (self._size(instance), instance.instance_id),
        )

    def suggestions(self) -> Iterator[Suggestion]:
        """Single instances whose memory is enough, the smallest first; several together when none is."""
        found = False
        enough = [instance for instance in self._instances if self._may_be_enough(instance)]
        for instance in enough[:_TRIES]:
            if self._works(self._without([instance])):
                found = True
                size = gib(self._size(instance))
                message = f"stop instance {instance.instance_id} ({instance.model_id}, {size})"
                yield Suggestion("stop_instance", message, instance_id=instance.instance_id)
        if not found:
            yield from self._several()

    def _several(self) -> Iterator[Suggestion]:
        chosen = next((c for c in self._groups() if len(c) > 1 and self._works(self._without(c))), None)
        if chosen is None:
            return
        needed = self._fewest(chosen)
        size = sum(self._size(instance) for instance in needed)
        ids = tuple(sorted(instance.instance_id for instance in needed))
        message = f"stop instances {', '.join(ids)} ({gib(size)} together)"
        yield Suggestion("stop_instances", message, instance_ids=ids)

    def _groups(self) -> Iterator[list[InstanceFacts]]:
        """On each node, least short first, its largest until they make up for what it lacks; then over all nodes."""

        def lacks(node: NodeRefusal) -> tuple[int, str]:
            return (node.short_by_bytes or 0, node.node_id)

        for node in sorted(self._short.values(), key=lacks)[:_TRIES]:
            own = [instance for instance in self._instances if self._freed_on(instance, node.node_id)]
            own.sort(key=lambda instance: (-self._freed_on(instance, node.node_id), instance.instance_id))
            freed, group = 0, list[InstanceFacts]()
            for instance in own[:_MOST_STOPPED]:
                group.append(instance)
                freed += self._freed_on(instance, node.node_id)
                if freed >= (node.short_by_bytes or 0):
                    yield group.copy()
        yield self._instances[::-1][:_MOST_STOPPED]

    def _fewest(self, chosen: Sequence[InstanceFacts]) -> list[InstanceFacts]:
        """The group without those it does not need, the largest spared first."""
        needed = list(chosen)
        for instance in sorted(chosen, key=lambda i: (-self._size(i), i.instance_id)):
            fewer = [each for each in needed if each is not instance]
            if fewer and self._works(self._without(fewer)):
                needed = fewer
        return needed

    def _size(self, instance: InstanceFacts) -> int:
        return sum(each.size_bytes for each in self._held.get(instance.instance_id, ()))

    def _freed_on(self, instance: InstanceFacts, node_id: str) -> int:
        held = self._held[instance.instance_id]
        return sum(each.size_bytes for each in held if each.node_id == node_id)

    def _may_be_enough(self, instance: InstanceFacts) -> bool:
        """Rules out, without planning, instances that hold less than any of their nodes lacks."""
        return any(
            self._freed_on(instance, node_id) >= self._lack(node_id)
            for node_id in {each.node_id for each in self._held[instance.instance_id]}
        )

    def _lack(self, node_id: str) -> int:
        node = self._short.get(node_id)
        return (node.short_by_bytes or 0) if node is not None else 0

    def _without(self, stopped: Sequence[InstanceFacts]) -> FleetSnapshot:
        """The fleet after the instances have left."""
        ids = {instance.instance_id for instance in stopped}
        held = [each for instance_id in sorted(ids) for each in self._held[instance_id]]
        affected = {reservation.node_id for reservation in held}
        snapshot = self._snapshot
        return replace(
            snapshot,
            nodes=tuple(_freed(node, held) if node.node_id in affected else node for node in snapshot.nodes),
            instances=tuple(each for each in snapshot.instances if each.instance_id not in ids),
            reservations=tuple(each for each in snapshot.reservations if each.instance_id not in ids),
        )


def _freed(node: NodeFacts, held: Sequence[ReservationFacts]) -> NodeFacts:
    """The node's figures once observed reservations are no longer in use."""
    own = [each for each in held if each.node_id == node.node_id and each.observed]
    devices = tuple(
        device
        if device.used_bytes is None
        else replace(device, used_bytes=max(0, device.used_bytes - _sum(own, device.index)))
        for device in node.devices
    )
    available = node.ram_available_bytes
    if available is not None and node.ram_total_bytes is not None:
        available = min(node.ram_total_bytes, available + _sum(own, None))
    return replace(node, devices=devices, ram_available_bytes=available)


def _sum(held: Sequence[ReservationFacts], device_index: int | None) -> int:
    return sum(each.size_bytes for each in held if each.device_index == device_index)

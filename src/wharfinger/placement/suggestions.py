"""What would help after a refusal. Every suggestion is planned before it is made, so none is an empty promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import codes
from wharfinger.placement.memory import MIN_CONTEXT_TOKENS
from wharfinger.placement.planning import plan_in
from wharfinger.placement.types import (
    FleetSnapshot,
    InstanceFacts,
    LinkFacts,
    NodeFacts,
    PlanRequest,
    PlanResult,
    Refusal,
    ReservationFacts,
    Sharding,
    Suggestion,
)
from wharfinger.placement.units import gib
from wharfinger.placement.workspace import Workspace

_TRIES: Final = 8
"""Most plans made in search of one kind of suggestion."""
_SHOWN: Final = 2
"""Most suggestions of one kind."""
_WINDOW_STEP: Final = 256


def suggest(
    snapshot: FleetSnapshot,
    card: ModelCard,
    request: PlanRequest,
    catalog: Sequence[ModelCard],
    result: PlanResult,
) -> PlanResult:
    """The refusal with suggestions that work. Missing facts get none: waiting is what helps there.

    A window that was asked for and only fits when smaller turns the refusal into ``context_too_large``.
    """
    refusal = result.refusal
    if refusal is None or refusal.category != codes.NO_VALID_PLACEMENT:
        return result
    helper = _Helper(snapshot, card, request, refusal)
    window = helper.smaller_window()
    if window is not None and request.context_tokens is not None and refusal.code == codes.MEMORY_SHORT:
        refusal = replace(
            refusal,
            code=codes.CONTEXT_TOO_LARGE,
            message=f"a window of {request.context_tokens} tokens fits nowhere; the largest that fits is "
            f"{window}. {refusal.message}",
        )
    found: list[Suggestion] = []
    if window is not None:
        found.append(
            Suggestion("lower_context", f"ask for a window of {window} tokens", context_tokens=window)
        )
    kinds = (
        helper.stop_instance(),
        helper.other_quantization(catalog),
        helper.drop_exclusion(),
        helper.fewer_nodes(),
        helper.pipeline(),
        helper.one_node_more(),
    )
    for kind in kinds:
        found.extend(islice(kind, _SHOWN))
    refusal = replace(refusal, suggestions=tuple(found))
    return replace(result, refusal=refusal)


class _Helper:
    """Tries changes to one refused request."""

    def __init__(
        self, snapshot: FleetSnapshot, card: ModelCard, request: PlanRequest, refusal: Refusal
    ) -> None:
        self._snapshot = snapshot
        self._card = card
        self._request = request
        self._refusal = refusal
        self._by_id = {node.node_id: node for node in snapshot.nodes}
        self._work = Workspace(snapshot, card, request.settings)

    def _works(
        self,
        *,
        snapshot: FleetSnapshot | None = None,
        card: ModelCard | None = None,
        request: PlanRequest | None = None,
    ) -> PlanResult | None:
        request = request or self._request
        if snapshot is None and card is None:
            work = self._work
        else:
            work = Workspace(snapshot or self._snapshot, card or self._card, request.settings)
        result = plan_in(work, request)
        return result if result.plans else None

    def smaller_window(self) -> int | None:
        """The largest window that would fit, in whole steps where that is possible."""
        if self._refusal.code not in (codes.MEMORY_SHORT, codes.CONTEXT_TOO_LARGE):
            return None
        least = self._works(request=replace(self._request, context_tokens=MIN_CONTEXT_TOKENS))
        if least is None:
            return None
        largest = max((plan.max_context_tokens or 0 for plan in least.plans), default=0)
        window = largest // _WINDOW_STEP * _WINDOW_STEP or largest
        if self._request.context_tokens is not None and window >= self._request.context_tokens:
            return None
        return window if self._works(request=replace(self._request, context_tokens=window)) else None

    def stop_instance(self) -> Iterator[Suggestion]:
        """Running instances whose memory would be enough, the smallest first."""
        held: dict[str, list[ReservationFacts]] = {}
        for reservation in self._snapshot.reservations:
            held.setdefault(reservation.instance_id, []).append(reservation)
        short = {node.node_id for node in self._refusal.nodes if node.code == codes.MEMORY_SHORT}
        sized = [
            (sum(reservation.size_bytes for reservation in held[instance.instance_id]), instance)
            for instance in self._snapshot.instances
            if any(reservation.node_id in short for reservation in held.get(instance.instance_id, ()))
        ]
        enough = [entry for entry in sized if self._may_be_enough(held[entry[1].instance_id])]
        for size, instance in sorted(enough, key=lambda entry: (entry[0], entry[1].instance_id))[:_TRIES]:
            if self._works(snapshot=self._without(instance, held[instance.instance_id])):
                message = f"stop instance {instance.instance_id} ({instance.model_id}, {gib(size)})"
                yield Suggestion("stop_instance", message, instance_id=instance.instance_id)

    def _may_be_enough(self, held: Sequence[ReservationFacts]) -> bool:
        """Rules out, without planning, instances that hold less than any of their nodes lacks."""
        lacking = {node.node_id: node.short_by_bytes or 0 for node in self._refusal.nodes}
        freed: dict[str, int] = {}
        for reservation in held:
            freed[reservation.node_id] = freed.get(reservation.node_id, 0) + reservation.size_bytes
        return any(size >= lacking.get(node_id, 0) for node_id, size in freed.items())

    def _without(self, instance: InstanceFacts, held: Sequence[ReservationFacts]) -> FleetSnapshot:
        """The fleet after the instance has left."""
        affected = {reservation.node_id for reservation in held}
        nodes = tuple(
            _freed(node, held) if node.node_id in affected else node for node in self._snapshot.nodes
        )
        return replace(
            self._snapshot,
            nodes=nodes,
            instances=tuple(each for each in self._snapshot.instances if each is not instance),
            reservations=tuple(
                each for each in self._snapshot.reservations if each.instance_id != instance.instance_id
            ),
        )

    def other_quantization(self, catalog: Sequence[ModelCard]) -> Iterator[Suggestion]:
        """Other artifacts of the same base model, the next smaller one first."""
        card = self._card
        if not card.base_model:
            return
        others = [
            other
            for other in catalog
            if other.base_model == card.base_model and other.model_id != card.model_id
        ]

        def nearness(other: ModelCard) -> tuple[bool, int, str]:
            size = other.storage_size.in_bytes
            larger = size > card.storage_size.in_bytes
            return (larger, size if larger else -size, other.model_id)

        for other in sorted(others, key=nearness)[:_TRIES]:
            if self._works(card=other):
                label = f"{other.quantization}, " if other.quantization else ""
                message = f"use {other.model_id} ({label}{gib(other.storage_size.in_bytes)})"
                yield Suggestion("other_quantization", message, model_id=other.model_id)
                return

    def drop_exclusion(self) -> Iterator[Suggestion]:
        """Excluded nodes without whose exclusion it would work."""
        excluded = self._request.excluded_node_ids
        for node_id in sorted(excluded & self._by_id.keys())[:_TRIES]:
            if self._works(request=replace(self._request, excluded_node_ids=excluded - {node_id})):
                message = f"do not exclude {self._by_id[node_id].name}"
                yield Suggestion("drop_exclusion", message, node_id=node_id)

    def fewer_nodes(self) -> Iterator[Suggestion]:
        """The widest smaller ``min_nodes`` that works."""
        asked = self._request.min_nodes
        for width in range(asked - 1, max(0, asked - 1 - _TRIES), -1):
            if self._works(request=replace(self._request, min_nodes=width)):
                yield Suggestion("lower_min_nodes", f"ask for min_nodes {width}")
                return

    def pipeline(self) -> Iterator[Suggestion]:
        """Pipeline instead of tensor sharding."""
        if self._request.sharding is not Sharding.TENSOR:
            return
        if self._works(request=replace(self._request, sharding=Sharding.PIPELINE)):
            yield Suggestion("pipeline_sharding", "use Pipeline instead of Tensor sharding")

    def one_node_more(self) -> Iterator[Suggestion]:
        """One more machine like one that is there, idle and linked like it."""
        if self._refusal.code in (codes.CONTEXT_NOT_POSITIVE, codes.BACKEND_NOT_ACCEPTED):
            return
        templates = sorted(self._snapshot.nodes, key=lambda node: (-_memory(node), node.node_id))
        seen: set[tuple[object, ...]] = set()
        for node in templates:
            kind = (
                node.ram_total_bytes,
                node.backends,
                tuple((device.name, device.total_bytes) for device in node.devices),
            )
            if kind in seen or node.node_id in self._request.excluded_node_ids:
                continue
            seen.add(kind)
            if len(seen) > _SHOWN:
                return
            if self._works(snapshot=_with_twin(self._snapshot, node)):
                yield Suggestion("add_node", f"add one node like {node.name}", node_id=node.node_id)
                return


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


def _memory(node: NodeFacts) -> int:
    return (node.ram_total_bytes or 0) + sum(device.total_bytes or 0 for device in node.devices)


def _with_twin(snapshot: FleetSnapshot, node: NodeFacts) -> FleetSnapshot:
    twin_id = f"{node.node_id}+1"
    ram = node.ram_total_bytes
    twin = replace(
        node,
        node_id=twin_id,
        name=f"{node.name}+1",
        reachable=True,
        ram_available_bytes=None if ram is None else ram * 9 // 10,
        devices=tuple(replace(device, used_bytes=0) for device in node.devices),
        active_requests=0,
        used_ports=frozenset(),
        local_artifacts={},
    )
    links = list(snapshot.links)
    for link in snapshot.links:
        if link.source == node.node_id:
            links.append(replace(link, source=twin_id))
        elif link.sink == node.node_id:
            links.append(replace(link, sink=twin_id, address=None))
    best = next((link for link in snapshot.links if node.node_id in (link.source, link.sink)), None)
    model = best or LinkFacts(node.node_id, twin_id, "ethernet")
    links.append(replace(model, source=node.node_id, sink=twin_id, address=None))
    links.append(replace(model, source=twin_id, sink=node.node_id, address=None))
    return replace(snapshot, nodes=(*snapshot.nodes, twin), links=tuple(links))

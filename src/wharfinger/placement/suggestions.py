"""What would help after a refusal. Every suggestion is planned before it is made, so none is an empty promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import codes
from wharfinger.placement.links import RING_ORDER, interface_class, is_dialable
from wharfinger.placement.members import spanning_nodes
from wharfinger.placement.memory import MIN_CONTEXT_TOKENS
from wharfinger.placement.refusals import widths
from wharfinger.placement.search import Found, search
from wharfinger.placement.stopping import Stopping
from wharfinger.placement.types import (
    FleetSnapshot,
    LinkFacts,
    NodeFacts,
    PlanRequest,
    PlanResult,
    Refusal,
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
_SHORT: Final = (codes.MEMORY_SHORT, codes.LINKS_UNSUPPORTED)
"""Refusals that less memory would answer."""


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
    if window is not None and request.context_tokens is not None and refusal.code in _SHORT:
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
        helper.stop_instances(),
        helper.other_quantization(catalog),
        helper.drop_exclusion(),
        helper.fewer_nodes(),
        helper.more_nodes(),
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
    ) -> Found | None:
        request = request or self._request
        if snapshot is None and card is None:
            work = self._work
        else:
            snapshot = snapshot or self._snapshot
            links = self._work.links if snapshot.links is self._snapshot.links else None
            work = Workspace(snapshot, card or self._card, request.settings, links)
        found = search(work, request)
        return found if found.ranked else None

    def smaller_window(self) -> int | None:
        """The largest window that would fit, in whole steps where that is possible."""
        if self._refusal.code not in (*_SHORT, codes.CONTEXT_TOO_LARGE):
            return None
        least = self._works(request=replace(self._request, context_tokens=MIN_CONTEXT_TOKENS))
        if least is None:
            return None
        largest = max(candidate.fit.max_context_tokens or 0 for candidate, _ in least.ranked)
        window = largest // _WINDOW_STEP * _WINDOW_STEP or largest
        if self._request.context_tokens is not None and window >= self._request.context_tokens:
            return None
        return window if self._works(request=replace(self._request, context_tokens=window)) else None

    def stop_instances(self) -> Iterator[Suggestion]:
        """Running instances whose memory would be enough."""
        return Stopping(
            self._snapshot, self._refusal, lambda fleet: self._works(snapshot=fleet) is not None
        ).suggestions()

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

    def more_nodes(self) -> Iterator[Suggestion]:
        """A ``min_nodes`` beyond the widths that are tried unasked."""
        request, work = self._request, self._work
        if self._refusal.code != codes.MEMORY_SHORT or request.max_nodes is not None:
            return
        first = widths(work, request)[1] + 1
        last = min(spanning_nodes(work, request), self._card.n_layers)
        step = max(1, -(-(last + 1 - first) // _TRIES))
        for width in range(first, last + 1, step):
            if self._works(request=replace(request, min_nodes=width)):
                yield Suggestion("raise_min_nodes", f"ask for min_nodes {width}")
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


def _memory(node: NodeFacts) -> int:
    return (node.ram_total_bytes or 0) + sum(device.total_bytes or 0 for device in node.devices)


def _with_twin(snapshot: FleetSnapshot, node: NodeFacts) -> FleetSnapshot:
    taken = {each.node_id for each in snapshot.nodes}
    number = next(n for n in count(1) if f"{node.node_id}+{n}" not in taken)
    twin_id = f"{node.node_id}+{number}"
    ram = node.ram_total_bytes
    twin = replace(
        node,
        node_id=twin_id,
        name=f"{node.name}+{number}",
        reachable=True,
        ram_available_bytes=None if ram is None else ram * 9 // 10,
        devices=tuple(replace(device, used_bytes=0) for device in node.devices),
        active_requests=0,
        used_ports=frozenset(),
        local_artifacts={},
    )
    links = list(snapshot.links)
    own: list[LinkFacts] = []
    for link in snapshot.links:
        if link.source == node.node_id:
            own.append(link)
            links.append(replace(link, source=twin_id))
        elif link.sink == node.node_id:
            own.append(link)
            links.append(replace(link, sink=twin_id))
    model = min(own, key=_link_key, default=LinkFacts(node.node_id, twin_id, "ethernet"))
    if model.address is None:
        model = replace(model, address=twin_id)  # a new machine has a name
    links.append(replace(model, source=node.node_id, sink=twin_id))
    links.append(replace(model, source=twin_id, sink=node.node_id))
    return replace(snapshot, nodes=(*snapshot.nodes, twin), links=tuple(links))


def _link_key(link: LinkFacts) -> tuple[object, ...]:
    """The fastest link of a node first; a total order over what links say."""
    bandwidth, latency = link.bandwidth_bytes_per_s, link.latency_s
    return (
        not is_dialable(link),
        RING_ORDER.index(interface_class(link)),
        not (link.rdma and link.rdma_interface is not None),
        -(bandwidth or 0.0),
        float("inf") if latency is None else latency,
        link.address or "",
        link.rdma,
        link.rdma_interface or "",
        link.source,
        link.sink,
        link.interface,
    )

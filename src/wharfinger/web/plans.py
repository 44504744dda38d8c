"""The preview panel: where a chosen model can run now, what it takes there, and the reasons where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.types import (
    DeviceCharge,
    InstanceMeta,
    MemoryPart,
    Plan,
    PlanRequest,
    PreviewRow,
    RankPlan,
    Refusal,
    Sharding,
)
from wharfinger.web.scores import ScoreLine, score_lines


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What a placement takes from one memory pool of one node."""

    node_name: str
    pool: str
    needed_bytes: int
    usable_bytes: int
    percent: float
    layers: str
    parts: tuple[MemoryPart, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A placement that is possible now, with what a launch of exactly it must ask for."""

    key: str
    """Short text that tells the option from its neighbours."""
    where: str
    shape: str
    backend: str
    context_tokens: int | None
    max_context_tokens: int | None
    pools: tuple[PoolUse, ...]
    score: tuple[ScoreLine, ...]
    flags: tuple[str, ...]
    node_ids: tuple[str, ...]
    sharding: str
    meta: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal and the shapes it is the answer to."""

    shapes: tuple[str, ...]
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Preview:
    """Everything the panel shows for one model."""

    model_id: str
    summary: str
    wish: int | None
    options: tuple[Option, ...]
    refused: tuple[Refused, ...]


def preview_of(
    card: ModelCard, rows: Iterable[PreviewRow], wish: int | None, node_names: Mapping[str, str]
) -> Preview:
    """Possible placements in the planner's order, then equal refusals as one."""
    rows = list(rows)
    refused: list[tuple[Refusal, list[str]]] = []
    for row in rows:
        if row.refusal is None:
            continue
        shapes = next((shapes for refusal, shapes in refused if refusal == row.refusal), None)
        if shapes is None:
            shapes = []
            refused.append((row.refusal, shapes))
        # The planner asks for one node as the Pipeline ring, and lets its refusal speak for wider such rings.
        one_node = (row.sharding, row.meta) == (Sharding.PIPELINE, InstanceMeta.RING)
        shapes.append(shape_of(row.sharding, row.meta, spans_nodes=not one_node))
    return Preview(
        model_id=card.model_id,
        summary=summary_of(card),
        wish=wish,
        options=tuple(
            _option(row.plan, number, node_names)
            for number, row in enumerate(row for row in rows if row.plan is not None)
            if row.plan is not None
        ),
        refused=tuple(Refused(tuple(shapes), refusal) for refusal, shapes in refused),
    )


def summary_of(card: ModelCard) -> str:
    """A card in one line: what it is, how big, how long its window."""
    window = f"window up to {card.context_length:,} tokens" if card.context_length else "window not known"
    parts = (card.architecture, card.quantization, f"{card.n_layers} layers", window)
    return " · ".join(part for part in parts if part)


def shape_of(sharding: Sharding, meta: InstanceMeta, *, spans_nodes: bool) -> str:
    """How a model is cut over nodes and joined, in the words of the contract; of one node there is nothing to tell."""
    return f"{sharding.value} · {meta.value}" if spans_nodes else "one node"


def launch_request(
    node_ids: Iterable[str], sharding: str, meta: str, backend: str, wish: int | None
) -> PlanRequest:
    """Exactly the nodes, the cut, the transport and the engine of an option.

    Raises:
        ValueError: a sharding or transport that does not exist.
    """
    chosen = frozenset(node_ids)
    defaults = PlanRequest()
    return PlanRequest(
        sharding=type(defaults.sharding)(sharding),
        meta=type(defaults.meta)(meta),
        min_nodes=max(1, len(chosen)),
        max_nodes=len(chosen) or None,
        required_node_ids=chosen,
        backend=backend or None,
        context_tokens=wish,
    )


def _option(plan: Plan, number: int, node_names: Mapping[str, str]) -> Option:
    return Option(
        key=str(number),
        where=", ".join(node_names.get(node_id, node_id) for node_id in plan.node_ids),
        shape=shape_of(plan.sharding, plan.meta, spans_nodes=len(plan.ranks) > 1),
        backend=plan.ranks[0].backend,
        context_tokens=plan.context_tokens,
        max_context_tokens=plan.max_context_tokens,
        pools=tuple(_pool(charge, rank, node_names) for rank in plan.ranks for charge in rank.charges),
        score=score_lines(plan.score),
        flags=tuple(flag.replace("_", " ") for flag in plan.flags),
        node_ids=plan.node_ids,
        sharding=plan.sharding.value,
        meta=plan.meta.value,
    )


def _pool(charge: DeviceCharge, rank: RankPlan, node_names: Mapping[str, str]) -> PoolUse:
    needed, usable = charge.needed_bytes, charge.usable_bytes
    return PoolUse(
        node_name=node_names.get(rank.node_id, rank.node_id),
        pool="RAM" if charge.device_index is None else f"GPU {charge.device_index}",
        needed_bytes=needed,
        usable_bytes=usable,
        percent=min(100.0, round(100 * needed / usable, 2)) if usable else 100.0,
        layers=f"layers {charge.start_layer}-{charge.end_layer - 1}"
        if charge.end_layer > charge.start_layer
        else "",
        parts=charge.parts,
    )

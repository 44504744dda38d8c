"""The shape a backend gives a request over several nodes."""

from __future__ import annotations

from dataclasses import dataclass

from wharfinger.placement import backends, codes
from wharfinger.placement.backends import Span
from wharfinger.placement.types import InstanceMeta, PlanRequest, Sharding
from wharfinger.placement.window import WindowGoal


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of set is looked for."""

    tag: str
    """Backend of every member, or a bare engine: each member then runs its own best backend of it."""
    sharding: Sharding
    meta: InstanceMeta
    span: Span
    goal: WindowGoal


def shape_for(tag: str, request: PlanRequest, goal: WindowGoal) -> Shape | str:
    """The shape, or the code that rules the backend out.

    A GGUF model over several machines is always llama.cpp RPC, whichever meta was asked for.
    """
    span = backends.span_of(tag)
    if span is Span.STAR:
        if request.sharding is Sharding.TENSOR:
            return codes.TENSOR_OVER_RPC
        return Shape(tag, Sharding.PIPELINE, InstanceMeta.RPC, span, goal)
    if request.meta is InstanceMeta.RPC or (request.meta is InstanceMeta.JACCL and span is not Span.RING):
        return codes.META_NOT_APPLICABLE
    return Shape(tag, request.sharding, request.meta, span, goal)

"""Routable endpoints and the in-memory table the gateway reads.

A table is never edited: :meth:`RouteTable.publish` swaps in a whole new generation, so a request sees one
consistent set. No database and no lock is on the request path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint that was proven healthy and serving ``upstream_model``."""

    target_id: str
    model_id: str
    """Name clients use."""
    upstream_model: str
    """Name the endpoint knows the model by."""
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    """Credential for the endpoint; never shown, never logged."""
    instance_id: str | None = None
    context_tokens: int | None = None
    created_unix_s: int = 0
    tasks: tuple[str, ...] = ("TextGeneration",)


class RouteTable:
    """Served model name to targets. All methods run on the event loop and never block."""

    def __init__(self) -> None:
        self._routes: dict[str, tuple[Target, ...]] = {}
        self._in_flight: dict[str, int] = {}
        self.generation = 0

    def publish(self, targets: Iterable[Target]) -> int:
        """Replace the whole table; returns the new generation. In-flight counts survive by target id."""
        routes: dict[str, list[Target]] = {}
        for target in sorted(targets, key=lambda t: t.target_id):
            routes.setdefault(target.model_id, []).append(target)
        self._routes = {model: tuple(found) for model, found in routes.items()}
        self.generation += 1
        return self.generation

    def targets(self) -> tuple[Target, ...]:
        """Every target of the current generation."""
        return tuple(target for found in self._routes.values() for target in found)

    def models(self) -> tuple[str, ...]:
        """Served model names, sorted."""
        return tuple(sorted(self._routes))

    def acquire(self, model_id: str) -> Target | None:
        """Pick the target of ``model_id`` with the fewest requests in flight and count one more on it."""
        found = self._routes.get(model_id)
        if not found:
            return None
        in_flight = self._in_flight
        target = found[0] if len(found) == 1 else min(found, key=lambda t: in_flight.get(t.target_id, 0))
        in_flight[target.target_id] = in_flight.get(target.target_id, 0) + 1
        return target

    def release(self, target: Target) -> None:
        """A request on ``target`` ended, however it ended."""
        left = self._in_flight.get(target.target_id, 0) - 1
        if left > 0:
            self._in_flight[target.target_id] = left
        else:
            self._in_flight.pop(target.target_id, None)

    def in_flight(self, target_id: str) -> int:
        """Requests now running on a target, also one already withdrawn."""
        return self._in_flight.get(target_id, 0)

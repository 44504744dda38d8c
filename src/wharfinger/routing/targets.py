"""Routable endpoints and the in-memory table the gateway reads.

A table is never edited: :meth:`RouteTable.publish` swaps in a whole new generation, so a request sees one
consistent set. No database and no lock is on the request path.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

SUSPECT_FOR_S = 5.0
"""How long a target that could not be connected to is passed over while its model has another."""


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
    collects: bool = False
    """Its documents are fetched as streams: see :mod:`wharfinger.routing.collect`."""


class RouteTable:
    """Served model name to targets. All methods run on the event loop and never block."""

    def __init__(self) -> None:
        self._routes: dict[str, tuple[Target, ...]] = {}
        self._in_flight: dict[str, int] = {}
        self._suspect_until_s: dict[str, float] = {}
        self.generation = 0

    def publish(self, targets: Iterable[Target]) -> int:
        """Replace the whole table; returns the new generation. In-flight counts survive by target id."""
        routes: dict[str, list[Target]] = {}
        for target in sorted(targets, key=lambda t: t.target_id):
            routes.setdefault(target.model_id, []).append(target)
        self._routes = {model: tuple(found) for model, found in routes.items()}
        self._suspect_until_s.clear()
        self.generation += 1
        return self.generation

    def targets(self) -> tuple[Target, ...]:
        """Every target of the current generation."""
        return tuple(target for found in self._routes.values() for target in found)

    def models(self) -> tuple[str, ...]:
        """Served model names, sorted."""
        return tuple(sorted(self._routes))

    def serving(self, model_id: str) -> tuple[Target, ...]:
        """The targets of one model; empty when it is not running."""
        return self._routes.get(model_id, ())

    def acquire(self, model_id: str, exclude: Collection[str] = ()) -> Target | None:
        """Pick the target of ``model_id`` with the fewest requests in flight and count one more on it.

        ``exclude`` holds ids of targets this request has tried already. A target that was just reported with
        :meth:`suspect` is picked only when there is no other.
        """
        found = self._routes.get(model_id, ())
        if exclude:
            found = tuple(target for target in found if target.target_id not in exclude)
        if not found:
            return None
        target = found[0] if len(found) == 1 else min(found, key=self._load)
        self._in_flight[target.target_id] = self._in_flight.get(target.target_id, 0) + 1
        return target

    def _load(self, target: Target) -> tuple[bool, int]:
        suspect = (
            self._suspect_until_s and self._suspect_until_s.get(target.target_id, 0.0) > time.monotonic()
        )
        return bool(suspect), self._in_flight.get(target.target_id, 0)

    def suspect(self, target: Target) -> None:
        """No connection to ``target`` could be made: prefer others for :data:`SUSPECT_FOR_S`."""
        self._suspect_until_s[target.target_id] = time.monotonic() + SUSPECT_FOR_S

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

"""Which engines there are, by the first part of their backend tags."""

from __future__ import annotations

from typing import Final

from wharfinger.engines.base import Engine
from wharfinger.engines.llama_cpp import LlamaCppEngine

ENGINES: tuple[Engine, ...] = (LlamaCppEngine(),)
STARTED_ENGINES: Final = tuple(engine.name for engine in ENGINES)
"""Names of the engines that are started."""
SPANS_MACHINES: Final = False
"""Whether a model is launched over several machines: their runners cannot be joined yet."""


def engine_for(backend: str) -> Engine | None:
    """The engine that serves a backend tag such as ``llama_cpp-cpu``; ``None`` when we know none."""
    name = backend.partition("-")[0]
    return next((engine for engine in ENGINES if engine.name == name), None)

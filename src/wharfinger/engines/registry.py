"""Which engines there are, by the first part of their backend tags."""

from __future__ import annotations

from wharfinger.engines.base import Engine
from wharfinger.engines.llama_cpp import LlamaCppEngine

ENGINES: tuple[Engine, ...] = (LlamaCppEngine(),)


def engine_for(backend: str) -> Engine | None:
    """The engine that serves a backend tag such as ``llama_cpp-cpu``; ``None`` when we know none."""
    name = backend.partition("-")[0]
    return next((engine for engine in ENGINES if engine.name == name), None)

"""What an engine is: how it is found on a node, how it loads a model and how it serves it.

Everything here is standard library only, because the runner process imports it: a runner must start in
milliseconds and hold nothing of the control plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineFound:
    """One engine that can be started on this node."""

    engine: str
    """``llama_cpp``, ``vllm``, …"""
    backends: tuple[str, ...]
    """Backend tags it can serve here: the bare engine, then one tag for each compute, e.g. ``llama_cpp-cpu``."""
    version: str | None
    build: str | None = None


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """What one runner loads and serves."""

    model_id: str
    """The one name the endpoint serves."""
    backend: str
    model_path: str
    context_tokens: int
    """Window of one request; every slot gets it whole."""
    slots: int
    api_key: str = field(repr=False)
    port: int | None = None
    """``None`` takes a free one of :data:`wharfinger.engines.ports.PORTS`."""
    batch_tokens: int = 512
    micro_batch_tokens: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    chat_template: str | None = None
    chat_stop: Sequence[str] = ()
    embedding: bool = False


class EngineError(Exception):
    """The engine cannot load or serve the model. ``code`` is stable, the message says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Serving(Protocol):
    """A model that is loaded and served on loopback by threads of this process."""

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        ...

    @property
    def load_s(self) -> float:
        """Seconds the engine itself took, from the call to a listening, loaded model."""
        ...

    def close(self) -> None:
        """Stop serving and free the model."""
        ...


class Engine(Protocol):
    """One engine. Methods may block and may hold the interpreter lock: call them in a process of their own."""

    @property
    def name(self) -> str:
        """First part of its backend tags."""
        ...

    @property
    def install_hint(self) -> str:
        """Command that installs it."""
        ...

    @property
    def notices_hangup_only_of_streams(self) -> bool:
        """It goes on with an answer that is not streamed for more than a second after the client has left."""
        ...

    def installed(self) -> bool:
        """Whether it can be started here, without importing it."""
        ...

    def detect(self) -> EngineFound | None:
        """What it can do here; loads its native library. ``None`` when it is not installed."""
        ...

    def load(self, launch: EngineLaunch) -> Serving:
        """Check the files, load the model and serve it; blocks until it listens.

        Raises:
            EngineError: ``file_missing``, ``load_failed``, ``out_of_memory`` or ``port_in_use``.
        """
        ...

    def explain(self, log_tail: tuple[str, ...]) -> EngineError | None:
        """The cause of a failed load as the engine's own log tells it; ``None`` when it does not."""
        ...

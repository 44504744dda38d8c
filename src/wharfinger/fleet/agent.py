"""The one interface through which the control plane reaches a machine you own.

Arguments and results are plain pydantic values that survive JSON, because on other machines the agent is a remote
actor. Nothing above this module may know whether a node is this process or another machine.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class AgentValue(BaseModel):
    """Base of everything that crosses the agent interface."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class RunnerState(StrEnum):
    """The contract's runner states, by their wire names."""

    IDLE = "RunnerIdle"
    CONNECTING = "RunnerConnecting"
    CONNECTED = "RunnerConnected"
    LOADING = "RunnerLoading"
    LOADED = "RunnerLoaded"
    WARMING_UP = "RunnerWarmingUp"
    READY = "RunnerReady"
    RUNNING = "RunnerRunning"
    SHUTTING_DOWN = "RunnerShuttingDown"
    SHUTDOWN = "RunnerShutdown"
    FAILED = "RunnerFailed"

    @property
    def ended(self) -> bool:
        """True when no process is left in this state."""
        return self in (RunnerState.SHUTDOWN, RunnerState.FAILED)


class DeviceReport(AgentValue):
    """One accelerator as measured; ``None`` was not measured."""

    index: int
    name: str
    vendor: str
    compute: str
    memory_kind: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    gtt_total_bytes: int | None = None
    compute_capability: str | None = None
    utilisation_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class EngineReport(AgentValue):
    """One engine found on the node."""

    engine: str
    """``llama_cpp``, ``vllm``, …"""
    backends: tuple[str, ...]
    """Backend tags it serves here, e.g. ``llama_cpp-cpu``."""
    version: str | None
    build: str | None = None


class NodeReport(AgentValue):
    """Everything a node says about itself at one moment."""

    node_id: str
    name: str
    at: datetime
    role: str = "full"
    os: str
    architecture: str
    cpu_model: str | None
    cpu_count: int | None
    """Processors that runners may keep busy: those of the machine, or fewer in a container or with an affinity."""
    cpu_percent: float | None
    load_1m: float | None
    ram_total_bytes: int | None
    ram_available_bytes: int | None
    """What a new process could take: what the system calls available, less ``mapped_model_bytes``, which it counts as
    available although runners need it."""
    swap_total_bytes: int | None
    swap_available_bytes: int | None
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    mapped_model_bytes: int | None = None
    """Resident file pages that living runners have mapped, mostly model weights. Taken off ``ram_available_bytes``
    already. Linux only."""
    memory_cap_bytes: int | None = None
    """What the node's operator set as the most that models may take, over RAM and devices together; ``None``: no
    limit."""
    devices: tuple[DeviceReport, ...] = ()
    engines: tuple[EngineReport, ...] = ()
    missing: dict[str, str] = Field(default_factory=dict)
    """Fact name to the reason it could not be measured."""
    used_ports: tuple[int, ...] = ()
    artifact_files: tuple[str, ...] = ()
    """Paths of model files seen on this node's disk."""


class RunnerSpec(AgentValue):
    """What one runner shall be: one process for one instance on one node."""

    runner_id: str
    instance_id: str
    model_id: str
    """The name the endpoint must serve."""
    backend: str
    """Backend tag, e.g. ``llama_cpp-cpu``; its first part names the engine."""
    model_path: str
    context_tokens: int
    """Window of one request; the engine reserves ``context_tokens`` for each slot."""
    slots: int = 1
    port: int | None = None
    """``None`` lets the node choose a free one."""
    api_key: SecretStr
    """Credential the endpoint must demand. Handed over a pipe: never in argv, environment listings or logs."""
    rank: int = 0
    world_size: int = 1
    start_layer: int = 0
    end_layer: int
    n_layers: int
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    chat_template: str | None = None
    """Jinja template for a model file that carries none; ``None`` leaves it to the engine."""
    chat_stop: tuple[str, ...] = ()
    """Where an answer ends when the request names no stop of its own."""
    batch_tokens: int = 512
    """Prompt tokens computed in one go. llama.cpp cannot break off inside a batch, so this bounds how long a request
    whose client has gone goes on; more only helps a model spread over several devices."""
    micro_batch_tokens: int = 512
    embedding: bool = False
    load_timeout_s: float = 600.0
    """Raised to what reading the model file at 50 MB/s takes, should that be longer."""
    first_status_timeout_s: float = 120.0
    warmup_timeout_s: float = 300.0


class RunnerReport(AgentValue):
    """One runner as its node sees it now."""

    runner_id: str
    instance_id: str
    node_id: str
    model_id: str
    backend: str
    state: RunnerState
    state_since: datetime
    started_at: datetime
    pid: int | None = None
    endpoint: str | None = None
    """Base URL, once the process listens, e.g. ``http://127.0.0.1:24817``."""
    layers_loaded: int = 0
    total_layers: int = 0
    engine_load_s: float | None = None
    """Seconds the engine itself took to load the model."""
    exit_code: int | None = None
    """Process exit status; negative is the signal that ended it."""
    error_code: str | None = None
    """Set with ``RunnerFailed``: ``file_missing``, ``load_failed``, ``out_of_memory``, ``port_in_use`` (the load);
    ``endpoint_open``, ``model_mismatch``, ``window_too_small``, ``warmup_failed`` (the first answers);
    ``runner_unresponsive`` (no status, or a load past its deadline), ``runner_wedged`` (loaded, but not ready in time);
    ``runner_crashed``, ``spawn_failed``; ``internal_error`` (our own supervision broke; only the error's type is
    named)."""
    error_message: str | None = None
    log_tail: tuple[str, ...] = ()
    """Last lines of its log, kept with a failure."""
    resident_bytes: int | None = None


class LogChunk(AgentValue):
    """Part of a runner's log. Ask again from ``next_offset``."""

    runner_id: str
    text: str
    next_offset: int
    """Byte position in the runner's whole log, rotated parts counted."""
    ended: bool
    """True when the runner has ended and everything has been read."""


class StopDeadlines(AgentValue):
    """How long each way of stopping a runner may take before the next, harder one."""

    ask_s: float = 3.0
    terminate_s: float = 5.0
    kill_s: float = 5.0


class AgentError(Exception):
    """A node could not do what was asked. ``code`` is stable, the message says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NodeAgent(Protocol):
    """What the control plane may ask of a node. Every method may raise :class:`AgentError`."""

    @property
    def node_id(self) -> str:
        """Stable id, kept in the node's data directory."""
        ...

    async def report(self) -> NodeReport:
        """Measure the node now.

        Raises:
            AgentError: ``telemetry_timeout`` when a driver or a disk hangs, ``telemetry_failed`` when one answers as
                nobody foresaw; what was measured before goes on ageing.
        """
        ...

    async def has_files(self, paths: tuple[str, ...]) -> tuple[bool, ...]:
        """Whether each of ``paths`` is a file on the node's own disks now.

        Raises:
            AgentError: ``files_timeout`` when a disk hangs, so that it is not known.
        """
        ...

    async def start_runner(self, spec: RunnerSpec) -> RunnerReport:
        """Start a runner and return at once. The same ``runner_id`` while it lives is adopted, not doubled."""
        ...

    async def runners(self) -> tuple[RunnerReport, ...]:
        """All runners this node knows, ended ones included until they are forgotten."""
        ...

    async def wait_runner(self, runner_id: str, since: RunnerReport | None, timeout_s: float) -> RunnerReport:
        """Return when the runner's report differs from ``since`` in state or progress, or at the timeout."""
        ...

    async def stop_runner(self, runner_id: str, deadlines: StopDeadlines) -> RunnerReport:
        """End a runner: ask, SIGTERM, SIGKILL. Returns when no process is left; an unknown id is a success."""
        ...

    async def forget_runner(self, runner_id: str) -> None:
        """Drop an ended runner's record; of logs of forgotten runners a node keeps the newest only."""
        ...

    async def read_log(self, runner_id: str, offset: int, limit_bytes: int) -> LogChunk:
        """Read a runner's log from ``offset``; negative counts from the end."""
        ...

    async def close(self) -> None:
        """Stop every runner and let go of the node."""
        ...

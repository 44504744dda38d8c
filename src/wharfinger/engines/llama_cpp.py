"""llama.cpp with its native HTTP server, from the ``xllamacpp`` wheel, in the runner's own process.

``xllamacpp.Server(params)`` blocks until the model is loaded, holds the interpreter lock all that time, and then
serves from native threads.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from dataclasses import dataclass
from typing import Any, Final

from wharfinger.engines.base import EngineError, EngineFound, EngineLaunch, Serving
from wharfinger.engines.control_groups import usable_cores, usable_cpus
from wharfinger.engines.model_file import check_gguf
from wharfinger.engines.ports import LOOPBACK, choose_port, is_free

_PACKAGE: Final = "xllamacpp"
_PORT_TRIES: Final = 8
_COMPUTE_OF_DEVICE: Final = {
    "CUDA": "cuda",
    "ROCm": "rocm",
    "HIP": "rocm",
    "Vulkan": "vulkan",
    "MTL": "metal",
    "Metal": "metal",
}
"""Start of a ggml device name to the compute half of a backend tag."""
_CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_LOG_VERBOSITY: Final = 3
"""What llama.cpp says about loading and slots; from 4 on it would also print the end of the API key."""
_CONTEXT_CHECKPOINTS: Final = 4
"""Snapshots of sliding and recurrent state kept for each slot, against llama.cpp's 32: enough for the turns of a
conversation, and small beside what placement reserves."""
_CAUSES: Final = (
    ("data is not within the file bounds", "load_failed", "the model file is truncated; get the file again"),
    ("tensors, got", "load_failed", "the model file does not hold the tensors its header lists; get the file again"),
    ("failed to read magic", "load_failed", "the model file is no GGUF; give the path of a model in GGUF format"),
    ("invalid magic", "load_failed", "the model file is no GGUF; give the path of a model in GGUF format"),
    ("unknown model architecture", "load_failed", "this build of llama.cpp does not know the model; update the engine"),
    ("insufficient memory", "out_of_memory", "ask for a smaller window or fewer slots, or free memory on this node"),
    ("out of memory", "out_of_memory", "ask for a smaller window or fewer slots, or free memory on this node"),
    ("failed to allocate", "out_of_memory", "ask for a smaller window or fewer slots, or free memory on this node"),
    ("error loading model", "load_failed", "see the runner's log; the file may be damaged or not supported"),
)  # fmt: skip
"""Telling parts of llama.cpp's error lines, most telling first: part, error code, what to do."""


@dataclass(slots=True)
class _LlamaServing:
    server: Any
    port: int
    load_s: float

    def close(self) -> None:
        self.server = None


class LlamaCppEngine:
    """The ``llama_cpp`` engine: one node, GGUF files."""

    name = "llama_cpp"
    install_hint = "pip install 'wharfinger[llama]'"
    notices_hangup_only_of_streams = True

    def installed(self) -> bool:
        """Whether the wheel is there, without importing it."""
        return importlib.util.find_spec(_PACKAGE) is not None

    def detect(self) -> EngineFound | None:
        """Version, build and the computes of the devices that this build can use here."""
        if not self.installed():
            return None
        # Here, because it takes 20 ms and every start of a runner imports this module.
        from importlib.metadata import version

        xllamacpp = _library()
        names = [str(device["name"]) for device in xllamacpp.get_device_info()]
        computes = {
            compute
            for name in names
            for prefix, compute in _COMPUTE_OF_DEVICE.items()
            if name.startswith(prefix)
        }
        found = version(_PACKAGE)
        tags = (self.name, f"{self.name}-cpu", *(f"{self.name}-{compute}" for compute in sorted(computes)))
        return EngineFound(self.name, tags, found, build=f"{_PACKAGE}-{found}")

    def load(self, launch: EngineLaunch) -> Serving:
        """Load and serve; with a port of our choice a lost race for it is tried again with another."""
        check_gguf(launch.model_path)
        xllamacpp = _library()
        tries = _PORT_TRIES if launch.port is None else 1
        for _ in range(tries):
            port = launch.port or choose_port()
            started = time.perf_counter()
            try:
                server = xllamacpp.Server(_parameters(xllamacpp, launch, port))
            except RuntimeError as error:
                if is_free(port):
                    raise EngineError("load_failed", f"llama.cpp could not load the model: {error}") from None
                continue  # somebody listens there, so the port and not the model was the trouble
            return _LlamaServing(server, port, time.perf_counter() - started)
        raise EngineError(
            "port_in_use",
            f"port {launch.port or 'after port'} on {LOOPBACK} is in use by another process; "
            "stop it, or leave the choice of the port to the node",
        )

    def explain(self, log_tail: tuple[str, ...]) -> EngineError | None:
        """Find the telling error line."""
        for part, code, advice in _CAUSES:
            for line in log_tail:
                if part in line:
                    return EngineError(code, f"llama.cpp could not load the model: {_cause(line)}; {advice}")
        return None


def _library() -> Any:
    """The wheel's module: an optional extra with 30 MB of native code, so it is loaded only where it is used."""
    return importlib.import_module(_PACKAGE)


def _cause(line: str) -> str:
    """The statement of a log line: what follows its time stamp, level and function names."""
    statement = line.rsplit("error loading model: ", 1)[-1]
    return statement.split(" E ", 1)[-1].strip()


def _parameters(xllamacpp: Any, launch: EngineLaunch, port: int) -> Any:
    """llama.cpp's parameters. Nothing may grow beyond what placement reserved: no fitting, no prompt cache in RAM."""
    p = xllamacpp.CommonParams()
    p.model.path = launch.model_path
    p.model_alias = {launch.model_id}
    p.hostnames = [LOOPBACK]
    p.port = port
    p.api_keys = [launch.api_key]
    p.n_parallel = launch.slots
    p.n_ctx = launch.context_tokens * launch.slots
    p.kv_unified = False  # each slot has its own part of the cache: context_tokens, rounded up to 256
    p.n_batch = launch.batch_tokens
    p.n_ubatch = launch.batch_tokens if launch.embedding else launch.micro_batch_tokens
    p.cache_type_k = _cache_type(xllamacpp, "cache_type_k", launch.cache_type_k)
    p.cache_type_v = _cache_type(xllamacpp, "cache_type_v", launch.cache_type_v)
    if launch.chat_template is not None:
        p.chat_template = launch.chat_template
        p.antiprompt = list(launch.chat_stop)
    p.embedding = launch.embedding
    p.n_gpu_layers = 0 if launch.backend == "llama_cpp-cpu" else -1
    p.fit_params = False
    p.cache_ram_mib = 0
    p.cache_idle_slots = False
    p.n_ctx_checkpoints = _CONTEXT_CHECKPOINTS
    p.endpoint_metrics = True
    p.ui = False
    p.warmup = True
    p.verbosity = _LOG_VERBOSITY
    cpus = usable_cpus()
    if cpus < (os.cpu_count() or cpus):  # else the engine's own choice is better: it knows the kinds of cores
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = usable_cores()
    return p


def _cache_type(xllamacpp: Any, field: str, name: str) -> Any:
    if name not in _CACHE_TYPES:
        raise EngineError(
            "load_failed", f"{field}={name!r} is not known to llama.cpp; one of {', '.join(_CACHE_TYPES)}"
        )
    return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")

"""Loads a GGUF in the real llama.cpp, in a process of its own, and reports what it says and what it really uses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.memory import ShardShape, footprint
from wharfinger.placement.memory.llama_cpp import CHECKPOINTS
from wharfinger.placement.types import ServingSettings

MIB = 1 << 20

_CHILD = """
import json, os, sys, urllib.request
import xllamacpp

def memory():
    with open("/proc/self/smaps_rollup") as rollup:
        lines = (line.split() for line in rollup)
        return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in lines if parts[-1] == "kB"}

request = json.loads(sys.argv[1])
before = memory()
params = xllamacpp.CommonParams()
params.model.path = request["path"]
params.n_ctx = request["n_ctx"]
params.n_parallel = request["slots"]
params.n_batch = request["batch"]
params.n_ubatch = request["micro_batch"]
params.hostnames = ["127.0.0.1"]
params.port = 0
params.verbosity = 5
params.fit_params = False
params.embedding = request["embedding"]
params.cache_type_k = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + request["cache_type_k"].upper())
params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + request["cache_type_v"].upper())
params.cache_ram_mib = 0
params.n_ctx_checkpoints = request["checkpoints"]
server = xllamacpp.Server(params)
prompt = [3 + index % request["prompt_words"] for index in range(request["prompt_tokens"])]
body, route = ({"input": prompt}, "/v1/embeddings") if request["embedding"] else (
    {"prompt": prompt, "n_predict": 2}, "/completion")
loaded = memory()
urllib.request.urlopen(urllib.request.Request(
    server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"})).read()
print("PROBE " + json.dumps({"before": before, "loaded": loaded, "after": memory()}), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Probe:
    """What one load printed and used, in bytes."""

    kv_bytes: int
    """Token caches, added up."""
    recurrent_bytes: int
    compute_bytes: int
    """Scratch buffers of all backends."""
    output_bytes: int
    """Logits and embeddings."""
    model_bytes: int
    repacked_bytes: int
    """Copies of weights in a layout the CPU likes better."""
    resident_bytes: int
    """Anonymous and file pages of the process after a prompt of a whole micro-batch: before the first one, scratch
    is promised but not touched."""
    anonymous_bytes: int
    base_bytes: int
    """Resident before the model was loaded."""
    cache_lines: int
    """Lines the cache figures were added up from; each is rounded to a hundredth of a MiB."""
    log: str


@dataclass(frozen=True)
class Comparison:
    """Predicted against printed and used, in bytes."""

    label: str
    predicted: dict[str, int]
    probe: Probe

    @property
    def cache_error(self) -> float:
        """Relative error of the cache and states beyond what the engine's rounding hides."""
        predicted = self.predicted.get("kv_cache", 0) + self.predicted.get("recurrent_state", 0)
        printed = self.probe.kv_bytes + self.probe.recurrent_bytes
        beyond = max(0, abs(predicted - printed) - self.probe.cache_lines * (MIB // 200 + 1))
        return beyond / printed if printed else float(predicted > 0)

    @property
    def compute_error(self) -> float:
        """Predicted scratch over printed, less one; the logits the engine prints apart are in both."""
        return self.predicted["compute_buffers"] / (self.probe.compute_bytes + self.probe.output_bytes) - 1

    @property
    def needed_bytes(self) -> int:
        """Predicted in all, without the checkpoints a first prompt does not take."""
        return sum(self.predicted.values()) - self.predicted.get("context_checkpoints", 0)

    @property
    def process_error(self) -> float:
        """Predicted over resident, less one.

        Resident without repacked copies: their originals are clean pages of the file, which the kernel takes back
        when memory is short.
        """
        return self.needed_bytes / (self.probe.resident_bytes - self.probe.repacked_bytes) - 1


def compare(path: Path, card: ModelCard, context_tokens: int, settings: ServingSettings) -> Comparison:
    """Load a model in llama.cpp and set the planner's footprint beside what happened."""
    embedding = "TextEmbedding" in card.tasks
    if embedding:
        settings = replace(settings, micro_batch_tokens=settings.batch_tokens)
    found = probe(path, context_tokens, settings, embedding=embedding)
    need = footprint(card, "llama_cpp-cpu", ShardShape(0, card.n_layers), context_tokens, settings)
    label = f"{card.architecture} {context_tokens} x {settings.slots} {settings.cache_type_k}/{settings.cache_type_v}"
    return Comparison(label, {part.name: part.size_bytes for part in need.parts}, found)


def probe(path: Path, context_tokens: int, settings: ServingSettings, *, embedding: bool = False) -> Probe:
    """Load a model with ``settings.slots`` slots of ``context_tokens`` each.

    Raises:
        RuntimeError: the process ended before the model was loaded; the end of its output is in the text.
    """
    request = {
        "path": str(path),
        "n_ctx": context_tokens * settings.slots,
        "slots": settings.slots,
        "batch": settings.batch_tokens,
        "micro_batch": settings.micro_batch_tokens,
        "cache_type_k": settings.cache_type_k,
        "cache_type_v": settings.cache_type_v,
        "embedding": embedding,
        "checkpoints": CHECKPOINTS,
        "prompt_words": 200,
        "prompt_tokens": min(settings.micro_batch_tokens, context_tokens - 8),
    }
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(request)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    log = done.stdout + done.stderr
    reported = re.search(r"^PROBE (\{.*\})$", log, re.MULTILINE)
    if reported is None:
        raise RuntimeError(f"llama.cpp did not load {path.name}: {log[-2000:]}")
    memory = json.loads(reported.group(1))
    return Probe(
        kv_bytes=_printed(log, r"\S+ KV buffer size"),
        recurrent_bytes=_printed(log, r"\S+ RS buffer size"),
        compute_bytes=_printed(log, r"\S+ compute buffer size"),
        output_bytes=_printed(log, r"\S+\s+output buffer size"),
        model_bytes=_printed(log, r"CPU(?:_Mapped)? model buffer size"),
        repacked_bytes=_printed(log, r"CPU_REPACK model buffer size"),
        resident_bytes=memory["after"]["Rss"],
        anonymous_bytes=memory["after"]["Anonymous"],
        base_bytes=memory["before"]["Rss"],
        cache_lines=len(re.findall(r"(?:KV|RS) buffer size", log)),
        log=log,
    )


def _printed(log: str, label: str) -> int:
    """Sum of all lines ``<label> = N MiB``; llama.cpp prints two decimals."""
    return sum(round(float(size) * MIB) for size in re.findall(rf"{label} =\s+([0-9.]+) MiB", log))

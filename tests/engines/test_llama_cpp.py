"""The llama.cpp engine with the real wheel."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest
import xllamacpp

from support.tiny_gguf import write_tiny_gguf
from wharfinger.engines import llama_cpp
from wharfinger.engines.base import EngineError, EngineLaunch
from wharfinger.engines.detect import detect_engines
from wharfinger.engines.llama_cpp import LlamaCppEngine
from wharfinger.engines.registry import ENGINES, engine_for

# The wheel blocks the interpreter while it loads, so everything that loads a model here runs in a child process.
SERVE = """
import json, sys
from wharfinger.engines.base import EngineLaunch
from wharfinger.engines.registry import engine_for
launch = EngineLaunch(**json.loads(sys.argv[1]))
serving = engine_for(launch.backend).load(launch)
print(serving.port, serving.load_s, flush=True)
sys.stdin.read()
serving.close()
print("closed", flush=True)
"""


def launch_of(path: Path, **changes: object) -> EngineLaunch:
    values = {
        "model_id": "tiny",
        "backend": "llama_cpp-cpu",
        "model_path": str(path),
        "context_tokens": 300,
        "slots": 3,
    }
    return EngineLaunch(**(values | {"api_key": "key-of-the-test"} | changes))


def test_detection_names_the_build_and_the_computes() -> None:
    found, missing = detect_engines()
    assert missing == {}
    (engine,) = found
    version = importlib.metadata.version("xllamacpp")
    assert (engine.engine, engine.version, engine.build) == ("llama_cpp", version, f"xllamacpp-{version}")
    assert engine.backends[:2] == ("llama_cpp", "llama_cpp-cpu")


@pytest.mark.parametrize("backend", ["llama_cpp", "llama_cpp-cpu", "llama_cpp-cuda"])
def test_a_backend_tag_leads_to_its_engine(backend: str) -> None:
    engine = engine_for(backend)
    assert engine is ENGINES[0]
    assert engine.name == "llama_cpp"


@pytest.mark.parametrize("backend", ["vllm-cuda", "", "llama", "llama_cpp_server-cpu"])
def test_an_unknown_backend_leads_nowhere(backend: str) -> None:
    assert engine_for(backend) is None


def test_every_slot_has_the_whole_window_and_the_key_is_demanded(tmp_path: Path) -> None:
    launch = launch_of(write_tiny_gguf(tmp_path, "llama").path, model_id="org/tiny")
    command = [sys.executable, "-c", SERVE, json.dumps(asdict(launch))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        port, load_s = process.stdout.readline().split()
        assert float(load_s) > 0
        base = f"http://127.0.0.1:{port}"
        headers = {"Authorization": "Bearer key-of-the-test"}
        assert httpx.get(f"{base}/v1/models").status_code == 401
        assert httpx.get(f"{base}/v1/models", headers={"Authorization": "Bearer other"}).status_code == 401
        assert [m["id"] for m in httpx.get(f"{base}/v1/models", headers=headers).json()["data"]] == [
            "org/tiny"
        ]
        slots = httpx.get(f"{base}/slots", headers=headers).json()
        assert [slot["n_ctx"] for slot in slots] == [512, 512, 512]  # 300 rounded up to a multiple of 256
        assert process.communicate("", timeout=20)[0] == "closed\n"


def test_parameters_keep_memory_where_placement_put_it(tmp_path: Path) -> None:
    p = llama_cpp._parameters(xllamacpp, launch_of(tmp_path, cache_type_k="q8_0"), 24001)
    assert (p.n_ctx, p.n_parallel, p.kv_unified) == (900, 3, False)
    assert (p.fit_params, p.cache_ram_mib, p.n_gpu_layers) == (False, 0, 0)
    assert (list(p.hostnames), p.port, list(p.api_keys)) == (["127.0.0.1"], 24001, ["key-of-the-test"])
    assert (p.cache_type_k, p.cache_type_v) == (
        xllamacpp.ggml_type.GGML_TYPE_Q8_0,
        xllamacpp.ggml_type.GGML_TYPE_F16,
    )
    assert (
        llama_cpp._parameters(xllamacpp, launch_of(tmp_path, backend="llama_cpp-cuda"), 1).n_gpu_layers == -1
    )


@pytest.mark.parametrize("name", [*llama_cpp._CACHE_TYPES])
def test_every_cache_type_we_name_is_known_to_the_wheel(name: str, tmp_path: Path) -> None:
    p = llama_cpp._parameters(xllamacpp, launch_of(tmp_path, cache_type_v=name), 1)
    assert p.cache_type_v == getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")


@pytest.mark.parametrize(
    ("line", "code", "cause"),
    [
        (
            "0.00.154.330 E llama_model_load: error loading model: tensor 'x' data is not within the file bounds, bad",
            "load_failed",
            "tensor 'x' data is not within the file bounds, bad",
        ),
        (
            "0.55.907.302 E ggml_aligned_malloc: insufficient memory (attempted to allocate 1171875.00 MB)",
            "out_of_memory",
            "ggml_aligned_malloc: insufficient memory (attempted to allocate 1171875.00 MB)",
        ),
        (
            "0.00.003.738 E gguf_init_from_reader: failed to read magic",
            "load_failed",
            "gguf_init_from_reader: failed to read magic",
        ),
    ],
)
def test_the_log_tells_the_cause(line: str, code: str, cause: str) -> None:
    error = LlamaCppEngine().explain(("0.00.000.258 I srv init: initializing ...", line, "0.1 I done"))
    assert isinstance(error, EngineError)
    assert error.code == code
    assert str(error).startswith(f"llama.cpp could not load the model: {cause}; ")


def test_a_log_without_a_cause_tells_nothing() -> None:
    assert LlamaCppEngine().explain(("0.00.000.258 I srv init: initializing ...",)) is None
    assert LlamaCppEngine().explain(()) is None


@pytest.mark.parametrize(("cpus", "cores", "chosen"), [(6, 3, 3), (3, 3, 3), (64, 32, None)])
def test_cores_are_left_to_the_engine_unless_they_are_restricted(
    cpus: int, cores: int, chosen: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(llama_cpp, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(llama_cpp, "usable_cores", lambda: cores)
    untouched = xllamacpp.CommonParams()
    parameters = llama_cpp._parameters(xllamacpp, launch_of(Path("m.gguf")), 24000)
    threads = (parameters.cpuparams.n_threads, parameters.cpuparams_batch.n_threads)
    default = (untouched.cpuparams.n_threads, untouched.cpuparams_batch.n_threads)
    assert threads == (default if chosen is None else (chosen, chosen))

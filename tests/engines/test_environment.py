"""Engines get the variables that steer them and none of the control plane's credentials."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wharfinger.engines.detect import detect_engines
from wharfinger.engines.environment import engine_environment

STEERING = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"),
    *(
        "CUDA_VISIBLE_DEVICES",
        "GGML_CUDA_ENABLE_UNIFIED_MEMORY",
        "GGML_VK_VISIBLE_DEVICES",
        "LLAMA_LOG_COLORS",
    ),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "VK_ICD_FILENAMES"),
    *("NVIDIA_VISIBLE_DEVICES", "MTL_DEBUG_LAYER", "GPU_DEVICE_ORDINAL"),
)
PRIVATE = (
    *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "PGPASSWORD", "WHARF_DATABASE_URL", "DATABASE_URL"),
    *(
        "HTTP_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "OPENAI_API_KEY",
        "RUNPOD_API_KEY",
        "KUBECONFIG",
        "SSH_AUTH_SOCK",
    ),
    *(
        "NVIDIA_API_KEY",
        "LLAMA_API_KEY",
        "LLAMA_ARG_HF_TOKEN",
        "AMD_AUTH",
        "CUDA_REGISTRY_PASSWORD",
        "METAL_token",
    ),
)


def test_only_what_steers_an_engine_is_passed() -> None:
    everything = {name: f"value of {name}" for name in (*STEERING, *PRIVATE)}
    assert engine_environment(everything) == {name: f"value of {name}" for name in STEERING}


def test_the_search_for_engines_gets_no_more_than_an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found, _ = detect_engines()
    assert [engine.engine for engine in found] == ["llama_cpp"]
    lines = (tmp_path / "environment").read_text().splitlines()
    assert "CUDA_VISIBLE_DEVICES=0" in lines
    assert [line for line in lines if "hf_canary" in line] == []

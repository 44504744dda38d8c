"""Engines get the variables that steer them and none of the control plane's credentials."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from wharfinger.engines import environment
from wharfinger.engines.detect import detect_engines
from wharfinger.engines.environment import engine_environment

CONFIGURATION = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

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
    *("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "DRI_PRIME"),
    *("GPU_MAX_HW_QUEUES", "ONEAPI_DEVICE_SELECTOR", "VECLIB_MAXIMUM_THREADS"),
    *("MALLOC_ARENA_MAX", "_RJEM_MALLOC_CONF", "MIMALLOC_LARGE_OS_PAGES", "TCMALLOC_RELEASE_RATE"),
    *("NIX_LD", "NIX_LD_LIBRARY_PATH"),
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
        "AMD_DB_PASS",
        "NVIDIA_NGC_PASSPHRASE",
        "NVIDIA_CREDENTIAL",
        "LLAMA_PAT",
        "PYTHON_SENTRY_DSN",
        "CUDA_DB_PWD",
        "GPU_CLOUD_TOKEN",
    ),
    *("NIX_CONFIG", "NIX_SSHOPTS"),
)


def test_only_what_steers_an_engine_is_passed() -> None:
    everything = {name: f"value of {name}" for name in (*STEERING, *PRIVATE)}
    assert engine_environment(everything) == {name: f"value of {name}" for name in STEERING}


def test_the_documentation_names_what_is_passed_and_what_stays_behind() -> None:
    section = CONFIGURATION.read_text().split("\n## The environment of engines\n")[1].split("\n## ")[0]
    words = set(re.findall(r"`([^`]+)`", section))
    families = {f"{family}*" for family in environment._FAMILIES}
    assert {*environment._NAMES, *families, *environment._CREDENTIAL_WORDS} <= words


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

"""Which environment variables an engine's process gets: those that steer it, none that may hold a credential.

An engine is native code that reads files from elsewhere. The control plane's own environment often holds keys for
model hubs, clouds and databases, so what is handed on is listed, and everything else stays behind. Proxy settings stay
behind, too: they may hold a password, and an engine here loads local files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_NAMES: Final = frozenset(
    {
        *(
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "LANG",
            "LANGUAGE",
            "TZ",
            "TMPDIR",
            "TEMP",
            "TMP",
            "VIRTUAL_ENV",
        ),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
        *("NIX_LD", "NIX_LD_LIBRARY_PATH", "GLIBC_TUNABLES", "_RJEM_MALLOC_CONF", "DRI_PRIME"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
        *("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR"),
    }
)
"""What a process needs to find its files, libraries, drivers and caches."""
_FAMILIES: Final = (
    *("LC_", "PYTHON", "MALLOC_", "MIMALLOC_", "TCMALLOC_"),
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_"),
    *("GGML_", "LLAMA_"),
    *("CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_"),
    *("HIP_", "HSA_", "ROCR_", "ROCM_", "ROCBLAS_", "HIPBLASLT_", "MIOPEN_", "AMD_"),
    *("GPU_", "ONEAPI_"),
    *("VK_", "MESA_", "RADV_", "ANV_", "MTL_", "METAL_"),
)
"""Beginnings of the names by which people tune processors, accelerators and engines."""
_CREDENTIAL_WORDS: Final = frozenset(
    {
        "KEY",
        "KEYS",
        "APIKEY",
        "TOKEN",
        "TOKENS",
        "SECRET",
        "SECRETS",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "PASS",
        "PWD",
        "PAT",
        "AUTH",
        "CREDENTIAL",
        "CREDENTIALS",
        "DSN",
    }
)
"""A name with one of these words stays behind in every family, e.g. ``NVIDIA_API_KEY``."""


def engine_environment(everything: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of ``everything``, by default of this process, that an engine's process may have."""
    source = os.environ if everything is None else everything
    return {name: value for name, value in source.items() if _is_passed(name)}


def _is_passed(name: str) -> bool:
    if name in _NAMES:
        return True
    return name.startswith(_FAMILIES) and _CREDENTIAL_WORDS.isdisjoint(name.upper().split("_"))

"""Reading backend tags: ``vllm-cuda`` is engine ``vllm`` on compute ``cuda``."""

from __future__ import annotations

from functools import lru_cache

from wharfinger.placement.types import NodeFacts

CPU = "cpu"
_GPU_COMPUTES = ("cuda", "rocm", "vulkan", "metal", "xpu", "sycl")
_DEFAULT_COMPUTE = {"mlx": "metal"}


@lru_cache(maxsize=256)
def split_backend(backend: str) -> tuple[str, str | None]:
    """Engine and compute of a tag; the compute is ``None`` when the tag leaves it open."""
    engine, dash, compute = backend.rpartition("-")
    if dash and (compute == CPU or compute in _GPU_COMPUTES):
        return engine, compute
    return backend, _DEFAULT_COMPUTE.get(backend)


def engine_of(backend: str) -> str:
    """``vllm`` of ``vllm-cuda``."""
    return split_backend(backend)[0]


def is_accelerated(backend: str) -> bool:
    """Whether the tag names a compute other than the CPU; a tag that leaves it open does not."""
    compute = split_backend(backend)[1]
    return compute is not None and compute != CPU


def compute_on(node: NodeFacts, backend: str) -> str:
    """The compute a tag means on a node.

    A tag that leaves it open means the accelerator that the same engine advertises there, else the CPU: a GPU
    machine whose engine was built without GPU support is sized by its RAM.
    """
    engine, compute = split_backend(backend)
    if compute is not None:
        return compute
    for candidate in sorted(node.backends or ()):
        other_engine, other_compute = split_backend(candidate)
        if other_engine == engine and other_compute not in (None, CPU):
            return other_compute or CPU
    return CPU

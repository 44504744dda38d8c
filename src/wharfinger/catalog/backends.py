"""Which backend tags can run an artifact, most wanted first.

An accelerator of any make beats the CPU. For one kind of compute, ``llama_server`` comes before ``llama_cpp``
because it can also span machines, and ``vllm`` before ``sglang``. Placement falls through to the next tag that a
node can launch, so the order is a wish and the list is the gate.
"""

from __future__ import annotations

from wharfinger.catalog.card import PlacementPreferences

GGUF_BACKENDS = tuple(
    f"{engine}-{compute}"
    for compute in ("cuda", "rocm", "metal", "vulkan", "cpu")
    for engine in ("llama_server", "llama_cpp")
)
SAFETENSORS_BACKENDS = (
    "vllm-cuda",
    "sglang-cuda",
    "vllm-rocm",
    "sglang-rocm",
    "mlx-metal",
    "vllm-cpu",
)
MLX_BACKENDS = ("mlx-metal",)
"""For checkpoints quantised in MLX's own format, which no other engine reads."""
SERVER_QUANTIZED_BACKENDS = tuple(tag for tag in SAFETENSORS_BACKENDS if tag != "mlx-metal")
"""For AWQ, GPTQ, FP8 and the like, which MLX does not read."""


def preferences(backends: tuple[str, ...]) -> PlacementPreferences:
    """The list both as gate and as order."""
    return PlacementPreferences(compatible_backends=backends, backend_preference=backends)

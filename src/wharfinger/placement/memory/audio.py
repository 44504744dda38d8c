"""audio.cpp: music and speech models with a fixed working memory and no token window."""

from __future__ import annotations

from wharfinger.placement.memory.elements import GIB, MIB
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import MemoryProfile
from wharfinger.placement.memory.rules import CacheBytes, EngineRule, LayerCounts, Placed
from wharfinger.placement.types import ServingSettings

_GPU_WORKSPACE_BYTES = {"ace_step": 10 * GIB, "minimax": 2 * GIB}
"""Working memory on top of the weights, by family, on a CUDA, ROCm or Vulkan device."""
_WORKSPACE_BYTES = {"ace_step": 10 * GIB, "minimax": 5 * GIB}
"""The same on Metal; also taken for the CPU, where MiniMax was not measured."""
_UNKNOWN_WORKSPACE_BYTES = 10 * GIB


class AudioRule(EngineRule):
    """See the module's text. ``metal`` says that an accelerator is Apple's."""

    def __init__(self, *, metal: bool = False) -> None:
        self._metal = metal

    reserves_context = False

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Inside the workspace."""
        return CacheBytes(0, 0)

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """No window."""
        return 0

    def compute(
        self,
        profile: MemoryProfile,
        shape: ShardShape,
        context_tokens: int,
        settings: ServingSettings,
        accelerated: bool,
    ) -> Placed:
        """The family's workspace; sessions of one model run one after another, so it does not grow with slots."""
        family = profile.family.lower().replace("-", "_")
        sizes = _GPU_WORKSPACE_BYTES if accelerated and not self._metal else _WORKSPACE_BYTES
        for prefix, size_bytes in sizes.items():
            if family.startswith(prefix):
                return Placed(size_bytes)
        return Placed(_UNKNOWN_WORKSPACE_BYTES)

    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """A GPU context on the device and the process on the host."""
        return Placed(512 * MIB, 256 * MIB) if accelerated else Placed(256 * MIB)

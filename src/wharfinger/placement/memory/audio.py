"""audio.cpp: music and speech models with a fixed working memory and no token window."""

from __future__ import annotations

from wharfinger.placement.memory.elements import GIB, MIB
from wharfinger.placement.memory.interface import ShardShape
from wharfinger.placement.memory.profile import MemoryProfile
from wharfinger.placement.memory.rules import CacheBytes, LayerCounts, Placed, shared_weights
from wharfinger.placement.types import ServingSettings

_WORKSPACE_BYTES = {"ace_step": 10 * GIB, "minimax": 5 * GIB}
"""Working memory on top of the weights, by family. MiniMax takes 2 GiB on a GPU and 5 GiB on Metal: the larger."""
_UNKNOWN_WORKSPACE_BYTES = 10 * GIB


class AudioRule:
    """See the module's text."""

    reserves_context = False
    flags: tuple[str, ...] = ()

    def cache(
        self, layers: LayerCounts, tensor_width: int, context_tokens: int, settings: ServingSettings
    ) -> CacheBytes:
        """Inside the workspace."""
        return CacheBytes(0, 0)

    def token_bytes(self, layers: LayerCounts, settings: ServingSettings) -> int:
        """No window."""
        return 0

    def weights(self, profile: MemoryProfile, shape: ShardShape, accelerated: bool) -> Placed:
        """Each matrix once."""
        return Placed(shared_weights(profile, shape))

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
        for prefix, size_bytes in _WORKSPACE_BYTES.items():
            if family.startswith(prefix):
                return Placed(size_bytes)
        return Placed(_UNKNOWN_WORKSPACE_BYTES)

    def snapshots(self, layers: LayerCounts, context_tokens: int, settings: ServingSettings) -> int:
        """None."""
        return 0

    def floor(self, profile: MemoryProfile, settings: ServingSettings, accelerated: bool) -> Placed:
        """A GPU context on the device and the process on the host."""
        return Placed(512 * MIB, 256 * MIB) if accelerated else Placed(256 * MIB)

"""What a shard takes, part by part, on its device and on the host beside it."""

from __future__ import annotations

from dataclasses import replace

from wharfinger.catalog.card import ModelCard
from wharfinger.placement.memory.audio import AudioRule
from wharfinger.placement.memory.backends import engine_of, is_accelerated
from wharfinger.placement.memory.interface import Footprint, ShardShape
from wharfinger.placement.memory.llama_cpp import LlamaCppRule
from wharfinger.placement.memory.mlx import MlxRule
from wharfinger.placement.memory.profile import Draft, MemoryProfile, profile_of
from wharfinger.placement.memory.rules import EngineRule, UnknownRule
from wharfinger.placement.memory.vllm import VllmRule
from wharfinger.placement.types import MemoryPart, ServingSettings

_LLAMA_CPP = LlamaCppRule()
_RULES: dict[str, EngineRule] = {
    "llama_cpp": _LLAMA_CPP,
    "llama_server": _LLAMA_CPP,
    "vllm": VllmRule(),
    "mlx": MlxRule(),
    "audio_cpp": AudioRule(),
    "audio_cpp-metal": AudioRule(metal=True),
}
_UNKNOWN = UnknownRule()

FLAG_PROJECTOR = "projector_workspace_estimated"
FLAG_WORKSPACE = "workspace_unknown"
FLAG_FLOOR = "engine_floor_estimated"
"""What engines take on an accelerator before they hold a model was not measured; on the CPU it was."""
_PROJECTOR_WORKSPACE_PERCENT = 50
"""Scratch of a vision projector as a share of its weights; not measured, so flagged."""
_IMAGE_WORKSPACE_PERCENT = 30
"""Scratch of image and video models as a share of the weights; not measured, so flagged."""


def rule_of(backend: str) -> EngineRule:
    """The rule of a backend tag's engine; engines we have no rule for get the pessimistic one."""
    return _RULES.get(backend) or _RULES.get(engine_of(backend), _UNKNOWN)


def footprint(
    card: ModelCard, backend: str, shape: ShardShape, context_tokens: int, settings: ServingSettings
) -> Footprint:
    """Memory one shard takes, every part named; parts of zero bytes are left out.

    Args:
        card: the model.
        backend: tag such as ``llama_cpp-cuda``. A tag without a compute is taken as the CPU's.
        shape: the layers and tables this memory pool holds.
        context_tokens: window of *one* sequence; ``settings.slots`` sequences are counted.
        settings: slots, cache types and batch sizes.

    Returns:
        Parts ``weights``, ``kv_cache``, ``recurrent_state``, ``compute_buffers``, ``context_checkpoints``,
        ``projector``, ``draft_model`` and ``engine_floor``. Host parts are RAM of the node beside its device.

    Raises:
        ValueError: a cache type that is not known.
    """
    profile = profile_of(card)
    rule = rule_of(backend)
    settings = _effective(profile, settings)
    accelerated = is_accelerated(backend)
    flags = [*profile.weight_flags, *profile.cache_flags, *rule.flags]

    weights = rule.weights(profile, shape, accelerated)
    compute = rule.compute(profile, shape, context_tokens, settings, accelerated)
    floor = rule.floor(profile, settings, accelerated)
    if accelerated and floor.device:
        flags.append(FLAG_FLOOR)
    layers = profile.counts(shape.start_layer, shape.end_layer)
    cache = rule.cache(layers, shape.tensor_width, context_tokens, settings)
    snapshots = rule.snapshots(layers, context_tokens, settings)

    compute_device = compute.device
    if not profile.has_token_cache and not isinstance(rule, AudioRule):
        compute_device += weights.device * _IMAGE_WORKSPACE_PERCENT // 100
        flags.append(FLAG_WORKSPACE)
    projector = draft = 0
    if shape.first:
        draft = sum(_draft_bytes(one, rule, context_tokens, settings) for one in profile.drafts)
        if profile.projector_bytes:
            projector = profile.projector_bytes
            compute_device += projector * _PROJECTOR_WORKSPACE_PERCENT // 100
            flags.append(FLAG_PROJECTOR)

    device = (
        ("weights", weights.device),
        ("kv_cache", cache.kv),
        ("recurrent_state", cache.recurrent),
        ("compute_buffers", compute_device),
        ("context_checkpoints", 0 if accelerated else snapshots),
        ("projector", projector),
        ("draft_model", draft),
        ("engine_floor", floor.device),
    )
    host = (
        ("weights", weights.host),
        ("compute_buffers", compute.host),
        ("context_checkpoints", snapshots if accelerated else 0),
        ("engine_floor", floor.host),
    )
    return Footprint(parts=_named(device), host_parts=_named(host), flags=tuple(dict.fromkeys(flags)))


def kv_cache_bytes(
    card: ModelCard, backend: str, shape: ShardShape, context_tokens: int, settings: ServingSettings
) -> tuple[int, tuple[str, ...]]:
    """Bytes of the token cache alone (no recurrent state) and the flags of what was assumed."""
    profile, rule = profile_of(card), rule_of(backend)
    settings = _effective(profile, settings)
    layers = profile.counts(shape.start_layer, shape.end_layer)
    cache = rule.cache(layers, shape.tensor_width, context_tokens, settings)
    return cache.kv, profile.cache_flags + rule.flags


def kv_bytes_per_token(card: ModelCard, backend: str, settings: ServingSettings) -> int | None:
    """What one more token of a slot's window costs the whole model.

    ``None`` for models a window means nothing to (images, music, video). For vLLM this counts every attention layer:
    its pages are handed out for all of them, also for sliding layers while the token is inside their window.
    """
    profile = profile_of(card)
    if not profile.has_token_cache:
        return None
    return rule_of(backend).token_bytes(profile.counts(0, profile.n_layers), settings)


def _effective(profile: MemoryProfile, settings: ServingSettings) -> ServingSettings:
    """Embedding models see a text in one pass, so engines are started with micro-batches of a whole batch."""
    if profile.is_embedding and settings.micro_batch_tokens != settings.batch_tokens:
        return replace(settings, micro_batch_tokens=settings.batch_tokens)
    return settings


def _draft_bytes(draft: Draft, rule: EngineRule, context_tokens: int, settings: ServingSettings) -> int:
    cache = rule.cache(draft.parts, 1, context_tokens, settings)
    return draft.weight_bytes + cache.kv + cache.recurrent


def _named(sizes: tuple[tuple[str, int], ...]) -> tuple[MemoryPart, ...]:
    return tuple([MemoryPart(name, size_bytes) for name, size_bytes in sizes if size_bytes])

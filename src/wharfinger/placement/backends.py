"""Backend tags: which a card accepts, in which order, and what their engines can do.

A tag is ``<engine>-<compute>`` (``llama_cpp-cuda``) or a bare engine name. A card that names a bare engine accepts
every compute of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from wharfinger.catalog.card import ModelCard

GGUF_BACKENDS: Final = ("llama_cpp", "llama_server")
DEFAULT_BACKENDS: Final = ("mlx",)
"""What the contract accepts for a card that is no GGUF and names no backends."""
_COMPUTE_ORDER: Final = {"cuda": 0, "rocm": 1, "metal": 2, "vulkan": 3}


class DeviceUse(StrEnum):
    """How an engine spreads one shard over the devices of its node."""

    LAYERS = "layers"
    """Whole layers per device (llama.cpp)."""
    TENSOR = "tensor"
    """Every layer cut over the devices (vLLM, SGLang)."""
    SINGLE = "single"
    """One device only."""


class Span(StrEnum):
    """How an engine spreads one model over several nodes."""

    NONE = "none"
    RING = "ring"
    """Neighbours talk (MLX)."""
    STAR = "star"
    """One driver talks to its donors (llama.cpp RPC)."""
    MESH = "mesh"
    """Every node talks to every other (vLLM on Ray)."""


_DEVICE_USE: Final = {
    "llama_cpp": DeviceUse.LAYERS,
    "llama_server": DeviceUse.LAYERS,
    "vllm": DeviceUse.TENSOR,
    "sglang": DeviceUse.TENSOR,
}
_SPAN: Final[dict[str, Span]] = {"mlx": Span.RING, "llama_server": Span.STAR, "vllm": Span.MESH}
SPANNING_ENGINES: Final = frozenset(_SPAN)


def engine_of(tag: str) -> str:
    """Engine half of a tag: ``llama_cpp`` of ``llama_cpp-cuda``."""
    return tag.partition("-")[0]


def compute_of(tag: str) -> str | None:
    """Compute half of a tag, ``None`` for a bare engine."""
    return tag.partition("-")[2] or None


def device_use(tag: str) -> DeviceUse:
    """How the tag's engine uses several devices of one node."""
    if compute_of(tag) == "cpu":
        return DeviceUse.SINGLE
    return _DEVICE_USE.get(engine_of(tag), DeviceUse.SINGLE)


def span_of(tag: str) -> Span:
    """How the tag's engine uses several nodes."""
    return _SPAN.get(engine_of(tag), Span.NONE)


@lru_cache(maxsize=256)
def any_spans(tags: tuple[str, ...]) -> bool:
    """Whether the engine of any of the tags can use several nodes."""
    return any(span_of(tag) is not Span.NONE for tag in tags)


def accepted_backends(card: ModelCard) -> tuple[str, ...]:
    """The card's compatible backends, or the default of its format when it names none."""
    if card.placement.compatible_backends:
        return card.placement.compatible_backends
    return GGUF_BACKENDS if card.gguf_file else DEFAULT_BACKENDS


def matches(tag: str, wanted: str) -> bool:
    """Whether a node's tag satisfies a card's entry, which may be a bare engine."""
    return tag == wanted or engine_of(tag) == wanted


def preference_index(card: ModelCard, tag: str) -> int:
    """Place of the tag in the card's preference; its length when the card does not mention it."""
    preference = card.placement.backend_preference
    for index, wanted in enumerate(preference):
        if matches(tag, wanted):
            return index
    return len(preference)


def preferring(card: ModelCard, engines: Sequence[str]) -> ModelCard:
    """The card with these engines before all others that it names, each group in its own order."""
    wanted = card.placement.backend_preference
    first = [tag for tag in wanted if engine_of(tag) in engines]
    rest = [tag for tag in wanted if engine_of(tag) not in engines]
    order = tuple(dict.fromkeys((*first, *engines, *rest)))
    placement = card.placement.model_copy(update={"backend_preference": order})
    return card.model_copy(update={"placement": placement})


def eligible_tags(card: ModelCard, advertised: Iterable[str], only: str | None = None) -> tuple[str, ...]:
    """Tags of a node that may run the card, best first.

    Order: the card's preference, then accelerators before CPU, then by name. A bare engine name is dropped when the
    node also advertises a tag of that engine with its compute.
    """
    accepted = accepted_backends(card)
    tags = {tag for tag in advertised if any(matches(tag, wanted) for wanted in accepted)}
    if only is not None:
        tags = {tag for tag in tags if matches(tag, only)}
    concrete = {engine_of(tag) for tag in tags if compute_of(tag)}
    kept = [tag for tag in tags if compute_of(tag) or tag not in concrete]
    return tuple(
        sorted(
            kept,
            key=lambda tag: (preference_index(card, tag), _COMPUTE_ORDER.get(compute_of(tag) or "", 9), tag),
        )
    )

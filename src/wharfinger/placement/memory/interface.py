"""Values the memory arithmetic answers with. The rules per engine live beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wharfinger.placement.types import MemoryPart


@dataclass(frozen=True, slots=True)
class ShardShape:
    """The part of a model that one memory pool holds."""

    start_layer: int
    end_layer: int
    """Exclusive."""
    tensor_width: int = 1
    """Ranks that share every layer; 1 for pipeline."""
    first: bool = True
    """Holds the token embedding."""
    last: bool = True
    """Holds the output head."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a shard takes, part by part."""

    parts: tuple[MemoryPart, ...]
    """On the device that runs the shard (the RAM pool for CPU backends)."""
    host_parts: tuple[MemoryPart, ...] = ()
    """On the node's RAM in addition, e.g. llama.cpp's token embedding when layers are on a GPU."""
    flags: tuple[str, ...] = ()
    """Parts that are pessimistic guesses, e.g. ``kv_geometry_unknown``."""

    @property
    def device_bytes(self) -> int:
        """Sum of ``parts``."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def host_bytes(self) -> int:
        """Sum of ``host_parts``."""
        return sum(part.size_bytes for part in self.host_parts)


RAM_DOMAIN = "ram"
"""The memory domain of RAM and of every device that shares it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory of one kind on one node that shards may use now."""

    device_index: int | None
    """``None`` is RAM."""
    usable_bytes: int | None
    """``None`` when a needed figure was not measured; see ``missing``."""
    missing: tuple[str, ...] = ()
    counted: Mapping[str, int] | None = None
    """The figures that led to ``usable_bytes`` by name, for explanations."""
    domain: str = RAM_DOMAIN
    """Pools of one domain are one memory: what is charged to them together must fit each of them."""
    deficit_bytes: int = 0
    """How far claims exceed what there is, where nothing is usable."""

    @property
    def left_bytes(self) -> int:
        """``usable_bytes``, or less than nothing where claims exceed what there is; 0 when not measured."""
        return (self.usable_bytes or 0) - self.deficit_bytes

"""Sizes of the element types a cache may be stored in, and rounding."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30

_BLOCKS: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "fp8": (1, 1),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""Element type to (elements per block, bytes per block); ggml's block layouts."""

CACHE_TYPES = frozenset(_BLOCKS)


def row_bytes(elements: int, cache_type: str) -> int:
    """Bytes of one row of ``elements`` values; a partly filled block counts whole.

    Raises:
        ValueError: ``cache_type`` is not one of :data:`CACHE_TYPES`.
    """
    block = _BLOCKS.get(cache_type)
    if block is None:
        raise ValueError(f"cache type {cache_type!r} is not one of {', '.join(sorted(CACHE_TYPES))}")
    per_block, size_bytes = block
    return -(-elements // per_block) * size_bytes


def is_quantized(cache_type: str) -> bool:
    """Whether a cache type packs values in blocks."""
    return _BLOCKS.get(cache_type, (1, 0))[0] > 1


def ceil_div(value: int, divisor: int) -> int:
    """Quotient rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below ``value``."""
    return -(-value // multiple) * multiple

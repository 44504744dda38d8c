"""Why a placement ranks where it does, in words for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wharfinger.placement.types import ScorePart
from wharfinger.placement.units import gib

_LABELS = {
    "fits_without_eviction": "nothing to stop first",
    "backend_preference": "engine preference",
    "width": "nodes taken",
    "expected_passes_per_s": "speed expected",
    "files_present": "files there already",
    "load": "load",
    "free_memory_bytes": "memory left over",
    "node_id": "node id",
}


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One term of the ranking as shown."""

    label: str
    text: str


def score_lines(parts: Iterable[ScorePart]) -> tuple[ScoreLine, ...]:
    """A score in its own order."""
    return tuple(
        ScoreLine(_LABELS.get(part.name, part.name.replace("_", " ")), _text(part)) for part in parts
    )


def _text(part: ScorePart) -> str:
    """A part's value. The planner counts what is bad as negative; people read how much of it there is."""
    if part.value is None:
        return part.detail or "not known"
    amount = abs(part.value)
    match part.name:
        case "fits_without_eviction":
            return part.detail
        case "width":
            return f"{amount:.0f} {'node' if amount == 1 else 'nodes'}"
        case "expected_passes_per_s":
            text = f"{amount:.4g} passes over the weights a second"
        case "files_present":
            text = f"{100 * amount:.0f} %"
        case "load":
            several = (
                "1 running instance or request"
                if amount == 1
                else f"{amount:.0f} running instances and requests"
            )
            text = several if amount else "nothing runs there"
        case "free_memory_bytes":
            text = gib(int(part.value))
        case _:
            text = f"{part.value + 0.0:.4g}"  # adding 0.0 makes -0.0 a plain 0
    return f"{text} · {part.detail}" if part.detail else text

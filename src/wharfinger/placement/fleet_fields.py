"""Reading the fields of a described fleet. Every error names the field, its value and what is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from wharfinger.sizes import MOST_BYTES, NUMBER, size_of

MOST_DEVICES: Final = 64
"""Most devices or machines of one kind that a description may name at once."""
LEAST_BYTES: Final = 1024**2
"""No memory of a machine is smaller: ``64`` is 64 bytes, and GiB were meant."""
_SPEED: Final = re.compile(rf"({NUMBER})\s*([MGT])(B/s|b/s|bps|bit/s)")
_PREFIXES: Final = {"M": 1e6, "G": 1e9, "T": 1e12}


class FleetError(ValueError):
    """A description is wrong; the text names the field, the value and what is accepted."""


def speed_of(text: str) -> float | None:
    """Bytes per second of a speed such as ``10Gbps`` (bits) or ``400GB/s`` (bytes); ``None`` when it is not one."""
    match = _SPEED.fullmatch(text.strip())
    if match is None:
        return None
    return float(match[1]) * _PREFIXES[match[2]] / (1 if match[3] == "B/s" else 8)


class Fields:
    """A mapping whose keys are checked. Getters raise :class:`FleetError` for a value that cannot be read."""

    def __init__(self, value: object, where: str, accepted: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise FleetError(f"{where} is {value!r}; expected a mapping with {', '.join(accepted)}")
        self._values = cast("Mapping[str, object]", value)
        self._where = where
        unknown = sorted(str(key) for key in self._values.keys() - set(accepted))
        if unknown:
            raise FleetError(f"{where}.{unknown[0]} is not a field; accepted are {', '.join(accepted)}")

    def error(self, field: str, accepted: str) -> FleetError:
        """The error of a field whose value is not ``accepted``."""
        return FleetError(f"{self._where}.{field} is {self._values.get(field)!r}; accepted: {accepted}")

    def get(self, field: str) -> Any:
        """The value as it is; ``None`` when it is not given."""
        return self._values.get(field)

    def items(self, field: str) -> list[Any]:
        """A list; empty when it is not given."""
        value = self.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(field, "a list")
        return cast("list[Any]", value)

    def text(self, field: str) -> str:
        """A text that must be given."""
        value = self.get(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, "a text")
        return value

    def choice(self, field: str, accepted: Iterable[str]) -> str | None:
        """One of the accepted texts."""
        value = self.get(field)
        options = list(accepted)
        if value is not None and value not in options:
            raise self.error(field, ", ".join(options))
        return cast("str | None", value)

    def size(self, field: str, *, zero: bool = False) -> int | None:
        """Bytes, at least 1 MiB; none at all only if ``zero`` is allowed."""
        value = self.get(field)
        if value is None:
            return None
        size_bytes = value if type(value) is int else size_of(value) if isinstance(value, str) else None
        if size_bytes is None or not 0 <= size_bytes <= MOST_BYTES:
            raise self.error(field, "a size such as 64GiB (in bytes, not bits)")
        if size_bytes < LEAST_BYTES and not (zero and size_bytes == 0):
            raise self.error(field, "a size above 1 MiB, such as 64GiB")
        return size_bytes

    def speed(self, field: str) -> float | None:
        """Bytes per second, more than none."""
        value = self.get(field)
        if value is None:
            return None
        speed = speed_of(value) if isinstance(value, str) else None
        if not speed:
            raise self.error(field, "a speed such as 10Gbps or 400GB/s")
        return speed

    def count(self, field: str, default: int) -> int:
        """How many devices."""
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_DEVICES:
            raise self.error(field, f"a whole number from 1 to {MOST_DEVICES}")
        return value

    def flag(self, field: str) -> bool:
        """True or false; false when it is not given."""
        value = self.get(field)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(field, "true or false")
        return value

    def texts(self, field: str) -> list[str]:
        """A list of texts; empty when it is not given."""
        values = self.items(field)
        if not all(isinstance(value, str) and value for value in values):
            raise self.error(field, "a list of texts")
        return values

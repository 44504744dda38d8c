"""Typed access to the ``ARCH.*`` settings of a GGUF's metadata."""

from __future__ import annotations

from pathlib import Path

from wharfinger.catalog.errors import GgufError
from wharfinger.catalog.gguf import GgufValue, LongArray
from wharfinger.catalog.gguf_split import GgufModel

MAX_LAYERS = 1024
"""Twice what llama.cpp allows (512); a larger ``block_count`` is damage."""
_MAX_NUMBER = 1 << 40


class GgufFacts:
    """The settings of one model by the part of the key after the architecture's name.

    Raises:
        GgufError: the file holds no language model, or a setting has a value that cannot be.
    """

    def __init__(self, model: GgufModel) -> None:
        self.path: Path = model.path
        self.metadata = model.metadata
        self.tensors = model.tensors
        self.architecture = self._architecture()
        self.n_layers = self.required("block_count")
        if not 1 <= self.n_layers <= MAX_LAYERS:
            raise self.wrong("block_count", self.n_layers, f"1 to {MAX_LAYERS} layers")

    def _architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise GgufError(
                f"{self.path} does not say which architecture it is (general.architecture is missing), so no engine "
                "can load it. Convert the original model again."
            )
        kind = self.metadata.get("general.type", "model")
        if name == "clip" or kind in ("mmproj", "adapter", "imatrix"):
            what = "a vision projector" if name == "clip" or kind == "mmproj" else f"a GGUF of type {kind!r}"
            raise GgufError(f"{self.path} is {what}, not a model. Name the model's own .gguf file.")
        return name

    def wrong(self, suffix: str, value: object, expected: str) -> GgufError:
        """The error for a setting that cannot be used."""
        return GgufError(
            f"{self.path}: {self.architecture}.{suffix} is {value!r}; expected {expected}. "
            "The file is damaged or of a kind this version does not know."
        )

    def raw(self, suffix: str) -> GgufValue | None:
        """The value as stored, ``None`` when absent."""
        return self.metadata.get(f"{self.architecture}.{suffix}")

    def number(self, suffix: str) -> int | None:
        """A non-negative whole number; the largest one where the file gives one per layer."""
        value = self.raw(suffix)
        if value is None:
            return None
        if isinstance(value, tuple):
            return max((self._whole(suffix, item) for item in value), default=None)
        return self._whole(suffix, value)

    def required(self, suffix: str) -> int:
        """A number the file must give."""
        value = self.number(suffix)
        if value is None:
            raise GgufError(
                f"{self.path} lacks {self.architecture}.{suffix}, so it is not a complete language model. "
                "Name a model's .gguf file, or convert the model again."
            )
        return value

    def positive(self, suffix: str) -> int | None:
        """A number with zero read as absent."""
        return self.number(suffix) or None

    def per_layer(self, suffix: str) -> tuple[int, ...] | None:
        """One number per layer, from a list or from one number for all."""
        value = self.raw(suffix)
        if value is None:
            return None
        if not isinstance(value, tuple):
            return (self._whole(suffix, value),) * self.n_layers
        if len(value) < self.n_layers:
            raise self.wrong(suffix, f"a list of {len(value)}", f"one number per layer ({self.n_layers})")
        return tuple(self._whole(suffix, item) for item in value[: self.n_layers])

    def text(self, key: str) -> str:
        """A text by its whole key; empty when absent."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def _whole(self, suffix: str, value: GgufValue) -> int:
        if isinstance(value, LongArray | tuple | str | float) or not 0 <= value <= _MAX_NUMBER:
            raise self.wrong(suffix, value, "a whole number")
        return int(value)

"""A Hugging Face ``config.json`` seen through one set of names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wharfinger.catalog.errors import HfConfigError
from wharfinger.catalog.files import open_regular

_MAX_CONFIG_BYTES = 4 << 20
_MAX_LAYERS = 1024
_MAX_NUMBER = 1 << 40

_ALIASES = {
    "layers": (
        "num_hidden_layers",
        "num_layers",
        "n_layer",
        "n_layers",
        "num_decoder_layers",
        "decoder_layers",
    ),
    "hidden": ("hidden_size", "d_model", "n_embd", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "expert_feed_forward": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "feed_forward": ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "decoder_ffn_dim", "hidden_dim"),
    "context": (
        "max_position_embeddings",
        "max_target_positions",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "seq_length",
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_used": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token"),
}


class HfConfig:
    """One model's settings. Multimodal configs keep the language model's under ``text_config``; those win.

    Raises:
        HfConfigError: a setting has a value that cannot be.
    """

    def __init__(self, config: dict[str, Any], path: Path | None = None) -> None:
        self.path = path
        self.whole = config
        text = config.get("text_config") or config.get("llm_config") or {}
        self.settings: dict[str, Any] = {**config, **text} if isinstance(text, dict) else config
        architectures = config.get("architectures") or self.settings.get("architectures") or ()
        first = architectures[0] if isinstance(architectures, list) and architectures else ""
        self.architecture = first if isinstance(first, str) else ""
        self.model_type = str(self.settings.get("model_type") or "")

    @property
    def n_layers(self) -> int:
        """Layers of the language model."""
        layers = self.named("layers")
        if layers is None or not 1 <= layers <= _MAX_LAYERS:
            raise self.wrong("num_hidden_layers", layers, f"1 to {_MAX_LAYERS} layers")
        return layers

    def named(self, name: str) -> int | None:
        """A number by our name, whichever alias the config uses; ``None`` when absent."""
        for key in _ALIASES[name]:
            if (value := self.number(key)) is not None:
                return value
        return None

    def number(self, key: str) -> int | None:
        """A non-negative whole number; ``None`` when absent or null."""
        value = self.settings.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
            raise self.wrong(key, value, "a whole number")
        return value

    def positive(self, key: str, default: int | None = None) -> int | None:
        """A number with zero and absent read as ``default``."""
        return self.number(key) or default

    def required(self, key: str) -> int:
        """A number the architecture cannot do without."""
        value = self.positive(key)
        if value is None:
            raise self.wrong(key, self.settings.get(key), "a positive whole number")
        return value

    def required_named(self, name: str) -> int:
        """Like :meth:`required`, by our name."""
        value = self.named(name)
        if not value:
            raise self.wrong(_ALIASES[name][0], value, "a positive whole number")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes or no; ``default`` when absent."""
        value = self.settings.get(key, default)
        return bool(value)

    def texts(self, key: str) -> list[str] | None:
        """A list of words such as ``layer_types``; ``None`` when absent."""
        value = self.settings.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, value, "a list of words")
        return value

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers; ``None`` when absent."""
        value = self.settings.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            type(item) is int and 0 <= item <= _MAX_NUMBER for item in value
        ):
            raise self.wrong(key, value, "a list of whole numbers")
        return value

    def wrong(self, key: str, value: object, expected: str) -> HfConfigError:
        """The error for a setting that cannot be used."""
        where = self.path or "config.json"
        found = "missing" if value is None else f"{value!r:.80}"
        return HfConfigError(
            f"{where}: {key} is {found}; expected {expected}. Fetch the model's config.json again."
        )


def read_hf_config(path: Path) -> HfConfig:
    """Read a ``config.json``.

    Raises:
        HfConfigError: missing, unreadable, or no JSON object.
    """
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise HfConfigError(
                f"{path} is larger than {_MAX_CONFIG_BYTES >> 20} MiB, so it is no model config."
            )
        with open_regular(path) as file:
            value = json.loads(file.read())
    except FileNotFoundError:
        raise HfConfigError(f"There is no {path}. Fetch it from where the weights came from.") from None
    except OSError as error:
        raise HfConfigError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, RecursionError):
        raise HfConfigError(f"{path} is not valid JSON. Fetch the model's config.json again.") from None
    if not isinstance(value, dict):
        raise HfConfigError(f"{path} is not a JSON object. Fetch the model's config.json again.")
    return HfConfig(value, path)

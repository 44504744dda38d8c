"""What an operator may set: environment variables ``WHARF_…``, overridden by ``wharf up``'s options."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from wharfinger.sizes import size_of

DEFAULT_PORT = 7300


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/wharfinger``, by default ``~/.local/share/wharfinger``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "wharfinger"


def _size(value: Any) -> Any:
    size_bytes = size_of(value) if isinstance(value, str) else value
    if not size_bytes:
        raise PydanticCustomError("size", "accepted: a size above 0 such as 48GiB, in bytes, not bits")
    return size_bytes


class Settings(BaseSettings):
    """Settings of one control-plane process. ``docs/configuration.md`` lists them."""

    model_config = SettingsConfigDict(env_prefix="WHARF_", extra="ignore")

    data_dir: Path = Field(default_factory=default_data_dir)
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    """0 takes any free port."""
    database_url: SecretStr | None = None
    """``postgresql+asyncpg://…``; without it a SQLite file in the data directory."""
    installation_secret_file: Path | None = None
    """Shared by all replicas of one PostgreSQL; by default ``installation.secret`` in the data directory."""
    no_auth: bool = False
    node_name: str | None = None
    node_memory_cap: Annotated[int, Field(gt=0), BeforeValidator(_size)] | None = None
    """Most bytes that models may take on this node, over RAM and devices together."""
    default_context_tokens: int = Field(default=32768, ge=256, le=1048576)
    operation_retention_days: float = Field(default=30.0, gt=0)
    log_level: str = "info"
    drain_timeout_s: float = Field(default=30.0, ge=0)
    """How long a stop waits for running requests before it ends them."""

    @property
    def effective_database_url(self) -> str:
        """The configured database, or the SQLite file of the data directory."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.data_dir / 'wharfinger.db'}"

    @property
    def secret_file(self) -> Path:
        """Where the installation's secret lies."""
        return self.installation_secret_file or self.data_dir / "installation.secret"

    @property
    def models_dir(self) -> Path:
        """Where model files we make or fetch are kept."""
        return self.data_dir / "models"


def is_loopback(host: str) -> bool:
    """True when only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

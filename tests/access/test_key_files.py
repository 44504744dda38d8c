"""Files that hold secrets: private, whole, and made once however many make them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from wharfinger.access import keys
from wharfinger.access.keys import ADMIN_KEY_FILE, KeyStore
from wharfinger.access.principals import Role
from wharfinger.access.secrets import InstallationSecret, create_private, write_private
from wharfinger.store.database import Database


def test_private_files_are_private_and_leave_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    create_private(path, "first")
    create_private(path, "second")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("first", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_replicas_that_start_together_share_one_secret(tmp_path: Path) -> None:
    path, together, made = tmp_path / "installation.secret", threading.Barrier(8), list[str]()

    def start() -> None:
        together.wait()
        made.append(InstallationSecret.load_or_create(path).runner_key("r"))

    replicas = [threading.Thread(target=start) for _ in range(8)]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join()
    assert len(made) == 8
    assert set(made) == {InstallationSecret.load_or_create(path).runner_key("r")}


async def test_no_admin_key_is_made_that_nobody_is_told_of(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that breaks off while it writes the file is made good by the next."""
    store = KeyStore(database)

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys, "write_private", full)
    with pytest.raises(OSError, match="No space left"):
        await store.ensure_admin(tmp_path)
    assert await store.list() == []
    monkeypatch.undo()
    secret = await store.ensure_admin(tmp_path)
    assert secret is not None
    assert (tmp_path / ADMIN_KEY_FILE).read_text().strip() == secret
    principal = store.check(secret)
    assert principal is not None
    assert principal.role is Role.ADMIN
    assert await store.ensure_admin(tmp_path) is None

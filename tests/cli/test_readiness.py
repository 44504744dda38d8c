"""``status`` and ``doctor`` look at ``/readyz``; ``doctor`` really writes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.server import Server, wharf
from wharfinger.server import listen, running
from wharfinger.settings import Settings


@pytest.fixture
async def unready(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The environment for a control plane of which one background loop ended."""
    settings = Settings(data_dir=tmp_path / "data", port=0)
    settings.data_dir.mkdir()
    async with running(settings, listen(settings)) as started:
        loop = next(task for task in asyncio.all_tasks() if task.get_name() == "schedule")
        loop.cancel()
        await asyncio.wait({loop})
        yield {
            **os.environ,
            "WHARF_DATA_DIR": str(settings.data_dir),
            "WHARF_URL": started.url,
            "WHARF_API_KEY": (settings.data_dir / "admin.key").read_text().strip(),
        }


async def test_status_prints_what_is_not_ready(unready: dict[str, str]) -> None:
    human = await asyncio.to_thread(wharf, "status", environment=unready)
    assert human.returncode == 0, human.stderr
    assert "not ready background work ended: schedule" in human.stdout
    document = json.loads(
        (await asyncio.to_thread(wharf, "status", "--output", "json", environment=unready)).stdout
    )
    assert document["ready"] is False
    assert document["problems"] == ["background work ended: schedule"]


async def test_doctor_fails_when_it_is_not_ready(unready: dict[str, str]) -> None:
    result = await asyncio.to_thread(wharf, "doctor", "--output", "json", environment=unready)
    assert result.returncode == 1
    document = json.loads(result.stdout)
    check = next(check for check in document["checks"] if check["name"] == "control plane")
    assert check["level"] == "fail"
    assert "background work ended: schedule" in check["message"]
    assert document["ok"] is False
    assert document["error"] == {"message": "1 check failed: control plane", "code": "failed"}


def test_a_ready_control_plane(server: Server) -> None:
    document = json.loads(server.wharf("status", "--output", "json").stdout)
    assert (document["ready"], document["problems"]) == (True, [])


def data_directory_check(path: Path) -> tuple[str, str]:
    result = wharf("doctor", "--output", "json", environment={**os.environ, "WHARF_DATA_DIR": str(path)})
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.returncode == (1 if checks["data directory"]["level"] == "fail" else 0), result.stdout
    return checks["data directory"]["level"], checks["data directory"]["message"]


def test_doctor_on_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("no directory")
    assert data_directory_check(path) == ("fail", f"{path} is a file, not a directory")
    assert data_directory_check(path / "below") == ("fail", f"{path} is a file, not a directory")


def test_doctor_on_a_directory_that_is_to_be_made(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet"
    assert data_directory_check(path) == ("ok", f"{path} (will be made on the first start)")
    assert not path.exists()


def test_doctor_really_writes() -> None:
    """The permission bits of /proc say that root may write there; nobody can."""
    level, message = data_directory_check(Path("/proc/self"))
    assert level == "fail"
    assert "/proc/self cannot be written" in message

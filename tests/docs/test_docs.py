"""The documentation against what there is: its commands are run (shell blocks that follow a ``<!-- ci -->`` line), its
links lead somewhere, and lists that repeat the code agree with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.local_node import demo_model_path
from support.server import Server
from wharfinger.routing.exchange import Limits

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"<!-- ci -->\n```sh\n(.*?)```", re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{index}")
    for page in PAGES
    for index, block in enumerate(BLOCK.findall(page.read_text()))
]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS)
def test_commands_work_as_written(server: Server, block: str) -> None:
    environment = {
        **os.environ,
        "WHARF_DATA_DIR": str(server.data_dir),
        "GGUF": str(demo_model_path()),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_gateways_limits_are_those_of_the_code() -> None:
    limits = Limits()
    assert limits.first_byte_timeout_s is None
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", _section("gateway.md", "Limits"), re.MULTILINE)
    assert dict(rows[1:]) == {
        "body of a request": f"{limits.max_body_bytes >> 20} MiB",
        "requests at a time": f"{limits.max_in_flight:,}",
        "making a connection": f"{limits.connect_timeout_s:g} s",
        "first byte of an answer": "none",
        "silence once an answer has begun": f"{limits.idle_timeout_s:g} s",
        "silence of a stream": f"{limits.heartbeat_s:g} s",
        "total time of a request": "none",
    }


def _section(page: str, title: str) -> str:
    """The text of one ``##`` section of a page of ``docs/``."""
    return (ROOT / "docs" / page).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]

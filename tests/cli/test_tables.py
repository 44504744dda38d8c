"""Tables at 80 columns keep ids whole, and text of others is printed as it is."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from support.server import DEMO_MODEL_ID, Server
from support.tiny_gguf import write_tiny_gguf
from wharfinger.cli.plan import plan_lines, print_previews
from wharfinger.cli.tables import Column, print_table

LONG_MODEL_ID = "organisation/a-model-with-a-rather-long-name-instruct-2508-Q4_K_M"


@pytest.fixture
def narrow(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server; commands run on it see 80 columns."""
    monkeypatch.setitem(server._environment, "COLUMNS", "80")
    return server


def printed(server: Server, *arguments: str) -> str:
    result = server.wharf(*arguments)
    assert result.returncode in (0, 5), result.stderr
    assert "…" not in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout
    return result.stdout


def test_every_table_at_80_columns(narrow: Server) -> None:
    launched = narrow.launch(512)
    instance_id, operation_id = launched["instance_id"], launched["operation_id"]
    node = json.loads(narrow.wharf("nodes", "--output", "json").stdout)["nodes"][0]
    shown = printed(narrow, "ps")
    assert instance_id in shown
    assert DEMO_MODEL_ID in shown
    assert node["name"] in shown
    assert node["node_id"] not in shown
    assert "backend" not in shown
    assert DEMO_MODEL_ID in printed(narrow, "models", "list")
    assert operation_id in printed(narrow, "ops", "list")
    key_id = json.loads(narrow.wharf("keys", "list", "--output", "json").stdout)["keys"][0]["key_id"]
    assert key_id in printed(narrow, "keys", "list")
    planned = printed(narrow, "plan", DEMO_MODEL_ID)
    assert node["name"] in planned
    assert "llama_cpp-cpu" in planned
    refused = printed(narrow, "plan", DEMO_MODEL_ID, "--exclude", node["node_id"])
    assert node["name"] in refused
    assert "node_excluded" in refused
    assert narrow.wharf("stop", instance_id).returncode == 0


def test_wide_windows_show_every_column(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    instance_id = server.launch(512)["instance_id"]
    monkeypatch.setitem(server._environment, "COLUMNS", "160")
    header = server.wharf("ps").stdout.splitlines()[0].split()
    assert header == ["instance", "model", "status", "runner", "nodes", "backend", "window", "memory", "age"]
    assert server.wharf("stop", instance_id).returncode == 0


def rendered(width: int, columns: list[Column], rows: list[tuple[str, ...]]) -> list[str]:
    out = Console(file=StringIO(), width=width, markup=False, emoji=False, highlight=False)
    print_table(out, columns, rows)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue().splitlines()


def test_what_cannot_fit_goes_on_in_the_next_line() -> None:
    columns = [Column("instance", whole=True), Column("model", whole=True), Column("status")]
    instance_id = "inst_" + "a" * 26
    lines = rendered(80, columns, [(instance_id, LONG_MODEL_ID, "launching")])
    assert all(len(line) <= 80 for line in lines)
    assert instance_id in lines[1]
    model = "".join(line[len(instance_id) + 2 :].split()[0] for line in lines[1:] if line.split())
    assert model.startswith(LONG_MODEL_ID[:20])
    assert "".join("".join(lines[1:]).split()).count("launching") == 1


def test_markup_in_foreign_text_is_text(server: Server, tmp_path: Path) -> None:
    odd = tmp_path / "x[" / "q].gguf"  # a path that holds [/q], a closing tag that was never opened
    odd.parent.mkdir()
    wrong = server.wharf("models", "add", str(odd))
    assert wrong.returncode == 2
    assert "x[/q].gguf" in wrong.stderr
    shutil.move(write_tiny_gguf(tmp_path, "llama").path, odd)
    added = server.wharf("models", "add", str(odd), "--id", "tiny:smile:q")
    assert added.returncode == 0, added.stderr
    assert "tiny:smile:q" in added.stdout
    assert "x[/q].gguf" in server.wharf("models", "show", "tiny:smile:q").stdout
    assert "tiny:smile:q" in server.wharf("models", "list").stdout
    assert "'[/q]'" in server.wharf("plan", DEMO_MODEL_ID, "--explain", "[/q]").stderr
    odd.write_bytes(b"gone")
    launched = server.wharf("launch", "tiny:smile:q", "--wait", "--context", "512")
    assert launched.returncode == 1
    assert "MarkupError" not in launched.stderr
    assert "x[/q].gguf" in launched.stderr


def test_fleet_names_are_text(tmp_path: Path) -> None:
    node = {
        "node_id": "n1",
        "node_name": "rack[/q]:1",
        "code": "memory_short",
        "message": "[red]needs more",
        "needed_bytes": 1 << 30,
        "usable_bytes": 1 << 29,
        "short_by_bytes": 1 << 29,
    }
    out = Console(file=StringIO(), width=80, markup=False, emoji=False, highlight=False)
    print_previews(out, {"previews": [], "nodes": [node], "node_names": {}})
    assert isinstance(out.file, StringIO)
    assert "rack[/q]:1" in out.file.getvalue()
    assert "[red]needs more" in out.file.getvalue()


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (("node_id", None, "node_wvl, node_xyz"), "node_id node_wvl, node_xyz"),
        (("width", -1, ""), "width 1 node"),
        (("width", -3, ""), "width 3 nodes"),
        (("load", -0.0, ""), "load 0"),
        (("load", -2.0, ""), "load 2"),
        (("files_present", -0.0, ""), "files_present 0"),
        (("backend_preference", 0, ""), "backend_preference 0"),
        (
            ("expected_passes_per_s", None, "bandwidth not known"),
            "expected_passes_per_s unknown bandwidth not known",
        ),
        (("expected_passes_per_s", 12.5, "bound by links"), "expected_passes_per_s 12.5 bound by links"),
        (("free_memory_bytes", 3 << 30, ""), "free_memory 3.00 GiB"),
    ],
)
def test_score_lines(part: tuple[str, float | None, str], line: str) -> None:
    name, value, detail = part
    plan = {
        "context_tokens": 512,
        "settings": {"slots": 1},
        "ranks": [],
        "flags": [],
        "score": [{"name": name, "value": value, "detail": detail}],
    }
    assert list(plan_lines(plan, {}))[1] == f"score      {line}"

"""The commands as a user runs them, against a real control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.local_node import demo_model_path
from support.server import DEMO_MODEL_ID, Server, wharf
from support.tiny_gguf import TinyShape, write_tiny_gguf


def document(server: Server, *arguments: str) -> Any:
    """The one JSON document a command prints on stdout."""
    result = server.wharf(*arguments, "--output", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_help_teaches_every_command() -> None:
    result = wharf("--help")
    assert result.returncode == 0
    for command in (
        "up",
        "status",
        "nodes",
        "models",
        "plan",
        "launch",
        "ps",
        "show",
        "logs",
        "stop",
        "chat",
        "doctor",
    ):
        assert f"\n  {command} " in result.stdout


def test_version_json() -> None:
    result = wharf("version", "--output", "json")
    assert json.loads(result.stdout).keys() == {"version"}


def test_launch_wait_chat_show_logs_stop(server: Server) -> None:
    launched = server.wharf(
        *("launch", DEMO_MODEL_ID, "--wait", "--context", "512", "--backend", "llama_cpp-cpu"),
        *("--output", "json"),
    )
    assert launched.returncode == 0, launched.stderr
    shown = json.loads(launched.stdout)
    assert (shown["status"], shown["context_tokens"]) == ("ready", 512)
    assert "instance.launch" in launched.stderr, "progress belongs on stderr"
    instance_id = shown["instance_id"]
    assert [i["instance_id"] for i in document(server, "ps")["instances"]] == [instance_id]
    assert document(server, "show", instance_id)["runners"][0]["endpoint"].startswith("http://127.0.0.1:")
    chat = server.wharf("chat", DEMO_MODEL_ID, "-m", "Say something.", "--max-tokens", "16")
    if "answered nothing" not in chat.stderr:  # which the model, not the command, decides
        assert chat.returncode == 0, chat.stderr
        assert "tokens/s" in chat.stderr
    assert "llama" in server.wharf("logs", instance_id).stdout
    for command in ("stop", "logs", "show"):
        named = server.wharf(command, DEMO_MODEL_ID)
        assert named.returncode == 4
        assert f"{DEMO_MODEL_ID} is a model; its instances are: {instance_id}" in named.stderr
    stopped = document(server, "stop", instance_id)
    assert stopped["state"] == "succeeded"
    assert server.wharf("show", instance_id).returncode == 4


def test_a_launch_says_what_is_noted_of_its_plan(server: Server, tmp_path: Path) -> None:
    """A model whose file does not say its window; what becomes of the launch does not matter here."""
    path = write_tiny_gguf(tmp_path, "llama", TinyShape(context=0)).path
    assert server.wharf("models", "add", str(path), "--id", "windowless").returncode == 0
    launched = server.wharf("launch", "windowless", "--context", "512")
    assert launched.returncode == 0, launched.stderr
    assert "\nnote: context length unknown\n" in launched.stdout
    server.wharf("stop", launched.stdout.split()[0])


def test_human_tables_do_not_cut_ids(server: Server) -> None:
    assert DEMO_MODEL_ID in server.wharf("models", "list").stdout
    nodes = " ".join(server.wharf("nodes").stdout.split())  # however long the lines are
    assert "llama_cpp-cpu" in nodes
    for fact, reason in document(server, "nodes")["nodes"][0]["missing"].items():
        assert f"not measured: {fact} ({reason})" in nodes


def test_plan_shows_memory_and_explains(server: Server) -> None:
    planned = document(server, "plan", DEMO_MODEL_ID)
    name = next(iter(planned["node_names"].values()))
    explained = document(server, "plan", DEMO_MODEL_ID, "--explain", name)
    parts = {part["name"] for part in explained["plans"][0]["ranks"][0]["charges"][0]["parts"]}
    assert {"weights", "kv_cache", "compute_buffers", "engine_floor"} <= parts
    assert server.wharf("plan", DEMO_MODEL_ID, "--explain", "nobody").returncode == 4


def test_a_refused_plan_exits_5_with_the_reasons_on_stdout(server: Server) -> None:
    refused = server.wharf("plan", DEMO_MODEL_ID, "--min-nodes", "3")
    assert refused.returncode == 5
    assert "--min-nodes is 3, but the fleet has 1 node  (too_few_nodes)" in refused.stdout


def test_launch_of_an_unknown_model_exits_4_and_names_the_closest(server: Server) -> None:
    result = server.wharf("launch", "gemma-3-270")
    assert result.returncode == 4
    assert DEMO_MODEL_ID in result.stderr


def test_plan_for_a_described_fleet_needs_no_control_plane(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "nodes:\n  - name: lab-1\n    ram: 64GB\n    backends: [llama_cpp-cpu]\n"
        "  - name: lab-2\n    ram: 200MB\n    backends: [llama_cpp-cpu]\n"
    )
    environment = {"WHARF_DATA_DIR": str(tmp_path / "none"), "PATH": "/usr/bin:/bin"}
    result = wharf(
        "plan", str(demo_model_path()), "--fleet", str(fleet), "--output", "json", environment=environment
    )
    assert result.returncode == 0, result.stderr
    planned = json.loads(result.stdout)
    assert [node["node_id"] for node in planned["nodes"]] == ["lab-2"]
    assert planned["nodes"][0]["code"] == "memory_short"
    assert planned["nodes"][0]["short_by_bytes"] > 0


@pytest.mark.parametrize(
    ("text", "named"),
    [("nodes: 3\n", "nodes"), ("nodes:\n  - ram: 64GB\n", "nodes[0].name"), ("nodes: [\n", "not YAML")],
)
def test_a_wrong_fleet_file_names_what_is_wrong(tmp_path: Path, text: str, named: str) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(text)
    result = wharf("plan", str(demo_model_path()), "--fleet", str(fleet))
    assert result.returncode == 2, result.stdout
    assert named in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF\x03\x00\x00\x00"])
def test_a_file_that_is_no_model_is_refused(server: Server, tmp_path: Path, content: bytes) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(content)
    result = server.wharf("models", "add", str(wrong))
    assert result.returncode == 2
    assert "wrong.gguf" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_truncated_model_is_refused_with_what_is_missing(server: Server, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with demo_model_path().open("rb") as whole:
        cut.write_bytes(whole.read(20_000_000))
    result = server.wharf("models", "add", str(cut))
    assert result.returncode == 2
    assert "cut.gguf" in result.stderr


def test_operations_and_events(server: Server) -> None:
    answer = server.launch(512)
    watched = server.wharf("ops", "watch", answer["operation_id"], "--output", "json")
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout)["state"] == "succeeded"
    (node,) = document(server, "nodes")["nodes"]
    assert f" on {node['node_id']}" not in watched.stderr, "people are told its name"
    listed = document(server, "ops", "list", "--resource", answer["instance_id"])["operations"]
    assert [operation["kind"] for operation in listed] == ["instance.launch"]
    steps = {step["name"] for step in document(server, "ops", "show", answer["operation_id"])["steps"]}
    assert {"files", "runner.0", "inspect", "route"} <= steps
    assert server.wharf("ops", "show", "op_none").returncode == 4
    document(server, "stop", answer["instance_id"])


def test_keys(server: Server) -> None:
    made = document(server, "keys", "create", "ci", "--role", "operator")
    assert made["key"].startswith("wharf_")
    assert document(server, "keys", "revoke", made["key_id"])["message"] == "revoked"
    refused = server.wharf("keys", "create", "x", "--role", "king")
    assert refused.returncode == 2
    assert "'viewer', 'operator', 'admin'" in " ".join(refused.stderr.split())


def test_status_and_doctor(server: Server) -> None:
    status = document(server, "status")
    assert status["url"] == server.url
    checks = {check["name"]: check["level"] for check in document(server, "doctor")["checks"]}
    assert (checks["python"], checks["engine"], checks["control plane"]) == ("ok", "ok", "ok")


def test_no_control_plane_exits_3(tmp_path: Path) -> None:
    result = wharf("ps", environment={"WHARF_DATA_DIR": str(tmp_path), "WHARF_URL": "http://127.0.0.1:1"})
    assert result.returncode == 3
    assert "wharf up" in result.stderr

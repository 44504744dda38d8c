"""Exit codes by what was refused, and errors as one JSON document."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server import DEMO_MODEL_ID, Server, wharf
from support.tiny_gguf import write_tiny_gguf
from wharfinger.cli.client import path_of
from wharfinger.cli.errors import exit_code
from wharfinger.cli.output import Exit

NONE = httpx.Headers()


def failed(server: Server, code: int, *arguments: str) -> dict[str, Any]:
    """The one document of a command that fails; its paragraph is on stderr."""
    result = server.wharf(*arguments, "--output", "json")
    assert result.returncode == code, f"{result.stdout}\n{result.stderr}"
    assert "error:" in result.stderr.lower()
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("status", "error", "headers", "code"),
    [
        (400, {"reason": "memory_short"}, NONE, Exit.REFUSED),
        (
            400,
            {"reason": "no_nodes"},
            httpx.Headers({"X-Skulk-Placement-Failure": "no_valid_placement"}),
            Exit.REFUSED,
        ),
        (503, {"reason": "engines_unknown"}, NONE, Exit.REFUSED),
        (400, {"reason": "invalid_what_if"}, NONE, Exit.USAGE),
        (400, {"code": "context_length_exceeded"}, NONE, Exit.USAGE),
        (422, {"reason": "invalid_request"}, NONE, Exit.USAGE),
        (503, {"reason": "store_unavailable"}, NONE, Exit.UNREACHABLE),
        (404, {"reason": "model_not_found"}, NONE, Exit.NOT_FOUND),
        (409, {"reason": "model_exists"}, NONE, Exit.CONFLICT),
        (401, {}, NONE, Exit.UNAUTHORIZED),
        (403, {}, NONE, Exit.UNAUTHORIZED),
        (500, {"reason": "internal_error"}, NONE, Exit.FAILED),
    ],
)
def test_exit_codes(status: int, error: dict[str, Any], headers: httpx.Headers, code: Exit) -> None:
    assert exit_code(status, error, headers) is code


def test_ids_stay_one_segment_of_the_path() -> None:
    assert path_of("a/b c?d#e") == "a%2Fb%20c%3Fd%23e"
    assert path_of("org/model", keep="/") == "org/model"
    assert path_of("../keys", keep="/") == "%2E%2E/keys"


@pytest.mark.parametrize("name", ["../keys", "a/b", "x?y=1", "..", "%"])
def test_strange_ids_are_not_found(server: Server, name: str) -> None:
    for command in (("show",), ("models", "show"), ("ops", "show"), ("logs",)):
        result = server.wharf(*command, name)
        assert result.returncode == 4, f"{command}: {result.stderr}"


def test_a_server_error_is_passed_on_as_it_is(server: Server) -> None:
    error = failed(server, 4, "launch", "gemma-3-270")["error"]
    assert (error["code"], error["reason"]) == (404, "model_not_found")
    assert error["details"]["closest"] == [DEMO_MODEL_ID]
    assert failed(server, 4, "ops", "watch", "op_none")["error"]["reason"] == "operation_not_found"
    assert (
        failed(server, 2, "plan", DEMO_MODEL_ID, "--what-if", "+1xNothing")["error"]["reason"]
        == "invalid_what_if"
    )


def test_a_refused_plan_is_one_document(server: Server) -> None:
    document = failed(server, 5, "plan", DEMO_MODEL_ID, "--min-nodes", "3")
    assert document["error"]["code"] == document["previews"][0]["refusal"]["code"]


def test_a_refused_launch(server: Server) -> None:
    error = failed(server, 5, "launch", DEMO_MODEL_ID, "--min-nodes", "3")["error"]
    assert error["code"] == 400
    assert error["details"]["code"] == error["reason"]


def test_a_wrong_command_line(server: Server) -> None:
    assert "--bogus" in failed(server, 2, "ps", "--bogus")["error"]["message"]
    error = failed(server, 2, "plan")["error"]
    assert error["code"] == "usage"
    assert "MODEL" in error["message"].upper()


def test_no_control_plane_as_json(tmp_path: Path) -> None:
    environment = {**os.environ, "WHARF_DATA_DIR": str(tmp_path)}
    for command in ("ps", "nodes", "status"):
        result = wharf(command, "-o", "json", environment=environment)
        assert result.returncode == 3
        error = json.loads(result.stdout)["error"]
        assert error["code"] == "unreachable"
        assert error["message"] in result.stderr


def test_another_kind_of_server(tmp_path: Path, server: Server) -> None:
    environment = {**os.environ, "WHARF_DATA_DIR": str(tmp_path), "WHARF_URL": f"{server.url}/static"}
    result = wharf("ps", environment=environment)
    assert result.returncode == 3
    assert f"{server.url}/static/instance answers, but not as a control plane does" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_failed_launch_carries_the_operations_error_and_the_log(server: Server, tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path, "llama").path
    added = server.wharf("models", "add", str(model), "--id", "soon-broken")
    assert added.returncode == 0, added.stderr
    whole = model.read_bytes()
    # The header promises a tensor that is not there: the engine says so while loading.
    model.write_bytes(whole.replace(b"token_embd.weight", b"token_embd.heavy!", 1))
    result = server.wharf("launch", "soon-broken", "--wait", "--context", "512", "--output", "json")
    assert result.returncode == 1, f"{result.stdout}\n{result.stderr}"
    error = json.loads(result.stdout)["error"]
    assert error["code"]
    assert error["message"]
    assert isinstance(error["retryable"], bool)
    assert error["details"]["operation_id"].startswith("op_")
    assert error["details"]["instance_id"].startswith("inst_")
    assert any("token_embd" in line for line in error["details"]["log_tail"]), error
    watched = server.wharf("ops", "watch", error["details"]["operation_id"], "--output", "json")
    assert watched.returncode == 1
    document = json.loads(watched.stdout)
    assert (document["state"], document["error"]["code"]) == ("failed", error["code"])


def test_removing_a_model(server: Server, tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path, "llama").path
    assert server.wharf("models", "add", str(model), "--id", "lab/tiny").returncode == 0
    shown = server.wharf("models", "show", "lab/tiny", "--output", "json")
    assert json.loads(shown.stdout)["id"] == "lab/tiny"
    assert server.wharf("models", "remove", "lab/tiny").returncode == 0
    assert server.wharf("models", "show", "lab/tiny").returncode == 4
    assert server.wharf("models", "remove", "lab/tiny").returncode == 4
    assert model.exists()


def test_what_is_in_use_is_not_removed(server: Server) -> None:
    instance_id = server.launch(512)["instance_id"]
    assert failed(server, 6, "models", "remove", DEMO_MODEL_ID)["error"]["code"] == 409
    assert failed(server, 6, "stop", instance_id, "--force")["error"]["reason"] == "node_present"
    assert server.wharf("stop", instance_id).returncode == 0

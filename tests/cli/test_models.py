"""``wharf models`` against a real control plane."""

from __future__ import annotations

import json
from pathlib import Path

from catalog.checkpoints import LLAMA, LLAMA_TENSORS, write_checkpoint
from support.server import DEMO_MODEL_ID, Server, wharf


def test_help_says_what_can_be_added() -> None:
    words = " ".join(wharf("models", "add", "--help").stdout.split())
    assert (
        "A GGUF file, or a folder with safetensors and config.json, on the control plane's machine" in words
    )


def test_the_schema_says_what_can_be_added(server: Server) -> None:
    with server.client() as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["AddFileBody"]["properties"]["path"]["description"] == (
        "Absolute path of a GGUF file, or of a folder with safetensors and config.json, on the control plane's machine"
    )


def test_the_case_of_an_id_is_forgiven(server: Server) -> None:
    given = DEMO_MODEL_ID.upper()
    note = f"taking {DEMO_MODEL_ID} for {given}"
    shown = server.wharf("models", "show", given, "--output", "json")
    assert json.loads(shown.stdout)["id"] == DEMO_MODEL_ID
    assert note in shown.stderr
    fleet = Path(__file__).parents[2] / "docs/examples/fleet.yaml"
    for where in ((), ("--fleet", str(fleet))):
        plan = server.wharf("plan", given, *where, "--output", "json")
        assert plan.returncode == 0, plan.stderr
        assert note in plan.stderr
    launch = server.wharf("launch", given, "--context", "512", "--output", "json")
    assert json.loads(launch.stdout)["model_id"] == DEMO_MODEL_ID
    assert server.wharf("stop", json.loads(launch.stdout)["instance_id"]).returncode == 0
    assert server.wharf("plan", "nobody").returncode == 4


def test_a_folder_with_safetensors_is_added(server: Server, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "Tiny-Llama", LLAMA, LLAMA_TENSORS)
    added = server.wharf("models", "add", str(folder), "--id", "tests/tiny", "--output", "json")
    assert added.returncode == 0, added.stderr
    document = json.loads(added.stdout)
    assert (document["id"], document["artifact_path"], document["n_layers"]) == ("tests/tiny", str(folder), 2)
    shown = server.wharf("models", "show", "tests/tiny")
    assert f"  path      {folder}\n" in shown.stdout


def test_a_file_that_is_no_model_is_refused(server: Server, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    refused = server.wharf("models", "add", str(text))
    assert refused.returncode == 2
    assert "is neither a .gguf file nor a folder with safetensors" in " ".join(refused.stderr.split())

"""What lies damaged in the data directory, or is set wrongly: one paragraph, exit code 1, no secret in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.server import Server, wharf
from support.tiny_gguf import write_tiny_gguf


def start(data_dir: Path, **environment: str) -> str:
    """The error of a start that must fail."""
    variables = {**os.environ, "WHARF_DATA_DIR": str(data_dir), **environment}
    result = wharf("up", "--port", "0", environment=variables)
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("error:"), result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("content", ["", "zz", "ab" * 31, "not hex"])
def test_a_damaged_secret_is_refused_and_never_used(tmp_path: Path, content: str) -> None:
    secret = tmp_path / "installation.secret"
    secret.write_text(content)
    secret.chmod(0o600)
    assert "installation.secret" in start(tmp_path)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "installation.secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o644)
    assert "chmod 600" in start(tmp_path)


def test_a_secret_file_in_no_directory(tmp_path: Path) -> None:
    assert "/nope/x" in start(tmp_path, WHARF_INSTALLATION_SECRET_FILE="/nope/x")


def test_a_database_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "wharfinger.db").write_text("no database " * 1000)
    assert "wharfinger.db" in start(tmp_path)


def test_a_damaged_node_id(tmp_path: Path) -> None:
    (tmp_path / "node_id").write_text("???")
    assert "node_id" in start(tmp_path)


@pytest.mark.parametrize(
    "url", ["postgresql://wharf:canary@127.0.0.1/x", "nonsense canary", "sqlite:///:memory:"]
)
def test_a_database_url_of_another_kind(tmp_path: Path, url: str) -> None:
    text = start(tmp_path, WHARF_DATABASE_URL=url)
    assert "postgresql+asyncpg://" in text
    assert "canary" not in text


def test_a_delete_while_the_launch_is_failing_ends_in_the_deletion(fresh: Server, tmp_path: Path) -> None:
    fresh.start()
    model = write_tiny_gguf(tmp_path, "llama").path
    with fresh.client() as client:
        client.post("/api/v1/models", json={"path": str(model), "model_id": "vanishing"}).raise_for_status()
        model.unlink()
        for _ in range(5):
            answer = client.post("/place_instance", json={"model_id": "vanishing"}).json()
            assert client.delete(f"/instance/{answer['instance_id']}").status_code == 200
            fresh.wait_status(answer["instance_id"], "deleted")
        assert client.get("/api/v1/nodes").json()["nodes"][0]["reserved_bytes"] == 0


def test_a_model_in_use_cannot_be_removed(fresh: Server) -> None:
    fresh.start()
    fresh.add_demo_model()
    answer = fresh.launch(512)
    fresh.wait_status(answer["instance_id"], "ready")
    with fresh.client() as client:
        refused = client.delete("/api/v1/models/gemma-3-270m")
        assert refused.status_code == 409
        assert refused.json()["error"]["reason"] == "model_in_use"
        client.delete(f"/instance/{answer['instance_id']}")
        fresh.wait_status(answer["instance_id"], "deleted")
        assert client.delete("/api/v1/models/gemma-3-270m").status_code == 200
        assert client.get("/models").json()["data"] == []
        assert client.delete("/api/v1/models/gemma-3-270m").status_code == 404


def test_a_file_that_is_no_model_file_is_not_read(fresh: Server) -> None:
    fresh.start()
    with fresh.client() as client:
        refused = client.post("/api/v1/models", json={"path": "/etc/passwd"})
    assert refused.status_code == 400
    assert "root" not in refused.json()["error"]["message"]

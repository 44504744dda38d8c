"""A copy of a replica's data directory is not started beside the original: they would end each other's work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.postgres import fresh_database_url
from support.server import Server


def test_a_copy_is_refused_until_it_is_a_node_of_its_own(tmp_path: Path) -> None:
    environment = {
        "WHARF_DATABASE_URL": asyncio.run(fresh_database_url("postgresql", tmp_path)),
        "WHARF_INSTALLATION_SECRET_FILE": str(tmp_path / "installation.secret"),
    }
    original = Server(tmp_path / "a", "--node-name", "a", environment=environment)
    copy = Server(tmp_path / "b", "--node-name", "b", environment=environment)
    try:
        original.start()
        copy.data_dir.mkdir()
        node_id = (original.data_dir / "node_id").read_text()
        (copy.data_dir / "node_id").write_text(node_id)
        refused = copy.wharf("up", "--port", "0", "--node-name", "b")
        assert refused.returncode != 0
        said = " ".join(refused.stderr.split())
        assert f"node {node_id.strip()} is hosted by a control plane that runs on 'a'" in said
        (copy.data_dir / "node_id").unlink()
        copy.start()
        with original.client() as client:
            nodes = client.get("/api/v1/nodes").json()["nodes"]
        assert {node["name"]: node["node_id"] for node in nodes}["a"] == node_id.strip()
    finally:
        original.kill()
        copy.kill()

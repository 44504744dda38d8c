"""Two control planes on one PostgreSQL share the fleet, the instances, the operations and the routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgres import fresh_database_url
from support.server import DEMO_MODEL_ID, Server

SEEN_WITHIN_S = 15.0


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Replicas ``a`` and ``b`` with one database and one installation secret."""
    url = str(asyncio.run(fresh_database_url("postgresql", tmp_path)))
    environment = {
        "WHARF_DATABASE_URL": url,
        "WHARF_INSTALLATION_SECRET_FILE": str(tmp_path / "installation.secret"),
    }
    pair = [
        Server(tmp_path / name, "--node-name", name, environment=environment).start() for name in ("a", "b")
    ]
    yield pair[0], pair[1]
    for server in pair:
        server.kill()


def test_replicas_share_the_work(replicas: tuple[Server, Server]) -> None:
    a, b = replicas
    b_key = a.key  # the first to start made the one admin key
    with a.client() as through_a, b.client(b_key) as through_b:
        a.add_demo_model()
        node_of_a = next(
            node["node_id"] for node in through_a.get("/api/v1/nodes").json()["nodes"] if node["name"] == "a"
        )
        deadline = time.monotonic() + SEEN_WITHIN_S
        while {node["name"] for node in through_b.get("/api/v1/nodes").json()["nodes"]} != {"a", "b"}:
            assert time.monotonic() < deadline, "b never saw a"
            time.sleep(0.2)
        placed = through_b.post(
            "/place_instance",
            json={"model_id": DEMO_MODEL_ID, "context_tokens": 512, "node_ids": [node_of_a]},
        ).json()
        view = a.wait_status(placed["instance_id"], "ready")
        assert view["node_ids"] == [node_of_a]
        operation = through_b.get(f"/api/v1/operations/{placed['operation_id']}").json()
        while operation["state"] != "succeeded":
            operation = through_b.get(f"/api/v1/operations/{placed['operation_id']}").json()
        deadline = time.monotonic() + 5
        while DEMO_MODEL_ID not in [m["id"] for m in through_b.get("/v1/models").json()["data"]]:
            assert time.monotonic() < deadline, "b's gateway never learnt the route"
            time.sleep(0.1)
        body = {"model": DEMO_MODEL_ID, "prompt": "The sea", "max_tokens": 3}
        assert through_b.post("/v1/completions", json=body).status_code == 200
        made = through_a.post("/api/v1/keys", json={"name": "shared", "role": "viewer"}).json()
        deadline = time.monotonic() + 5
        while b.client(made["key"]).get("/state").status_code != 200:
            assert time.monotonic() < deadline, "b never learnt the key"
            time.sleep(0.1)
        deleted = through_b.delete(f"/instance/{placed['instance_id']}")
        assert deleted.status_code == 200
        a.wait_status(placed["instance_id"], "deleted")
        assert a.engine_pids() == []

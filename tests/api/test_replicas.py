"""Two control planes on one PostgreSQL share the fleet, the instances, the operations and the routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgres import fresh_database_url
from support.server import DEMO_MODEL_ID, Server
from wharfinger.workflows.facts import PRUNE_AFTER_S

SEEN_WITHIN_S = 60.0


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Replicas ``a`` and ``b`` with one database and one installation secret."""
    url = str(asyncio.run(fresh_database_url("postgresql", tmp_path)))
    environment = {
        "WHARF_DATABASE_URL": url,
        "WHARF_INSTALLATION_SECRET_FILE": str(tmp_path / "installation.secret"),
    }
    a, b = (Server(tmp_path / name, "--node-name", name, environment=environment) for name in ("a", "b"))
    try:
        yield a.start(), b.start()
    finally:
        a.kill()
        b.kill()


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
        path = f"/api/v1/operations/{placed['operation_id']}"
        deadline = time.monotonic() + SEEN_WITHIN_S
        while (operation := through_b.get(path).json())["state"] != "succeeded":
            assert operation["state"] not in ("failed", "cancelling", "cancelled"), operation
            assert time.monotonic() < deadline, operation
            time.sleep(0.1)
        body = {"model": DEMO_MODEL_ID, "prompt": "The sea", "max_tokens": 3}
        assert through_a.post("/v1/completions", json=body).status_code == 200
        elsewhere = through_b.post("/v1/completions", json=body)
        assert elsewhere.status_code == 404, "a runner listens on its own machine's loopback only"
        made = through_a.post("/api/v1/keys", json={"name": "shared", "role": "viewer"}).json()
        deadline = time.monotonic() + SEEN_WITHIN_S
        while b.client(made["key"]).get("/state").status_code != 200:
            assert time.monotonic() < deadline, "b never learnt the key"
            time.sleep(0.1)
        deleted = through_b.delete(f"/instance/{placed['instance_id']}")
        assert deleted.status_code == 200
        a.wait_status(placed["instance_id"], "deleted")
        assert a.engine_pids() == []


def test_an_instance_of_a_replica_that_is_gone_can_be_abandoned(replicas: tuple[Server, Server]) -> None:
    a, b = replicas
    with a.client() as through_a, b.client(a.key) as through_b:
        a.add_demo_model()
        node_of_a = through_a.get("/api/v1/nodes").json()["nodes"]
        node_id = next(node["node_id"] for node in node_of_a if node["name"] == "a")
        placed = through_a.post(
            "/place_instance", json={"model_id": DEMO_MODEL_ID, "context_tokens": 512, "node_ids": [node_id]}
        ).json()
        a.wait_status(placed["instance_id"], "ready")
        path = f"/instance/{placed['instance_id']}?force=true"
        early = through_b.delete(path)
        assert early.status_code == 409
        assert early.json()["error"]["reason"] == "node_present"
        a.kill()
        deadline = time.monotonic() + PRUNE_AFTER_S + SEEN_WITHIN_S
        while (late := through_b.delete(path)).status_code == 409:
            assert time.monotonic() < deadline, late.text
            time.sleep(1)
        assert late.json()["operation_id"] is None
        assert through_b.get("/instance").json()["instances"] == []
        away = {node["name"]: node for node in through_b.get("/api/v1/nodes").json()["nodes"]}["a"]
        assert away["health"]["level"] == "error"
        assert away["reserved_bytes"] == 0

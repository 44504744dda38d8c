"""The longest id that an instance may have can be launched and deleted, also where columns have their length."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import String

from support.postgres import fresh_database_url
from support.server import DEMO_MODEL_ID, Server
from wharfinger.api.exact_wire import MAX_INSTANCE_ID_CHARACTERS
from wharfinger.api.text import MAX_NAMES
from wharfinger.store.tables import runners, targets


def test_the_longest_id_goes_all_the_way_on_postgresql(tmp_path: Path) -> None:
    url = str(asyncio.run(fresh_database_url("postgresql", tmp_path)))
    server = Server(tmp_path / "data", environment={"WHARF_DATABASE_URL": url}).start()
    try:
        server.add_demo_model()
        with server.client() as client:
            params = {"model_id": DEMO_MODEL_ID, "context_tokens": 512}
            placement = client.get("/instance/previews", params=params).json()["previews"][0]["instance"]
            longest = "z" * MAX_INSTANCE_ID_CHARACTERS
            placement["MlxRingInstance"]["instanceId"] = longest + "z"
            refused = client.post("/instance", json={"instance": placement})
            assert refused.status_code == 422
            assert refused.json()["error"]["param"] == "instance.MlxRingInstance.instanceId"
            placement["MlxRingInstance"]["instanceId"] = longest
            assert client.post("/instance", json={"instance": placement}).status_code == 200
            server.wait_status(longest, "ready")
            assert client.delete(f"/instance/{longest}").status_code == 200
        server.wait_status(longest, "deleted")
        assert server.engine_pids() == []
    finally:
        server.kill()


def test_the_ids_made_from_it_fit_for_every_rank() -> None:
    """A runner's id is the instance's and its rank, and so is that of what is routed to."""
    longest = MAX_INSTANCE_ID_CHARACTERS + len(f"-r{MAX_NAMES - 1}")
    for column in (runners.c.runner_id, targets.c.target_id):
        assert isinstance(column.type, String)
        assert column.type.length is not None
        assert longest <= column.type.length

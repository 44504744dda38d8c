"""The instances API against a real control plane with a real engine."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from support.server import DEMO_MODEL_ID, Server


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def launched(server: Server) -> dict[str, Any]:
    """The demo model, ready."""
    answer = server.launch()
    return answer | {"view": server.wait_status(answer["instance_id"], "ready")}


def instance_ids(client: httpx.Client) -> list[str]:
    return [instance["instance_id"] for instance in client.get("/instance").json()["instances"]]


def previews(client: httpx.Client, **params: Any) -> dict[str, Any]:
    response = client.get("/instance/previews", params={"model_id": DEMO_MODEL_ID} | params)
    assert response.status_code == 200, response.text
    return response.json()


def test_preview_row_has_the_contracts_fields_and_our_plan(client: httpx.Client) -> None:
    rows = previews(client)["previews"]
    best = rows[0]
    assert best["error"] is None
    assert (best["sharding"], best["instance_meta"], best["alternative"]) == ("Pipeline", "MlxRing", False)
    body = best["instance"]["MlxRingInstance"]
    node_id = next(iter(body["shardAssignments"]["nodeToRunner"]))
    assert best["memory_delta_by_node"].keys() == {node_id}
    charged = sum(p["size_bytes"] for c in best["plan"]["ranks"][0]["charges"] for p in c["parts"])
    assert best["memory_delta_by_node"][node_id] == charged
    shard = next(iter(body["shardAssignments"]["runnerToShard"].values()))["PipelineShardMetadata"]
    assert (shard["startLayer"], shard["endLayer"], shard["nLayers"], shard["worldSize"]) == (0, 18, 18, 1)
    assert shard["resolvedBackend"] == "llama_cpp-cpu"
    assert shard["modelCard"]["modelId"] == DEMO_MODEL_ID
    assert body["contextTokenLimit"] == best["default_context_tokens"] == 32768
    assert best["reserves_context_at_load"] is True


def test_a_single_node_option_is_listed_once(client: httpx.Client) -> None:
    rows = [row for row in previews(client)["previews"] if row["instance"]]
    assert len(rows) == 1


def test_excluded_node_is_in_no_row_and_the_refusal_says_so(client: httpx.Client) -> None:
    node_id = client.get("/api/v1/nodes").json()["nodes"][0]["node_id"]
    document = previews(client, excluded_node_ids=node_id)
    assert all(row["instance"] is None for row in document["previews"])
    assert document["previews"][0]["error_code"] == "no_valid_placement"
    assert document["nodes"][0]["code"] == "node_excluded"


def test_a_node_is_excluded_by_its_name_as_well(client: httpx.Client) -> None:
    name = client.get("/api/v1/nodes").json()["nodes"][0]["name"]
    document = previews(client, excluded_node_ids=name)
    assert [node["code"] for node in document["nodes"]] == ["node_excluded"]
    body = {"model_id": DEMO_MODEL_ID, "excluded_nodes": [name]}
    refused = client.post("/place_instance", json=body)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (400, "all_nodes_excluded")
    row = next(row for row in previews(client)["previews"] if row["instance"])
    ((tag, placement),) = row["instance"].items()
    exact = client.post("/instance", json={"instance": {tag: placement | {"excludedNodes": [name]}}})
    assert (exact.status_code, exact.json()["error"]["reason"]) == (400, "node_excluded")


def test_what_if_adds_an_imagined_machine(client: httpx.Client) -> None:
    document = previews(client, what_if="+1xH100-80GB")
    backends = {row["plan"]["ranks"][0]["backend"] for row in document["previews"] if row["plan"]}
    assert "llama_cpp-cuda" in backends, "which is started, though the card prefers llama-server"
    assert not any(backend.startswith("llama_server") for backend in backends)


def test_wrong_what_if_names_the_value_and_what_is_accepted(client: httpx.Client) -> None:
    response = client.get("/instance/previews", params={"model_id": DEMO_MODEL_ID, "what_if": "+1xWarpDrive"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["reason"]) == ("what_if", "invalid_what_if")
    assert "WarpDrive" in error["message"]


@pytest.mark.parametrize("path", ["/instance/previews?model_id=gemma-3-270n", "place"])
def test_unknown_model_is_404_and_names_the_closest(client: httpx.Client, path: str) -> None:
    if path == "place":
        response = client.post("/place_instance", json={"model_id": "gemma-3-270n"})
    else:
        response = client.get(path)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["reason"] == "model_not_found"
    assert error["details"]["closest"] == [DEMO_MODEL_ID]
    assert DEMO_MODEL_ID in error["message"]


@pytest.mark.parametrize("tokens", [0, 100, 2_000_000])
def test_window_out_of_range_is_422(client: httpx.Client, tokens: int) -> None:
    response = client.post("/place_instance", json={"model_id": DEMO_MODEL_ID, "context_tokens": tokens})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "context_tokens"
    assert response.json()["detail"][0]["loc"] == ["body", "context_tokens"]


def test_unknown_field_is_refused(client: httpx.Client) -> None:
    response = client.post("/place_instance", json={"model_id": DEMO_MODEL_ID, "excluded_node_ids": []})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "excluded_node_ids"


def test_a_backend_may_be_asked_for(client: httpx.Client) -> None:
    document = previews(client, what_if="+1xH100-80GB", backend="llama_cpp-cpu")
    backends = {row["plan"]["ranks"][0]["backend"] for row in document["previews"] if row["plan"]}
    assert backends == {"llama_cpp-cpu"}
    body = {"model_id": DEMO_MODEL_ID, "backend": "llama_cpp-cuda"}
    error = client.post("/place_instance", json=body).json()["error"]
    assert (error["reason"], error["details"]["nodes"][0]["code"]) == ("engine_missing", "engine_missing")


def test_a_backend_that_is_none_names_those_there_are(client: httpx.Client) -> None:
    body = {"model_id": DEMO_MODEL_ID, "backend": "llama_cp-cpu"}
    for response in (
        client.post("/place_instance", json=body),
        client.get("/instance/previews", params=body),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (422, "backend")
        assert error["message"].startswith("backend: accepted: an engine (llama_cpp, ")
        assert error["message"].endswith("for 'llama_cp-cpu' maybe llama_cpp-cpu")


def test_state_has_every_key_of_the_contract(client: httpx.Client) -> None:
    state = client.get("/state").json()
    assert set(state) == {
        *("instances", "runners", "downloads", "tasks", "lastSeen", "topology", "tracingEnabled"),
        *("lastEventAppliedIdx", "nodeNetwork", "nodeThunderbolt", "nodeThunderboltBridge"),
        *("thunderboltBridgeCycles", "nodeMemory", "nodeSystem", "nodeIdentities", "nodeDisk", "nodeRdmaCtl"),
        *("nodeResources", "nodeHealth", "instanceFailures"),
    }
    assert state["nodeNetwork"] == state["nodeRdmaCtl"] == {}
    assert state["thunderboltBridgeCycles"] == []


def test_too_many_nodes_is_a_refusal_with_the_contracts_header(client: httpx.Client) -> None:
    before = instance_ids(client)
    response = client.post("/place_instance", json={"model_id": DEMO_MODEL_ID, "min_nodes": 6})
    assert response.status_code == 400
    assert response.headers["X-Skulk-Placement-Failure"] == "no_valid_placement"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("Bad Request", 400)
    assert error["details"]["category"] == "no_valid_placement"
    assert instance_ids(client) == before, "nothing was launched"


def test_launch_is_followed_to_ready(launched: dict[str, Any], client: httpx.Client) -> None:
    view = launched["view"]
    assert launched["command_id"] == launched["instance_id"]
    assert launched["model_card"]["modelId"] == DEMO_MODEL_ID
    assert [runner["state"] for runner in view["runners"]] == ["ready"]
    tagged = client.get(f"/instance/{launched['instance_id']}").json()["MlxRingInstance"]
    assert tagged["contextTokenLimit"] == tagged["requestedContextTokens"] == 1024
    operation = client.get(f"/api/v1/operations/{launched['operation_id']}").json()
    assert (operation["state"], operation["progress"], operation["attempt"]) == ("succeeded", 100, 1)
    assert [step["name"] for step in operation["steps"]] == [
        "files",
        "runner.0.identity",
        "runner.0",
        "inspect",
        "route",
    ]


def test_state_has_the_contracts_keys(launched: dict[str, Any], client: httpx.Client) -> None:
    state = client.get("/state").json()
    node_id = launched["view"]["node_ids"][0]
    assert launched["instance_id"] in state["instances"]
    assert state["runners"][f"{launched['instance_id']}-r0"] in ({"RunnerReady": {}}, {"RunnerRunning": {}})
    assert state["nodeMemory"][node_id]["ramTotal"]["inBytes"] > 0
    assert state["nodeHealth"][node_id]["level"] in ("ok", "warn")
    assert "llama_cpp-cpu" in state["nodeResources"][node_id]["backends"]
    assert state["instanceFailures"] == []


def test_reservation_counts_against_the_node(launched: dict[str, Any], client: httpx.Client) -> None:
    node = client.get("/api/v1/nodes").json()["nodes"][0]
    assert node["reserved_bytes"] == sum(launched["view"]["memory_by_node"].values())


def test_same_idempotency_key_is_the_same_launch(client: httpx.Client, server: Server) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"model_id": DEMO_MODEL_ID, "context_tokens": 512}
    first = client.post("/place_instance", json=body, headers=key).json()
    second = client.post("/place_instance", json=body, headers=key).json()
    assert (first["instance_id"], first["operation_id"]) == (second["instance_id"], second["operation_id"])
    other = client.post("/place_instance", json=body | {"context_tokens": 256}, headers=key)
    assert other.status_code == 409
    assert other.json()["error"]["reason"] == "idempotency_key_reused"
    assert other.json()["error"]["details"]["operation_id"] == first["operation_id"]
    assert client.delete(f"/instance/{first['instance_id']}").status_code == 200
    server.wait_status(first["instance_id"], "deleted")
    again = client.post("/place_instance", json=body, headers=key).json()
    assert again["operation_id"] == first["operation_id"], "a repeated request never launches anew"


def test_models_listing(client: httpx.Client) -> None:
    models = client.get("/models").json()["data"]
    assert [model["id"] for model in models] == [DEMO_MODEL_ID]
    assert models[0]["architecture"] == "gemma3"
    assert models[0]["context_length"] == 32768
    assert client.get("/models", params={"status": "downloaded"}).json()["data"][0]["id"] == DEMO_MODEL_ID
    assert client.get("/models", params={"status": "sideways"}).json()["error"]["param"] == "status"


def test_log_is_readable(launched: dict[str, Any], client: httpx.Client) -> None:
    path = f"/api/v1/instances/{launched['instance_id']}/logs"
    chunk = client.get(path).json()
    assert "llama" in chunk["text"]
    assert client.get(path, params={"offset": chunk["next_offset"]}).json()["ended"] is False
    assert client.get(path, params={"rank": 3}).json()["error"]["param"] == "rank"


def test_delete_leaves_nothing(client: httpx.Client, server: Server) -> None:
    answer = server.launch(512)
    server.wait_status(answer["instance_id"], "ready")
    pid = client.get(f"/api/v1/instances/{answer['instance_id']}").json()["runners"][0]["pid"]
    assert pid in server.engine_pids()
    deleted = client.delete(f"/instance/{answer['instance_id']}").json()
    assert (deleted["message"], deleted["instance_id"]) == ("Command received.", answer["instance_id"])
    server.wait_status(answer["instance_id"], "deleted")
    assert pid not in server.engine_pids()
    assert client.get(f"/instance/{answer['instance_id']}").status_code == 404
    assert client.delete(f"/instance/{answer['instance_id']}").status_code == 404


def test_delete_during_launch_cancels_it(client: httpx.Client, server: Server) -> None:
    before = set(server.engine_pids())
    for _ in range(5):
        answer = server.launch(512)
        deleted = client.delete(f"/instance/{answer['instance_id']}").json()
        server.wait_status(answer["instance_id"], "deleted")
        if deleted["operation_id"] == answer["operation_id"]:
            break  # otherwise the launch was done already, and the deletion is an operation of its own
    else:
        pytest.fail("every launch was done before its deletion was asked for")
    operation = client.get(f"/api/v1/operations/{answer['operation_id']}").json()
    assert (deleted["operation_id"], operation["state"]) == (answer["operation_id"], "cancelled")
    assert operation["message"] == "cleaned up"
    assert set(server.engine_pids()) == before

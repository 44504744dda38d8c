"""Exact create: what a preview offered can be launched as it is; anything forged or impossible is refused."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

from support.server import DEMO_MODEL_ID, Server


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    with server.client() as found:
        yield found


@pytest.fixture
def placement(client: httpx.Client) -> dict[str, Any]:
    """The best preview's instance, with an id of our own."""
    params = {"model_id": DEMO_MODEL_ID, "context_tokens": 512}
    row = client.get("/instance/previews", params=params).json()["previews"][0]
    return copy.deepcopy(row["instance"])


def body(placement: dict[str, Any]) -> dict[str, Any]:
    return placement["MlxRingInstance"]


def shard(placement: dict[str, Any]) -> dict[str, Any]:
    tagged = next(iter(body(placement)["shardAssignments"]["runnerToShard"].values()))
    return tagged["PipelineShardMetadata"]


def refused(client: httpx.Client, placement: dict[str, Any], status: int, reason: str) -> dict[str, Any]:
    response = client.post("/instance", json={"instance": placement})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["reason"] == reason, error
    assert client.get("/instance").json()["instances"] == []
    return error


def test_a_preview_can_be_launched_as_it_is(
    client: httpx.Client, server: Server, placement: dict[str, Any]
) -> None:
    body(placement)["instanceId"] = "mine-1"
    answer = client.post("/instance", json={"instance": placement}).json()
    assert answer["instance_id"] == "mine-1"
    assert answer["command_id"] != "mine-1"
    view = server.wait_status("mine-1", "ready")
    assert view["context_tokens"] == 512
    reply = client.post(
        "/v1/completions", json={"model": DEMO_MODEL_ID, "prompt": "The sea", "max_tokens": 3}
    )
    assert reply.status_code == 200
    again = client.post("/instance", json={"instance": placement})
    assert again.status_code == 409
    client.delete("/instance/mine-1")
    server.wait_status("mine-1", "deleted")


def test_rows_of_two_previews_are_ready_to_be_sent(client: httpx.Client, server: Server) -> None:
    params = {"model_id": DEMO_MODEL_ID, "context_tokens": 512}
    instances = [
        client.get("/instance/previews", params=params).json()["previews"][0]["instance"] for _ in range(2)
    ]
    ids = [body(instance)["instanceId"] for instance in instances]
    assert ids[0] != ids[1]
    for instance, instance_id in zip(instances, ids, strict=True):
        response = client.post("/instance", json={"instance": instance})
        assert response.status_code == 200, response.text
        assert response.json()["instance_id"] == instance_id
    for instance_id in ids:
        client.delete(f"/instance/{instance_id}")
        server.wait_status(instance_id, "deleted")


def test_forged_card_is_refused_with_the_contracts_header(
    client: httpx.Client, placement: dict[str, Any]
) -> None:
    shard(placement)["modelCard"]["storageSize"]["inBytes"] = 1
    response = client.post("/instance", json={"instance": placement})
    assert response.status_code == 400
    assert response.headers["X-Skulk-Placement-Failure"] == "model_card_identity_mismatch"
    assert response.json()["error"]["reason"] == "model_card_identity_mismatch"


def test_unknown_node_is_refused(client: httpx.Client, placement: dict[str, Any]) -> None:
    assignments = body(placement)["shardAssignments"]
    assignments["nodeToRunner"] = {"node_nowhere": next(iter(assignments["nodeToRunner"].values()))}
    error = refused(client, placement, 400, "node_unknown")
    assert "node_nowhere" in error["message"]


@pytest.mark.parametrize(("start", "end"), [(0, 17), (1, 18)])
def test_layers_must_be_covered(
    client: httpx.Client, placement: dict[str, Any], start: int, end: int
) -> None:
    shard(placement)["startLayer"], shard(placement)["endLayer"] = start, end
    refused(client, placement, 400, "layers_not_covered")


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_window_that_is_not_positive_is_refused(
    client: httpx.Client, placement: dict[str, Any], tokens: int
) -> None:
    body(placement)["contextTokenLimit"] = tokens
    refused(client, placement, 400, "context_not_positive")


@pytest.mark.parametrize("tokens", [1, 255])
def test_a_window_too_small_to_serve_is_refused(
    client: httpx.Client, placement: dict[str, Any], tokens: int
) -> None:
    body(placement)["contextTokenLimit"] = tokens
    assert "256" in refused(client, placement, 400, "context_out_of_range")["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("nLayers", 99, "nLayers is 99, but gemma-3-270m has 18 layers"),
        ("worldSize", 7, "worldSize is 7, but there are 1 shards"),
        ("deviceRank", 3, "deviceRank must be 0 to 0, each once; the shards have 3"),
    ],
)
def test_what_a_shard_says_of_the_whole_must_be_so(
    client: httpx.Client, placement: dict[str, Any], field: str, value: int, words: str
) -> None:
    shard(placement)[field] = value
    assert refused(client, placement, 400, "sharding_mismatch")["message"] == words


def test_tensor_shards_of_a_model_that_has_none_are_refused(
    client: httpx.Client, placement: dict[str, Any]
) -> None:
    assert shard(placement)["modelCard"]["supportsTensor"] is False
    (runner,) = body(placement)["shardAssignments"]["runnerToShard"].values()
    runner["TensorShardMetadata"] = runner.pop("PipelineShardMetadata")
    refused(client, placement, 400, "tensor_unsupported")


@pytest.mark.parametrize(
    ("where", "field", "value", "words"),
    [
        ("instance", "colour", "red", "Extra inputs are not permitted"),
        ("instance", "jacclDevices", [], "Extra inputs are not permitted"),
        ("instance", "ephemeralPort", "24000", "valid integer"),
        ("instance", "ephemeralPort", 70000, "less than or equal to 65535"),
        ("instance", "hostsByNode", {"node_a": [{"ip": 1, "port": 1}]}, "valid string"),
        ("instance", "requestedContextTokens", 5, "greater than or equal to 256"),
        ("instance", "excludedNodes", ["x" * 201], "at most 200 characters"),
        ("instance", "excludedNodes", ["x"] * 1025, "at most 1024 items"),
        ("shard", "colour", "red", "Extra inputs are not permitted"),
        ("shard", "nLayers", True, "valid integer"),
        ("shard", "immediateException", True, "False"),
    ],
)
def test_only_the_contracts_fields_with_their_types(
    client: httpx.Client, placement: dict[str, Any], where: str, field: str, value: object, words: str
) -> None:
    (body if where == "instance" else shard)(placement)[field] = value
    error = refused(client, placement, 422, "invalid_request")
    assert words in error["message"]
    assert f".{field}" in error["param"]


@pytest.mark.parametrize(
    "changes",
    [{"resolvedEngineBuild": None, "llamaServerSettings": {"slots": 1}, "immediateException": False}],
)
def test_the_contracts_fields_that_nothing_depends_on_are_taken(
    client: httpx.Client, server: Server, placement: dict[str, Any], changes: dict[str, Any]
) -> None:
    shard(placement).update(changes)
    body(placement).update({"instanceId": "mine-4", "requestedContextTokens": 512})
    response = client.post("/instance", json={"instance": placement})
    assert response.status_code == 200, response.text
    again = client.get("/instance/mine-4").json()
    again["MlxRingInstance"]["instanceId"] = "mine-5"
    assert client.post("/instance", json={"instance": again}).status_code == 200
    for instance_id in ("mine-4", "mine-5"):
        client.delete(f"/instance/{instance_id}")
        server.wait_status(instance_id, "deleted")


def test_a_window_larger_than_the_cards_is_lowered(
    client: httpx.Client, server: Server, placement: dict[str, Any]
) -> None:
    body(placement)["instanceId"] = "mine-2"
    body(placement)["contextTokenLimit"] = 1_000_000
    assert client.post("/instance", json={"instance": placement}).status_code == 200
    assert client.get("/instance/mine-2").json()["MlxRingInstance"]["contextTokenLimit"] == 32768
    client.delete("/instance/mine-2")
    server.wait_status("mine-2", "deleted")


def test_missing_engine_is_refused(client: httpx.Client, placement: dict[str, Any]) -> None:
    shard(placement)["resolvedBackend"] = "llama_cpp-cuda"
    error = refused(client, placement, 400, "engine_missing")
    assert "llama_cpp-cpu" in error["message"]


def test_system_role_is_not_the_callers(client: httpx.Client, placement: dict[str, Any]) -> None:
    body(placement)["systemRole"] = "steward"
    refused(client, placement, 400, "system_role")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({}, "instance"),
        ({"NoSuchInstance": {}}, "instance"),
        ({"MlxRingInstance": {}}, "instance.MlxRingInstance.instanceId"),
    ],
)
def test_malformed_instances_name_the_field(client: httpx.Client, wrong: dict[str, Any], param: str) -> None:
    response = client.post("/instance", json={"instance": wrong})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == param


def test_the_same_key_with_another_placement_is_refused(
    client: httpx.Client, server: Server, placement: dict[str, Any]
) -> None:
    body(placement)["instanceId"] = "mine-3"
    key = {"Idempotency-Key": "exact-3"}
    first = client.post("/instance", json={"instance": placement}, headers=key)
    assert first.status_code == 200
    assert client.post("/instance", json={"instance": placement}, headers=key).json() == first.json()
    shard(placement)["resolvedBackend"] = None
    other = client.post("/instance", json={"instance": placement}, headers=key)
    assert (other.status_code, other.json()["error"]["reason"]) == (409, "idempotency_key_reused")
    client.delete("/instance/mine-3")
    server.wait_status("mine-3", "deleted")

"""Whatever text a caller sends as a name: it is bounded, and an error does not repeat all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.server import DEMO_MODEL_ID, Server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


def post(client: httpx.Client, path: str, document: object) -> httpx.Response:
    return client.post(path, content=json.dumps(document), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("path", "document", "words"),
    [
        ("/place_instance", {"model_id": "x" * 300_000}, "at most 200 characters"),
        ("/place_instance", {"model_id": "x", "excluded_nodes": ["x"] * 1025}, "at most 1024 items"),
        ("/place_instance", {"model_id": "x", "y" * 300_000: 1}, "Extra inputs are not permitted"),
        ("/instance", {"instance": {"x" * 300_000: {}}}, "exactly one key"),
        ("/instance", {"instance": {"MlxRingInstance": {"y" * 300_000: 1}}}, "Field required"),
        ("/place_instance", {"model_id": "x", "min_nodes": True}, "valid integer"),
    ],
    ids=["id", "ids", "field", "tag", "field within", "min_nodes"],
)
def test_what_is_too_long_or_of_another_type_is_refused_and_not_repeated(
    client: httpx.Client, path: str, document: dict[str, Any], words: str
) -> None:
    response = post(client, path, document)
    assert response.status_code == 422
    assert words in response.json()["error"]["message"]
    assert len(response.content) < 4000


@pytest.mark.parametrize("path", ["/place_instance", "/instance", "/api/v1/models", "/api/v1/keys"])
def test_a_body_that_is_no_json_says_so(client: httpx.Client, path: str) -> None:
    response = client.post(path, content="{", headers={"content-type": "application/json"})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["message"] == (
        "the body is not valid JSON: Expecting property name enclosed in double quotes"
    )
    assert error["param"] is None


def test_of_many_problems_the_first_hundred_are_listed(client: httpx.Client) -> None:
    document = {"model_id": "x"} | {f"unknown_{number}": 1 for number in range(1000)}
    assert len(post(client, "/place_instance", document).json()["detail"]) == 100


@pytest.mark.parametrize(
    "path", ["/instance/{}", "/api/v1/instances/{}", "/api/v1/models/{}", "/api/v1/operations/{}"]
)
def test_a_name_in_the_url_is_bounded_too(client: httpx.Client, path: str) -> None:
    assert client.get(path.format("x" * 200)).status_code == 404
    assert client.get(path.format("x" * 201)).status_code == 422


@pytest.mark.parametrize("name", ["model_id", "node_ids", "excluded_node_ids", "what_if"])
def test_a_name_in_the_query_is_bounded_too(client: httpx.Client, name: str) -> None:
    params = {"model_id": DEMO_MODEL_ID, name: "x" * 201}
    assert client.get("/instance/previews", params=params).status_code == 422


def test_an_exact_placement_that_is_refused_is_not_repeated(client: httpx.Client) -> None:
    params = {"model_id": DEMO_MODEL_ID, "context_tokens": 512}
    rows = client.get("/instance/previews", params=params).json()["previews"]
    placement = rows[0]["instance"]
    assignments = placement["MlxRingInstance"]["shardAssignments"]
    (shard,) = [tagged["PipelineShardMetadata"] for tagged in assignments["runnerToShard"].values()]
    ((node, runner),) = assignments["nodeToRunner"].items()
    for backend, on in (("x" * 400, node), (shard["resolvedBackend"], "x" * 400)):
        assignments["nodeToRunner"] = {on: runner}
        shard["resolvedBackend"] = backend
        answer = post(client, "/instance", {"instance": placement})
        assert 400 <= answer.status_code < 500
        assert "x" * 201 not in answer.text


def test_a_quick_launch_that_is_refused_is_not_repeated(client: httpx.Client) -> None:
    for field in ("node_ids", "excluded_nodes"):
        answer = post(
            client, "/place_instance", {"model_id": DEMO_MODEL_ID, field: ["x" * 400], "min_nodes": 2}
        )
        assert "x" * 201 not in answer.text

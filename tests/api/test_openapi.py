"""The API against its own OpenAPI document: no input may break it, and every answer is as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.server import DEMO_MODEL_ID, Server
from wharfinger.api.errors import PLACEMENT_FAILURE_HEADER

EXAMPLES = 12
SKIPPED = {
    "DELETE",  # of things that do not exist: nothing to learn, and a key could revoke itself
}
CONFORMS = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def launched(server: Server) -> dict[str, Any]:
    """An instance that is ready, so that answers are not empty."""
    acknowledgement = server.launch(512)
    server.wait_status(acknowledgement["instance_id"], "ready")
    return acknowledgement


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_url(server.url + "/openapi.json", headers=authorization(server))


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


def authorization(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


def test_no_input_is_a_server_error_and_every_answer_conforms(
    server: Server, schema: Any, launched: dict[str, Any]
) -> None:
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method.upper() in SKIPPED:
            continue
        tried += 1

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def holds(case: schemathesis.Case) -> None:
            response = case.call(base_url=server.url, headers=authorization(server), timeout=30)
            # 503 is an answer too: a node does not respond, or its facts are not there yet.
            assert response.status_code < 500 or response.status_code == 503, response.text
            case.validate_response(response, checks=CONFORMS)

        holds()
    assert tried >= 15


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/instance/previews", f"?model_id={DEMO_MODEL_ID}"),
        ("/instance/previews", f"?model_id={DEMO_MODEL_ID}&min_nodes=9"),
        ("/instance/previews", f"?model_id={DEMO_MODEL_ID}&context_tokens=32768&what_if=%2B2xH100-80GB"),
        ("/instance", ""),
        ("/instance/{instance_id}", ""),
        ("/state", ""),
        ("/models", ""),
        ("/metrics", ""),
        ("/readyz", ""),
        ("/api/v1/instances/{instance_id}", ""),
        ("/api/v1/instances/{instance_id}/logs", ""),
        ("/api/v1/models/{model_id}", ""),
        ("/api/v1/nodes", ""),
        ("/api/v1/operations", "?all=true"),
        ("/api/v1/operations/{operation_id}", ""),
        ("/api/v1/operations/{operation_id}/events", ""),
        ("/api/v1/keys", ""),
    ],
)
def test_what_there_is_conforms(
    schema: Any, client: httpx.Client, launched: dict[str, Any], path: str, asked: str
) -> None:
    response = client.get(path.format(**launched, model_id=DEMO_MODEL_ID) + asked)
    assert response.status_code == 200, response.text
    schema[path]["GET"].validate_response(response)


def test_a_launch_and_a_stop_conform(schema: Any, server: Server, client: httpx.Client) -> None:
    placed = client.post("/place_instance", json={"model_id": DEMO_MODEL_ID, "context_tokens": 512})
    assert placed.status_code == 200
    schema["/place_instance"]["POST"].validate_response(placed)
    refused = client.post("/place_instance", json={"model_id": DEMO_MODEL_ID, "min_nodes": 9})
    assert refused.status_code == 400
    schema["/place_instance"]["POST"].validate_response(refused)
    instance_id = placed.json()["instance_id"]
    deleted = client.delete(f"/instance/{instance_id}")
    assert deleted.status_code == 200
    schema["/instance/{instance_id}"]["DELETE"].validate_response(deleted)
    server.wait_status(instance_id, "deleted")


@pytest.mark.parametrize("path", ["/place_instance", "/instance"])
def test_launches_document_the_placement_header(schema: Any, path: str) -> None:
    responses = schema.raw_schema["paths"][path]["post"]["responses"]
    assert {"200", "400", "401", "403", "404", "409", "422", "503"} <= responses.keys()
    for status in ("400", "503"):
        assert PLACEMENT_FAILURE_HEADER in responses[status]["headers"]


def test_every_answer_has_a_shape(schema: Any) -> None:
    """No route is left with FastAPI's own error, or with an object nobody described."""
    document = schema.raw_schema
    assert not {"HTTPValidationError", "ValidationError"} & document["components"]["schemas"].keys()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for response in operation["responses"].values():
                for media, content in response.get("content", {}).items():
                    described = content["schema"]
                    assert media != "application/json" or "$ref" in described or path.startswith("/v1/"), path


def test_the_document_says_what_wants_a_key(schema: Any) -> None:
    document = schema.raw_schema
    scheme = document["components"]["securitySchemes"]["api_key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    without = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if operation.get("security") != [{"api_key": []}]
    }
    assert without == {"/livez", "/readyz"}


def test_the_document_has_the_gateways_routes(schema: Any) -> None:
    paths = schema.raw_schema["paths"]
    inference = {path: set(methods) for path, methods in paths.items() if path.startswith("/v1/")}
    assert inference == {
        "/v1/models": {"get"},
        "/v1/chat/completions": {"post"},
        "/v1/completions": {"post"},
        "/v1/embeddings": {"post"},
    }

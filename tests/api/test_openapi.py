"""The API against its own OpenAPI document: no input may break it."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, given, settings

from support.server import Server

EXAMPLES = 12
SKIPPED = {
    "DELETE",  # of things that do not exist: nothing to learn, and a key could revoke itself
}


def test_no_input_is_a_server_error(server: Server) -> None:
    headers = {"Authorization": f"Bearer {server.key}"}
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json", headers=headers)
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method.upper() in SKIPPED:
            continue
        tried += 1

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def holds(case: schemathesis.Case) -> None:
            response = case.call(base_url=server.url, headers=headers, timeout=30)
            # 503 is an answer too: a node does not respond, or its facts are not there yet.
            assert response.status_code < 500 or response.status_code == 503, response.text

        holds()
    assert tried >= 15


def test_the_document_says_what_wants_a_key(server: Server) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").json()
    scheme = document["components"]["securitySchemes"]["api_key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    without = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if operation.get("security") != [{"api_key": []}]
    }
    assert without == {"/livez", "/readyz"}


def test_the_document_has_the_gateways_routes(server: Server) -> None:
    with server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    inference = {path: set(methods) for path, methods in paths.items() if path.startswith("/v1/")}
    assert inference == {
        "/v1/models": {"get"},
        "/v1/chat/completions": {"post"},
        "/v1/completions": {"post"},
        "/v1/embeddings": {"post"},
    }

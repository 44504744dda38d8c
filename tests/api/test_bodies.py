"""What holds for every body: unknown fields are refused, however many there are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from support.server import Server
from wharfinger.api.bodies import MAX_FAULTS

MANY = {f"unknown_{number}": 1 for number in range(MAX_FAULTS + 1)}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/keys", {"name": "k", "rolle": "admin"}),
        ("/api/v1/models", {"path": "/m.gguf", "rolle": "m"}),
        ("/place_instance", {"model_id": "m", "rolle": "m"}),
        ("/instance", {"instance": {}, "rolle": "m"}),
    ],
)
def test_an_unknown_field_is_refused(client: httpx.Client, path: str, body: dict[str, object]) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["param"], error["message"]) == ("rolle", "rolle: Extra inputs are not permitted")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/place_instance", {"model_id": "m", **MANY}, "body"),
        ("/api/v1/keys", {"name": "k", **MANY}, "body"),
        ("/api/v1/models", {"path": "/m.gguf", **MANY}, "body"),
        ("/instance", {"instance": {}, **MANY}, "body"),
        (
            "/instance",
            {"instance": {"MlxRingInstance": {"instanceId": "i", "hostsByNode": MANY}}},
            "instance.MlxRingInstance",
        ),
    ],
)
def test_a_body_that_is_wrong_all_over_gets_one_complaint(
    client: httpx.Client, path: str, body: dict[str, object], param: str
) -> None:
    """Not a thousand: to make one for each of the fields that fit into a body would hold up everybody else."""
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert re.fullmatch(r"wrong in 1,00\d places", problem["msg"])
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u2003"])
def test_a_key_has_a_name_that_can_be_seen(client: httpx.Client, name: str) -> None:
    answer = client.post("/api/v1/keys", json={"name": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "name")


def test_a_key_of_a_long_id_is_unknown_without_repeating_it(client: httpx.Client) -> None:
    assert client.delete(f"/api/v1/keys/{'a' * 200}").status_code == 404
    answer = client.delete(f"/api/v1/keys/{'a' * 5000}")
    assert answer.status_code == 422
    assert len(answer.content) < 1000


def test_a_path_that_the_system_cannot_follow_is_refused(client: httpx.Client) -> None:
    answer = client.post("/api/v1/models", json={"path": f"/{'a' * 300}"})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "artifact_invalid")
    assert "File name too long" in answer.json()["error"]["message"]

"""Operations over HTTP: what is shown, what is hidden, and which parameters are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from support.server import Server

UNKNOWN = "op_" + "0" * 32
PATH = "/api/v1/operations"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


@pytest.fixture
def recurring(client: httpx.Client) -> dict[str, object]:
    """One operation of the schedule, which every control plane submits at its start; ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = client.get(PATH, params={"all": "true", "state": "succeeded"}).json()["operations"]
        scheduled = [operation for operation in found if operation["resource_type"] == "schedule"]
        if scheduled:
            return dict(scheduled[0])
        time.sleep(0.1)
    raise AssertionError("no recurring operation has succeeded")


def test_recurring_work_is_hidden_until_it_is_asked_for(
    client: httpx.Client, recurring: dict[str, object]
) -> None:
    def types(**params: str) -> set[str]:
        return {found["resource_type"] for found in client.get(PATH, params=params).json()["operations"]}

    assert "schedule" not in types()
    assert "schedule" in types(all="true")
    assert types(kind=str(recurring["kind"])) == {"schedule"}
    assert types(resource=str(recurring["resource"])) == {"schedule"}


def test_several_states_can_be_asked_for(client: httpx.Client, recurring: dict[str, object]) -> None:
    def ids(*states: str) -> set[str]:
        params = [("all", "true"), *(("state", state) for state in states)]
        return {found["id"] for found in client.get(PATH, params=params).json()["operations"]}

    assert recurring["id"] in ids("failed", "succeeded")
    assert recurring["id"] not in ids("failed", "pending")
    assert client.get(PATH, params={"state": "gone"}).status_code == 422


def test_an_operation_shows_its_lease_waits_and_cleanup(
    client: httpx.Client, recurring: dict[str, object]
) -> None:
    shown = client.get(f"{PATH}/{recurring['id']}").json()
    expected = {
        "cleaning_for": None,
        "cleanup_failures": 0,
        "affinity": None,
        "lease_owner": None,
        "lease_expires_at": None,
        "waited_s": 0.0,
        "waiting_since": None,
        "wait_deadline_s": None,
    }
    assert {key: shown[key] for key in expected} == expected
    events = client.get(f"{PATH}/{recurring['id']}/events").json()["events"]
    assert events[-1]["payload"] == {"progress": 100, "state": "succeeded"}


@pytest.mark.parametrize("operation_id", [UNKNOWN, "op_x", "op_" + "g" * 32, "x" * 200])
def test_an_id_that_names_nothing_is_404(client: httpx.Client, operation_id: str) -> None:
    answers = [
        client.get(f"{PATH}/{operation_id}"),
        client.get(f"{PATH}/{operation_id}/events"),
        client.post(f"{PATH}/{operation_id}/cancel"),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


@pytest.mark.parametrize("cursor", ["op_x", "'; --", ""])
def test_a_cursor_that_is_none_is_400(client: httpx.Client, cursor: str) -> None:
    answer = client.get(PATH, params={"cursor": cursor})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cursor")


def test_filters_and_sequences_out_of_bounds_are_422(
    client: httpx.Client, recurring: dict[str, object]
) -> None:
    events = f"{PATH}/{recurring['id']}/events"
    for name in ("kind", "resource"):
        assert client.get(PATH, params={name: ""}).status_code == 422
        assert client.get(PATH, params={name: "x" * 257}).status_code == 422
    assert client.get(events, params={"after": 2**31 - 1}).json() == {"events": [], "next_after": None}
    assert client.get(events, params={"after": 2**31}).status_code == 422
    for last in (2**31, -1):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        assert client.get(events, headers=headers).status_code == 422


def test_a_stream_resumes_at_the_largest_sequence(client: httpx.Client, recurring: dict[str, object]) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(2**31 - 1)}
    answer = client.get(f"{PATH}/{recurring['id']}/events", headers=headers)
    assert answer.status_code == 200
    assert answer.text.startswith("event: end\ndata: {")

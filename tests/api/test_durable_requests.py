"""Work that callers follow, cancel and repeat, over HTTP and with the command line, against a launch that is held."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from support.server import DEMO_MODEL_ID, Server

STREAM = {"Accept": "text/event-stream"}


@contextmanager
def held_launch(server: Server) -> Iterator[dict[str, Any]]:
    """A launch that comes no further, because its engine was stopped while it starts."""
    before = set(server.engine_pids())
    answer = server.launch(512)
    deadline = time.monotonic() + 120
    while not (pids := set(server.engine_pids()) - before):
        assert time.monotonic() < deadline, "no engine was started"
        time.sleep(0.005)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield answer
    finally:
        for pid in set(server.engine_pids()) & pids:
            os.kill(pid, signal.SIGCONT)


def events_path(operation_id: str) -> str:
    return f"/api/v1/operations/{operation_id}/events"


def ids_of(stream: str) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in stream.splitlines() if line.startswith("id: ")]


def test_a_launch_under_way_is_cancelled(server: Server) -> None:
    before = server.engine_pids()
    with held_launch(server) as answer:
        done = server.wharf("ops", "cancel", answer["operation_id"], "--wait", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert '"state": "cancelled"' in done.stdout
    assert server.engine_pids() == before
    with server.client() as client:
        assert client.get(f"/instance/{answer['instance_id']}").status_code == 404
        operation = client.get(f"/api/v1/operations/{answer['operation_id']}").json()
    assert (operation["state"], operation["cancel_requested"], operation["error"]) == (
        *("cancelled", True, None),
    )


def test_a_stream_resumes_after_the_last_event_id(server: Server) -> None:
    with server.client() as client:
        answer = server.launch(512)
        server.wait_status(answer["instance_id"], "ready")
        path = events_path(answer["operation_id"])
        whole = client.get(path, headers=STREAM).text
        last = client.get(path).json()["events"][-1]["sequence"]
        assert last > 4
        assert ids_of(whole) == list(range(1, last + 1))
        assert ids_of(client.get(path, headers=STREAM | {"Last-Event-ID": ""}).text) == ids_of(whole)
        resumed = client.get(path, headers=STREAM | {"Last-Event-ID": "3"}).text
        assert ids_of(resumed) == list(range(4, last + 1))
        assert resumed.startswith("id: 4\nevent: ")
        assert whole.endswith(resumed)
        client.delete(f"/instance/{answer['instance_id']}")
        server.wait_status(answer["instance_id"], "deleted")


def test_a_stream_ends_when_its_key_is_revoked(server: Server) -> None:
    with server.client() as admin, held_launch(server) as answer:
        made = admin.post("/api/v1/keys", json={"name": "guest", "role": "viewer"}).json()
        timeout = httpx.Timeout(30, read=10)  # the server would say after 15 s that it is still there
        with (
            server.client(made["key"]) as guest,
            guest.stream(
                "GET", events_path(answer["operation_id"]), headers=STREAM, timeout=timeout
            ) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines) == "id: 1"
            assert admin.delete(f"/api/v1/keys/{made['key_id']}").status_code == 200
            assert "event: end" not in list(lines)
        admin.post(f"/api/v1/operations/{answer['operation_id']}/cancel")
        server.wait_status(answer["instance_id"], "deleted")


def test_one_idempotency_key_of_two_callers_is_two_launches(server: Server) -> None:
    key = {"Idempotency-Key": "same"}
    body = {"model_id": DEMO_MODEL_ID, "context_tokens": 512}
    with server.client() as admin:
        made = admin.post("/api/v1/keys", json={"name": "other", "role": "operator"}).json()
        first = admin.post("/place_instance", json=body, headers=key).json()
        with server.client(made["key"]) as other:
            answer = other.post("/place_instance", json=body | {"context_tokens": 256}, headers=key)
            assert answer.status_code == 200, answer.text
            second = answer.json()
            repeated = other.post("/place_instance", json=body | {"context_tokens": 256}, headers=key).json()
        assert second["instance_id"] != first["instance_id"]
        assert repeated["operation_id"] == second["operation_id"]
        for launched in (first, second):
            admin.delete(f"/instance/{launched['instance_id']}")
            server.wait_status(launched["instance_id"], "deleted")


def test_a_delete_repeated_under_its_key_is_the_same_after_its_end(server: Server) -> None:
    answer = server.launch(512)
    path = f"/instance/{answer['instance_id']}"
    server.wait_status(answer["instance_id"], "ready")
    with server.client() as client:
        first = client.delete(path, headers={"Idempotency-Key": "gone"}).json()
        server.wait_status(answer["instance_id"], "deleted")
        assert client.delete(path, headers={"Idempotency-Key": "gone"}).json() == first
        assert client.delete(path, headers={"Idempotency-Key": "another"}).status_code == 404
        assert client.delete(path).status_code == 404


def test_watching_goes_on_over_a_kill_9_and_a_restart(fresh: Server) -> None:
    fresh.start()
    fresh.add_demo_model()
    command = [sys.executable, "-m", "wharfinger.cli", "ops", "watch", "--output", "json"]
    environment = {**os.environ, "WHARF_DATA_DIR": str(fresh.data_dir)}
    environment.pop("WHARF_URL", None)
    with held_launch(fresh) as answer:
        watching = subprocess.Popen(
            [*command, answer["operation_id"]],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert watching.stderr is not None
            first = watching.stderr.readline()
            fresh.kill()
            fresh.start()
            document, rest = watching.communicate(timeout=90)
        finally:
            watching.kill()
    assert watching.returncode == 0, first + rest
    assert '"state": "succeeded"' in document
    with fresh.client() as client:
        events = client.get(events_path(answer["operation_id"])).json()["events"]
    assert "lease_expired" in [event["type"] for event in events]
    shown = re.findall(r"^ *(\d+)  (\S+) ", first + rest, re.MULTILINE)
    assert shown == [(str(event["sequence"]), event["type"]) for event in events]

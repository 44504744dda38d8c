"""kill -9 of the control plane in each phase of a launch, of a runner, and what the next start does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from support.server import DEMO_MODEL_ID, Server
from support.tiny_gguf import write_tiny_gguf

GONE_WITHIN_S = 15.0
"""Generous: the contract is 2 s on a machine that has nothing else to do."""


def no_engine_left(server: Server) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while pids := server.engine_pids():
        assert time.monotonic() < deadline, f"engine processes {pids} outlive their control plane"
        time.sleep(0.05)


def wait_phase(server: Server, operation_id: str, phase: str) -> None:
    """Until the launch has an event whose message or state names the phase."""
    deadline = time.monotonic() + 120
    with server.client() as client:
        while True:
            events = client.get(f"/api/v1/operations/{operation_id}/events").json()["events"]
            if any(phase in event["message"] for event in events):
                return
            assert time.monotonic() < deadline, f"never reached {phase}: {events}"
            time.sleep(0.005)


@pytest.mark.parametrize(
    "phase", ["admitted", "model file", "idle", "loading", "loaded", "is ready", "proven", "routed"]
)
def test_kill_9_in_each_launch_phase_leaves_no_orphan_and_the_next_start_finishes(
    fresh: Server, phase: str
) -> None:
    fresh.start()
    fresh.add_demo_model()
    answer = fresh.launch(512)
    if phase != "admitted":
        wait_phase(fresh, answer["operation_id"], phase)
    fresh.kill()
    no_engine_left(fresh)
    fresh.start()
    view = fresh.wait_status(answer["instance_id"], "ready")
    assert len(fresh.engine_pids()) >= 1
    assert view["runners"][0]["pid"] in fresh.engine_pids()
    with fresh.client() as client:
        reply = client.post(
            "/v1/completions", json={"model": DEMO_MODEL_ID, "prompt": "The harbour", "max_tokens": 4}
        )
    assert reply.status_code == 200
    assert fresh.stop() == 0
    no_engine_left(fresh)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_leaves_no_orphan(fresh: Server, signum: int) -> None:
    fresh.start()
    fresh.add_demo_model()
    answer = fresh.launch(512)
    fresh.wait_status(answer["instance_id"], "ready")
    assert fresh.stop(signum) == 0
    assert fresh.engine_pids() == []


def test_a_runner_that_dies_is_seen_and_its_log_is_kept(server: Server) -> None:
    answer = server.launch(512)
    view = server.wait_status(answer["instance_id"], "ready")
    os.kill(view["runners"][0]["pid"], signal.SIGKILL)
    failed = server.wait_status(answer["instance_id"], "failed", within_s=GONE_WITHIN_S)
    assert failed["failure"]["code"] == "runner_crashed"
    assert any("llama" in line for line in failed["failure"]["log_tail"])
    assert (
        "killed (signal 9), perhaps by the system for want of memory or by somebody"
        in (failed["failure"]["message"])
    )
    assert set(failed["memory_by_node"].values()) == {0}
    assert "–" in server.wharf("ps").stdout
    assert "memory     – (released" in server.wharf("show", answer["instance_id"]).stdout
    with server.client() as client:
        refused = client.post("/v1/completions", json={"model": DEMO_MODEL_ID, "prompt": "x"})
        assert refused.status_code == 404
        state = client.get("/state").json()
        assert state["instanceFailures"][0]["instanceId"] == answer["instance_id"]
        assert state["instanceFailures"][0]["errorCode"] == "runner_crashed"
        node = client.get("/api/v1/nodes").json()["nodes"][0]
        assert node["reserved_bytes"] == 0
        client.delete(f"/instance/{answer['instance_id']}")
    server.wait_status(answer["instance_id"], "deleted")


def test_the_model_file_that_went_away_fails_the_launch_clearly(fresh: Server, tmp_path: Path) -> None:
    fresh.start()
    model = write_tiny_gguf(tmp_path, "llama").path
    with fresh.client() as client:
        added = client.post("/api/v1/models", json={"path": str(model), "model_id": "vanishing"})
        assert added.status_code == 201, added.text
        model.unlink()
        answer = client.post("/place_instance", json={"model_id": "vanishing"}).json()
        failed = fresh.wait_status(answer["instance_id"], "failed")
        assert failed["failure"]["code"] == "download_failed"
        assert "wharf models add" in failed["failure"]["message"]
        operation = client.get(f"/api/v1/operations/{answer['operation_id']}").json()
        assert (operation["state"], operation["error"]["code"]) == ("failed", "download_failed")
    assert psutil.pid_exists(fresh.pid)

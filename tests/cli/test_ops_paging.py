"""``ops list`` page by page, and by several states."""

from __future__ import annotations

import json

import pytest

from support.server import Server
from wharfinger.cli.ops import print_operation
from wharfinger.cli.output import console


def test_operations_are_listed_page_by_page_and_by_state(server: Server) -> None:
    answer = server.launch(512)
    server.wait_status(answer["instance_id"], "ready")
    with server.client() as client:
        stop = client.delete(f"/instance/{answer['instance_id']}").json()["operation_id"]
    server.wait_status(answer["instance_id"], "deleted")

    def listed(*arguments: str) -> tuple[list[str], str | None]:
        listing = ("ops", "list", "--resource", answer["instance_id"], *arguments)
        document = json.loads(server.wharf(*listing, "--output", "json").stdout)
        return [found["id"] for found in document["operations"]], document["next_cursor"]

    launch = answer["operation_id"]
    assert listed() == ([stop, launch], None)
    assert listed("--limit", "1") == ([stop], stop)
    assert listed("--limit", "1", "--cursor", stop) == ([launch], None)
    assert listed("--state", "failed", "--state", "succeeded") == ([stop, launch], None)
    assert listed("--state", "failed", "--state", "pending") == ([], None)
    shown = server.wharf("ops", "list", "--resource", answer["instance_id"], "--limit", "1").stdout
    assert f"--cursor {stop}\n" in shown


def test_a_step_that_never_ended_is_not_shown_as_running(capsys: pytest.CaptureFixture[str]) -> None:
    step = {"name": "runner.0", "status": "running", "updated_at": "2026-01-02T03:04:05Z"}
    operation = {"id": "op_a", "kind": "k", "resource": "r/a", "state": "cancelled", "progress": 70}
    operation |= {
        "message": "cleaned up",
        "attempt": 1,
        "max_attempts": 3,
        "waiting_reason": None,
        "error": None,
    }
    for completed_at, shown in ((None, "running"), ("2026-01-02T03:04:06Z", "cut off")):
        print_operation(console(), operation | {"steps": [step], "completed_at": completed_at})
        assert f"runner.0             {shown}  2026" in capsys.readouterr().out

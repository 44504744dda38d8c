"""``ops list`` page by page, and by several states."""

from __future__ import annotations

import json

from support.server import Server


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

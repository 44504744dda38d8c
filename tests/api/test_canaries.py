"""Planted secrets appear nowhere they should not: log, database, argv, environment of engines, events, errors."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from support.server import DEMO_MODEL_ID, Server

CANARY = "canary-7f3a91c2"


def everything_stored(data_dir: Path) -> dict[str, bytes]:
    files = [path for path in data_dir.rglob("*") if path.is_file() and path.suffix != ".gguf"]
    return {str(path): path.read_bytes() for path in files}


def test_no_secret_is_written_anywhere(fresh: Server) -> None:
    fresh.start()
    fresh.add_demo_model()
    answer = fresh.launch(512)
    view = fresh.wait_status(answer["instance_id"], "ready")
    prompt = f"repeat {CANARY}"
    with fresh.client() as client:
        for headers in ({}, {"Authorization": f"Bearer {CANARY}"}):
            client.post(
                "/v1/chat/completions",
                json={
                    "model": DEMO_MODEL_ID,
                    "messages": [{"role": "user", "content": prompt}],
                    "max_tokens": 4,
                },
                headers=headers,
            )
        client.post("/v1/chat/completions", json={"model": CANARY, "messages": []})
        client.post("/login", data={"key": CANARY}, headers={"Origin": fresh.url})
        dump = json.dumps([client.get(path).json() for path in ("/state", "/instance", "/api/v1/operations")])
        metrics = client.get("/metrics").text
    runner_key = _runner_key(fresh, f"{answer['instance_id']}-r0")
    secret = (fresh.data_dir / "installation.secret").read_text().strip()
    stored = everything_stored(fresh.data_dir)
    stored["server log"] = fresh.log.read_bytes().replace(
        fresh.key.encode(), b"", 1
    )  # shown once, on purpose
    stored["api answers"] = dump.encode()
    stored["metrics"] = metrics.encode()
    engine = psutil.Process(view["runners"][0]["pid"])
    for process in (engine, *engine.children(recursive=True), psutil.Process(fresh.pid)):
        stored[f"argv {process.pid}"] = " ".join(process.cmdline()).encode()
        stored[f"environment {process.pid}"] = json.dumps(process.environ()).encode()
    allowed = {
        fresh.key: {str(fresh.data_dir / "admin.key")},
        secret: {str(fresh.data_dir / "installation.secret")},
        runner_key: set(),
        CANARY: set(),
    }
    for value, places in allowed.items():
        found = {where for where, content in stored.items() if value.encode() in content}
        assert found == places


def _runner_key(server: Server, runner_id: str) -> str:
    from wharfinger.access.secrets import InstallationSecret

    return InstallationSecret.load_or_create(server.data_dir / "installation.secret").runner_key(runner_id)

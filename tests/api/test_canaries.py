"""Planted secrets appear nowhere they should not, and what is written is for nobody else's eyes.

Looked through: every file of the data directory, the tables of a PostgreSQL, the server's log, the answers of the API,
the dashboard and the CLI, and arguments and environments of the control plane and its engines; after launches that
worked and that failed.
"""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest

from support.postgres import fresh_database_url
from support.server import DEMO_MODEL_ID, Server
from support.tiny_gguf import write_tiny_gguf
from wharfinger.access.secrets import InstallationSecret

CANARY = "canary-7f3a91c2"
TOKEN = "canary-hub-5be2"
PASSWORD = "canary-database-90d4"
READ = (
    *("/state", "/instance", "/models", "/openapi.json", "/metrics", "/readyz", "/api/v1/operations"),
    *("/api/v1/nodes", "/api/v1/keys", "/v1/models", "/", "/login"),
)
COMMANDS = (
    ("status",),
    ("nodes",),
    ("ps",),
    ("doctor",),
    ("ops", "list"),
    ("keys", "list"),
    ("models", "list"),
)


def add_broken_model(client: httpx.Client, directory: Path) -> str:
    """A model whose file was cut after it was added, so that its engine fails to load it."""
    path = write_tiny_gguf(directory, "llama").path
    body = {"path": str(path), "model_id": "broken"}
    assert client.post("/api/v1/models", json=body).status_code == 201
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return "broken"


def knock(client: httpx.Client, url: str) -> None:
    """Requests with a canary as the prompt, as a key and as a model's name."""
    chat = {"model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": CANARY}], "max_tokens": 4}
    for headers in ({}, {"Authorization": f"Bearer {CANARY}"}):
        client.post("/v1/chat/completions", json=chat, headers=headers)
    client.post("/v1/chat/completions", json={"model": CANARY, "messages": []})
    client.post("/login", data={"key": CANARY}, headers={"Origin": url})


def sign_in(browser: httpx.Client, server: Server) -> str:
    """Sign in to the dashboard; returns the session's token."""
    answer = browser.post("/login", data={"key": server.key}, headers={"Origin": server.url})
    assert answer.status_code == 303
    return browser.cookies["wharf_session"]


def read(client: httpx.Client, path: str) -> bytes:
    answer = client.get(path)
    assert answer.status_code < 400, (path, answer.text)
    return answer.content


def first_events(browser: httpx.Client) -> str:
    """The events of a dashboard that was just opened, up to the last panel's."""
    lines: list[str] = []
    with browser.stream("GET", "/ui/events") as stream:
        for line in stream.iter_lines():
            lines.append(line)
            if line == "" and "event: chat-models" in lines:
                return "\n".join(lines)
    raise AssertionError(lines)


def files_of(data_dir: Path) -> dict[str, bytes]:
    files = [path for path in data_dir.rglob("*") if path.is_file() and path.suffix != ".gguf"]
    return {str(path): path.read_bytes() for path in files}


async def rows_of(url: str) -> dict[str, bytes]:
    """Every row of every table as text."""
    connection: Any = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = [table["tablename"] for table in tables]
        return {
            f"table {name}": str(await connection.fetch(f'SELECT t::text FROM "{name}" t')).encode()
            for name in names
        }
    finally:
        await connection.close()


def processes_of(server: Server, engine_pid: int) -> dict[str, bytes]:
    engine = psutil.Process(engine_pid)
    found: dict[str, bytes] = {}
    for process in (engine, *engine.children(recursive=True), psutil.Process(server.pid)):
        found[f"argv {process.pid}"] = " ".join(process.cmdline()).encode()
        found[f"environment {process.pid}"] = json.dumps(process.environ()).encode()
    return found


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_no_secret_is_written_anywhere(backend: str, tmp_path: Path) -> None:
    environment = {"HF_TOKEN": TOKEN}
    plain = None
    if backend == "postgresql":  # else a file in the data directory
        plain = asyncio.run(fresh_database_url(backend, tmp_path))
        environment["WHARF_DATABASE_URL"] = plain.replace("postgres@", f"postgres:{PASSWORD}@")
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    server = Server(data_dir, environment=environment)
    try:
        server.start()
        server.add_demo_model()
        seen, secrets = everything_after_use(server, tmp_path)
    finally:
        server.kill()
    if plain is not None:
        seen |= asyncio.run(rows_of(plain))
        secrets[PASSWORD] = {f"environment {server.pid}"}
    secrets[TOKEN] = {f"environment {server.pid}"}
    for value, places in secrets.items():
        assert {where for where, content in seen.items() if value.encode() in content} == places
    readable = {
        path.name
        for path in data_dir.rglob("*")
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) and path.name != "node_id"
    }
    assert readable == set()


def everything_after_use(server: Server, tmp_path: Path) -> tuple[dict[str, bytes], dict[str, set[str]]]:
    """What is to be looked through after the server was used, and each secret with the places it may be in."""
    launched = server.launch(512)
    view = server.wait_status(launched["instance_id"], "ready")
    with server.client() as client:
        body = {"model_id": add_broken_model(client, tmp_path), "context_tokens": 256}
        failed = client.post("/place_instance", json=body).json()["instance_id"]
        server.wait_status(failed, "failed")
        knock(client, server.url)
        made = client.post("/api/v1/keys", json={"name": "ci", "role": "viewer"}).json()
        with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as browser:
            session = sign_in(browser, server)
            seen = {f"page {path}": read(browser, path) for path in READ}
            seen["events"] = first_events(browser).encode()
        seen |= {f"answer {path}": read(client, path) for path in READ}
        for instance_id in (launched["instance_id"], failed):
            for path in (f"/api/v1/instances/{instance_id}", f"/api/v1/instances/{instance_id}/logs"):
                seen[f"answer {path}"] = read(client, path)
        for command in (*COMMANDS, ("show", failed), ("logs", failed)):
            for options in ((), ("--output", "json")):
                done = server.wharf(*command, *options)
                seen[f"wharf {command} {options}"] = (done.stdout + done.stderr).encode()
    assert b"broken" in seen["page /"]
    assert b"load_failed" in seen[f"answer /api/v1/instances/{failed}"]
    seen |= files_of(server.data_dir)
    shown_once = server.key.encode()  # on the first start, on purpose
    seen["server log"] = server.log.read_bytes().replace(shown_once, b"", 1)
    seen |= processes_of(server, view["runners"][0]["pid"])
    installation = server.data_dir / "installation.secret"
    runner_key = InstallationSecret.load_or_create(installation).runner_key(f"{launched['instance_id']}-r0")
    return seen, {
        server.key: {str(server.data_dir / "admin.key")},
        installation.read_text().strip(): {str(installation)},
        made["key"]: set(),
        session: set(),
        session.rsplit(".", 1)[-1]: set(),
        runner_key: set(),
        CANARY: set(),
    }

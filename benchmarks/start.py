"""How long from nothing to ready, what an idle control plane costs, and how soon deaths and hang-ups are noticed.

Measured against the plainest thing that could be used instead: ``uvicorn`` serving an empty FastAPI application from a
fresh process (the floor of this stack), and the engine alone loading the same model in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.local_node import NO_END, demo_model_path
from support.server import DEMO_MODEL_ID, Server, wharf

RUNS = 5
IDLE_S = 5.0
DEATHS = 3
HANGUP_TOKENS = 900
"""More than the engine makes before anybody hangs up."""
TARGETS_S = {"death_seen_s": 2.0, "hangup_stream_s": 1.0, "hangup_document_s": 1.0}
"""What the contract allows."""
FLOOR = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get('/livez')
async def livez(): return {}
uvicorn.run(app, port=int(sys.argv[1]), log_level='error')
"""
ENGINE_ALONE = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path = sys.argv[1]; p.n_ctx = 1024; p.n_parallel = 1; p.hostnames = ['127.0.0.1']; p.port = 0; p.verbosity = 0
began = time.monotonic(); s = xllamacpp.Server(p); print(time.monotonic() - began, flush=True)
import os; os._exit(0)
"""


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def floor_s() -> float:
    """A bare FastAPI process, from exec to its first answer."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", FLOOR, str(port)])
    try:
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/livez")
                return time.monotonic() - began
            except httpx.TransportError:
                time.sleep(0.005)
    finally:
        process.kill()
        process.wait()


def up_s(server: Server) -> float:
    """``wharf up`` from exec to a 200 of ``/readyz``."""
    began = time.monotonic()
    server.start()
    assert httpx.get(server.url + "/readyz").status_code == 200
    return time.monotonic() - began


def help_s() -> float:
    began = time.monotonic()
    result = wharf("--help")
    assert result.returncode == 0
    return time.monotonic() - began


def engine_alone_s() -> float:
    """The engine's own load time of the demo model, without us."""
    result = subprocess.run(
        [sys.executable, "-c", ENGINE_ALONE, str(demo_model_path())],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout.split()[-1])


def preview_ms(server: Server) -> float:
    times = []
    with server.client() as client:
        for _ in range(20):
            began = time.monotonic()
            assert client.get("/instance/previews", params={"model_id": DEMO_MODEL_ID}).status_code == 200
            times.append((time.monotonic() - began) * 1000)
    return median(times)


def launch_overhead_s(server: Server) -> tuple[float, float]:
    """Launch to ready minus the engine's own load time; and that load time."""
    began = time.monotonic()
    answer = server.launch()
    with server.client() as client:
        while client.get(f"/api/v1/operations/{answer['operation_id']}").json()["state"] != "succeeded":
            time.sleep(0.01)
        total_s = time.monotonic() - began
        operation = client.get(f"/api/v1/operations/{answer['operation_id']}").json()
        load_s = operation["result"]["engine_load_s"]
        client.delete(f"/instance/{answer['instance_id']}")
    server.wait_status(answer["instance_id"], "deleted")
    return total_s - load_s, load_s


def death_seen_s(server: Server) -> float:
    """``kill -9`` of a ready instance's runner to the first answer of the API that does not call it ready."""
    instance_id = server.launch()["instance_id"]
    (runner,) = server.wait_status(instance_id, "ready")["runners"]
    with server.client() as client:
        os.kill(runner["pid"], signal.SIGKILL)
        began = time.monotonic()
        while client.get(f"/api/v1/instances/{instance_id}").json()["status"] == "ready":
            time.sleep(0.005)
        seen_s = time.monotonic() - began
        client.delete(f"/instance/{instance_id}")
    server.wait_status(instance_id, "deleted")
    return seen_s


def hangup_s(server: Server, engine: httpx.Client, stream: bool) -> float:
    """A client closes its connection to the gateway in the middle of an answer; until the engine's slot is idle."""

    def slot() -> dict:
        (only,) = engine.get("/slots").json()
        return only

    body = {**NO_END, "model": DEMO_MODEL_ID, "prompt": "Once", "max_tokens": HANGUP_TOKENS, "stream": stream}
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    while not ((working := slot())["is_processing"] and working["next_token"][0]["n_decoded"] > 10):
        time.sleep(0.01)
    assert connection.sock is not None
    connection.sock.close()
    began = time.monotonic()
    while (last := slot())["is_processing"]:
        working = last
        time.sleep(0.01)
    took_s = time.monotonic() - began
    assert working["next_token"][0]["n_decoded"] < HANGUP_TOKENS, "the answer ended before the client hung up"
    return took_s


def hangups_s(server: Server) -> tuple[float, float]:
    """Medians for a streamed answer and for one in one document."""
    instance_id = server.launch()["instance_id"]
    server.wait_status(instance_id, "ready")
    with server.engine() as engine:
        streamed = [hangup_s(server, engine, stream=True) for _ in range(RUNS)]
        whole = [hangup_s(server, engine, stream=False) for _ in range(RUNS)]
    with server.client() as client:
        client.delete(f"/instance/{instance_id}")
    server.wait_status(instance_id, "deleted")
    return median(streamed), median(whole)


def main() -> None:
    demo_model_path()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data")
        first_s = up_s(server)
        server.add_demo_model()
        server.stop()
        again = []
        for _ in range(RUNS):
            again.append(up_s(server))
            server.stop()
        server.start()
        time.sleep(IDLE_S)
        rss_mb = psutil.Process(server.pid).memory_info().rss / 1e6
        previews = preview_ms(server)
        launches = [launch_overhead_s(server) for _ in range(RUNS)]
        deaths = [death_seen_s(server) for _ in range(DEATHS)]
        hangup_stream, hangup_document = hangups_s(server)
        server.stop()
    result = {
        "up_to_ready_s": median(again),
        "first_up_to_ready_s": round(first_s, 3),
        "bare_fastapi_up_s": median([floor_s() for _ in range(RUNS)]),
        "help_s": median([help_s() for _ in range(RUNS)]),
        "rss_idle_mb": round(rss_mb, 1),
        "preview_ms": previews,
        "launch_overhead_s": median([overhead for overhead, _ in launches]),
        "engine_load_s": median([load for _, load in launches]),
        "engine_alone_load_s": median([engine_alone_s() for _ in range(RUNS)]),
        "death_seen_s": median(deaths),
        "hangup_stream_s": hangup_stream,
        "hangup_document_s": hangup_document,
        "conditions": f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite, loopback, demo model, "
        f"window 1024, median of {RUNS} ({DEATHS} deaths); rss after {IDLE_S:.0f} s idle, engine apart",
    }
    for name, value in result.items():
        target = f"  (target: at most {TARGETS_S[name]:g} s)" if name in TARGETS_S else ""
        print(f"{name:22} {value}{target}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""How long from nothing to ready, and what an idle control plane costs.

Measured against the plainest thing that could be used instead: ``uvicorn`` serving an empty FastAPI application from a
fresh process (the floor of this stack), and the engine alone loading the same model in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.local_node import demo_model_path
from support.server import DEMO_MODEL_ID, Server, wharf

RUNS = 5
IDLE_S = 5.0
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
        "conditions": f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite, loopback, demo model, "
        f"window 1024, median of {RUNS}; rss after {IDLE_S:.0f} s idle, engine apart",
    }
    for name, value in result.items():
        print(f"{name:22} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""What the gateway adds to a request: one connection, eight connections, eight connections of streams.

    python benchmarks/gateway.py [--rounds N] [--seconds S]

Four processes on one machine over loopback: this load generator, an upstream that answers at once
(``tests/support/upstream.py``), and the gateway under uvicorn with authentication on. Direct and proxied rounds
alternate, the median round counts. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httptools
import psutil
import uvloop

REPOSITORY = Path(__file__).resolve().parent.parent
UPSTREAM = REPOSITORY / "tests" / "support" / "upstream.py"
KEY = "wharf_bench_key"
MODEL = "bench-model"
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "How deep is the harbour?"}],
    "max_tokens": 64,
}
EXPECTED_EVENTS = 51
"""50 chunks and ``[DONE]``."""


# The load generator ------------------------------------------------------------------------------------------


@dataclass
class Load:
    """What one measured run saw."""

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.latencies_s) / self.seconds

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latencies_s) * 1e3


class Client(asyncio.Protocol):
    """One keep-alive connection that sends the next request as soon as the last answer is complete."""

    def __init__(self, request: bytes, until_s: float, load: Load, stream: bool) -> None:
        self.request, self.until_s, self.load, self.stream = request, until_s, load, stream
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.send()

    def send(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.events = 0
        self.sent_s = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if self.stream:
            self.events += body.count(b"\n\n")

    def on_message_complete(self) -> None:
        now_s = time.perf_counter()
        status = self.parser.get_status_code()
        if status != 200 or (self.stream and self.events != EXPECTED_EVENTS):
            self.fail(f"status {status}, {self.events} events")
            return
        self.load.latencies_s.append(now_s - self.sent_s)
        if now_s < self.until_s:
            self.send()
        elif not self.done.done():
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc}")

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the benchmark's request failed: {reason}"))
            self.transport.close()


async def load(port: int, connections: int, seconds: float, *, stream: bool = False) -> Load:
    """Keep ``connections`` busy for ``seconds``; raises RuntimeError on any answer that is not the right one."""
    body = json.dumps({**CHAT, "stream": True} if stream else CHAT, separators=(",", ":")).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\naccept: */*\r\nuser-agent: bench\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    result = Load()
    loop = asyncio.get_running_loop()
    started_s = time.perf_counter()
    clients = [
        (
            await loop.create_connection(
                lambda: Client(request, started_s + seconds, result, stream), "127.0.0.1", port
            )
        )[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.done for client in clients))
    result.seconds = time.perf_counter() - started_s
    return result


# The processes under test --------------------------------------------------------------------------------------


async def serve_gateway(upstream_port: int) -> None:
    """The gateway alone under uvicorn, one worker, on a free port that is printed."""
    import uvicorn

    from wharfinger.routing.gateway import Gateway
    from wharfinger.routing.targets import RouteTable, Target

    table = RouteTable()
    table.publish(
        [
            Target(
                "t1",
                MODEL,
                MODEL,
                f"http://127.0.0.1:{upstream_port}",
                api_key="upstream-key",
                context_tokens=8192,
            )
        ]
    )
    keys = {hashlib.sha256(KEY.encode()).hexdigest(): "bench"}

    def authenticate(headers: list[tuple[bytes, bytes]]) -> object | None:
        for name, value in headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    return None
                return keys.get(hashlib.sha256(key.strip()).hexdigest())
        return None

    app = Gateway(table, authenticate)
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, access_log=False, log_level="warning", http="httptools"
    )
    listening = config.bind_socket()
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve(sockets=[listening])


def spawn(*argv: str) -> tuple[psutil.Popen, int]:
    """Start a process that prints its port as its first line."""
    process = psutil.Popen([sys.executable, *argv], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if not line.strip().isdigit():
        process.kill()
        raise RuntimeError(f"{argv[0]} did not start")
    return process, int(line)


def cpu_s(process: psutil.Popen) -> float:
    times = process.cpu_times()
    return times.user + times.system


# The named alternative -----------------------------------------------------------------------------------------


def spawn_alternative(upstream_port: int) -> tuple[psutil.Popen, int] | None:
    """vllm-router in front of the same upstream, when its program is on the PATH; otherwise ``None``."""
    program = shutil.which("vllm-router")
    if program is None:
        return None
    port = 18431
    command = [program, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--worker-urls", f"http://127.0.0.1:{upstream_port}", "--worker-startup-check-interval", "1"]
    command += ["--prometheus-port", str(port + 1)]
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up_s = time.monotonic() + 15
    while time.monotonic() < give_up_s and process.poll() is None:
        if answers(port):
            return process, port
        time.sleep(0.1)
    process.kill()
    raise RuntimeError("vllm-router is installed but did not answer within 15 s")


def answers(port: int) -> bool:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(CHAT).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


# The measurement -----------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """Medians over the rounds of one endpoint."""

    p50_ms: list[float] = field(default_factory=list)
    rps_8: list[float] = field(default_factory=list)
    p99_8_ms: list[float] = field(default_factory=list)
    streams_8: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    stream_cpu_ms: list[float] = field(default_factory=list)


async def measure(port: int, process: psutil.Popen, seconds: float, into: Figures) -> None:
    into.p50_ms.append((await load(port, 1, seconds)).p50_ms)
    before_s = cpu_s(process)
    busy = await load(port, 8, seconds)
    into.cpu_ms.append((cpu_s(process) - before_s) / len(busy.latencies_s) * 1e3)
    into.rps_8.append(busy.per_second)
    into.p99_8_ms.append(statistics.quantiles(busy.latencies_s, n=100)[98] * 1e3)
    before_s = cpu_s(process)
    streams = await load(port, 8, seconds, stream=True)
    into.stream_cpu_ms.append((cpu_s(process) - before_s) / len(streams.latencies_s) * 1e3)
    into.streams_8.append(streams.per_second)


async def compare(rounds: int, seconds: float) -> dict[str, object]:
    """Measure direct, through the gateway and, when present, through the alternative, round by round."""
    upstream, upstream_port = spawn(str(UPSTREAM))
    started = [upstream]
    try:
        gateway, gateway_port = spawn(str(Path(__file__)), "--serve-gateway", str(upstream_port))
        started.append(gateway)
        endpoints = {"direct": (upstream, upstream_port), "gateway": (gateway, gateway_port)}
        alternative = spawn_alternative(upstream_port)
        if alternative is not None:
            started.append(alternative[0])
            endpoints["vllm-router"] = alternative
        figures = {name: Figures() for name in endpoints}
        for process, port in endpoints.values():
            await measure(port, process, min(seconds, 0.5), Figures())  # warm up, thrown away
        for _ in range(rounds):
            for name, (process, port) in endpoints.items():
                await measure(port, process, seconds, figures[name])
    finally:
        for process in started:
            process.terminate()
        psutil.wait_procs(started, timeout=5)
    return summarise(figures, rounds, seconds)


def summarise(figures: dict[str, Figures], rounds: int, seconds: float) -> dict[str, object]:
    median = statistics.median
    direct, gateway = figures["direct"], figures["gateway"]
    result: dict[str, object] = {
        "bench": "gateway",
        "direct_p50_ms": round(median(direct.p50_ms), 3),
        "added_p50_ms": round(median(gateway.p50_ms) - median(direct.p50_ms), 3),
        "rps_8": round(median(gateway.rps_8)),
        "streams_per_s_8": round(median(gateway.streams_8)),
        "p99_8_ms": round(median(gateway.p99_8_ms), 2),
        "gateway_cpu_ms_per_request": round(median(gateway.cpu_ms), 3),
        "gateway_cpu_ms_per_stream": round(median(gateway.stream_cpu_ms), 3),
        "direct_rps_8": round(median(direct.rps_8)),
        "direct_streams_per_s_8": round(median(direct.streams_8)),
    }
    other = figures.get("vllm-router")
    result["alternative"] = (
        {
            "name": "vllm-router",
            "added_p50_ms": round(median(other.p50_ms) - median(direct.p50_ms), 3),
            "rps_8": round(median(other.rps_8)),
            "streams_per_s_8": round(median(other.streams_8)),
        }
        if other
        else "not present: vllm-router is not on the PATH"
    )
    result["conditions"] = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "rounds": rounds,
        "seconds_per_run": seconds,
        "note": "loopback; generator, upstream and gateway are separate processes; authentication on; median round",
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measured run")
    parser.add_argument("--serve-gateway", type=int, metavar="UPSTREAM_PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_gateway:
        uvloop.run(serve_gateway(arguments.serve_gateway))
        return
    print("measuring direct and through the gateway in turn …", file=sys.stderr)
    print(json.dumps(uvloop.run(compare(arguments.rounds, arguments.seconds))))


if __name__ == "__main__":
    main()

"""A gateway under a real uvicorn (uvloop, httptools) in a thread, in front of real upstreams of this test's loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import openai
import uvicorn
from prometheus_client import CollectorRegistry

from wharfinger.routing.exchange import Limits, RequestRecord
from wharfinger.routing.gateway import Gateway
from wharfinger.routing.metrics import GatewayMetrics
from wharfinger.routing.targets import RouteTable, Target

CLIENT_KEY = "sk-canary-client-7d1f"
TARGET_KEY = "sk-canary-target-93ab"
MODEL = "harbour"
MESSAGES: list = [{"role": "user", "content": "How deep is the harbour?"}]
PATIENCE_S = 30.0
"""How long to wait for what must come, on a machine that is busy with other things. Nothing measures this."""
AUTH = {"authorization": f"Bearer {CLIENT_KEY}"}


def authenticate(headers: list[tuple[bytes, bytes]]) -> object | None:
    """The product's way of checking a key: a look-up by its SHA-256."""
    keys = {hashlib.sha256(CLIENT_KEY.encode()).hexdigest(): "tester"}
    for name, value in headers:
        if name == b"authorization":
            return keys.get(hashlib.sha256(value.removeprefix(b"Bearer ")).hexdigest())
    return None


@dataclass
class Served:
    """A running gateway and everything a test looks at."""

    table: RouteTable
    gateway: Gateway
    registry: CollectorRegistry
    records: list[RequestRecord]
    port: int = 0
    server: uvicorn.Server | None = None
    thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, *, max_retries: int = 0) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=CLIENT_KEY, max_retries=max_retries)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"wharfinger_gateway_{name}", labels)

    async def quiet(self) -> None:
        """Wait until no request is being carried any more (polled: the gateway lives in another thread)."""
        async with asyncio.timeout(PATIENCE_S):
            while self.gateway.in_flight or any(  # noqa: ASYNC110
                self.table.in_flight(t.target_id) for t in self.table.targets()
            ):
                await asyncio.sleep(0.01)

    async def recorded(self, count: int = 1) -> list[RequestRecord]:
        """The records, once there are ``count`` of them."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.records) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.records


def target(url: str, target_id: str = "t1", **changes: object) -> Target:
    """A target of :data:`MODEL` at ``url``."""
    facts: dict[str, object] = {"model_id": MODEL, "upstream_model": MODEL, "api_key": TARGET_KEY, **changes}
    return Target(target_id=target_id, base_url=url, **facts)  # type: ignore[arg-type]


Serve = Callable[..., Served]


@dataclass
class Serving:
    started: list[Served] = field(default_factory=list)

    def __call__(self, *targets: Target, limits: Limits | None = None) -> Served:
        table, registry, records = RouteTable(), CollectorRegistry(), []
        table.publish(targets)
        gateway = Gateway(
            table,
            authenticate,
            observer=records.append,
            limits=limits,
            metrics=GatewayMetrics(registry),
        )
        config = uvicorn.Config(
            gateway,
            host="127.0.0.1",
            port=0,
            http="httptools",
            loop="uvloop",
            lifespan="on",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        listening = config.bind_socket()
        listening.listen()
        served = Served(table, gateway, registry, records, listening.getsockname()[1], uvicorn.Server(config))
        assert served.server is not None
        served.thread = threading.Thread(
            target=served.server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        served.thread.start()
        self.started.append(served)
        return served

    def stop(self) -> None:
        for served in self.started:
            assert served.server is not None
            assert served.thread is not None
            served.server.should_exit = True
            served.thread.join(PATIENCE_S)
            assert not served.thread.is_alive(), "the server did not stop"


async def post(
    url: str, body: bytes | dict, path: str = "/v1/chat/completions", **headers: str
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        return await client.post(url + path, content=content, headers={**AUTH, **headers})


def error(response: httpx.Response) -> dict:
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return document["error"]


async def send(served: Served, path: str, body: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    content = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {CLIENT_KEY}\r\n"
        f"content-length: {len(content)}\r\n\r\n".encode()
        + content
    )
    return reader, writer

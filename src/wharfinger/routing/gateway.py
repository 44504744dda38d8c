"""The gateway: OpenAI's ``/v1`` routes in front of whatever runs the models. A plain ASGI application.

Per request it authenticates, looks into the body for the model, picks a target from the in-memory
:class:`~wharfinger.routing.targets.RouteTable` and passes bytes. No database, no framework and, for a request that is
answered at once, no second task is on that path.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from wharfinger.access.rules import bearer_key
from wharfinger.routing import errors
from wharfinger.routing.asgi import Authenticate, Receive, Scope, Send, send_json
from wharfinger.routing.body import ClientGone, peek, read_body
from wharfinger.routing.errors import GatewayError
from wharfinger.routing.exchange import Exchange, Limits, RequestRecord
from wharfinger.routing.forward import PROMPT_OF_ROUTE, TASK_OF_ROUTE, Forwarder
from wharfinger.routing.headers import identify
from wharfinger.routing.metrics import NO_MODEL, GatewayMetrics, default_metrics
from wharfinger.routing.targets import RouteTable, Target
from wharfinger.routing.upstream import UpstreamClient
from wharfinger.routing.watch import Cause

MODELS = "/v1/models"
OTHER = "other"
"""The route label of a path that is not served."""

log = structlog.get_logger(__name__)


class Gateway:
    """Serves ``/v1``: chat completions, completions, embeddings and the list of running models.

    ``authenticate`` gets ASGI's raw headers. ``observer`` is told of every ended request; it must not block or raise.
    :meth:`startup` and :meth:`shutdown` belong to the serving event loop; alone under a server the gateway does both
    itself when the server sends it ASGI's lifespan.
    """

    def __init__(
        self,
        table: RouteTable,
        authenticate: Authenticate,
        *,
        observer: Callable[[RequestRecord], None] | None = None,
        limits: Limits | None = None,
        metrics: GatewayMetrics | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.in_flight = 0
        """Requests being carried now."""
        self._table = table
        self._authenticate = authenticate
        self._observer = observer
        self._metrics = metrics or default_metrics()
        self._metrics.watch_in_flight(lambda: self.in_flight)
        self._client = UpstreamClient(self.limits.max_in_flight, self.limits.connect_timeout_s)
        self._forwarder = Forwarder(table, self._client, self._metrics, self.limits)

    async def startup(self) -> None:
        """Open the connection pool."""
        await self._client.startup()

    async def shutdown(self) -> None:
        """Close every connection to an endpoint; requests still in flight break."""
        await self._client.shutdown()

    @staticmethod
    def handles(path: str) -> bool:
        """Whether a request for ``path`` is the gateway's: everything below ``/v1/``."""
        return path.startswith("/v1/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway serves HTTP, not {scope['type']}")
        path: str = scope["path"]
        exchange = Exchange(_route_of(path), scope["method"], receive, send, identify(scope["headers"]))
        try:
            await self._answer(exchange, scope, path)
        except GatewayError as error:
            await self._refuse(exchange, error)
        except ClientGone:
            exchange.failure = Cause.CLIENT_GONE
            self._metrics.client_left(NO_MODEL)
        except Exception:
            log.exception("gateway_failed", request_id=exchange.identity.request_id, route=exchange.route)
            if exchange.response_started:
                raise
            message = f"The gateway failed; its log has more under request id {exchange.identity.request_id}."
            await self._refuse(
                exchange, GatewayError(500, "internal_error", message, error_type="server_error")
            )
        finally:
            self._ended(exchange)

    async def _answer(self, exchange: Exchange, scope: Scope, path: str) -> None:
        headers = scope["headers"]
        exchange.principal = self._authenticate(headers)
        if exchange.principal is None:
            raise errors.unauthorized(key_sent=bearer_key(headers) is not None)
        if exchange.route == MODELS:
            _require_method(exchange.method, "GET")
            await self._answer_models(exchange, path[len(MODELS) + 1 :])
            return
        if exchange.route == OTHER:
            served = ", ".join((*TASK_OF_ROUTE, MODELS))
            raise GatewayError(404, "unknown_url", f"There is no {path[:200]!r} here. Served: {served}.")
        _require_method(exchange.method, "POST")
        if self.in_flight >= self.limits.max_in_flight:
            raise errors.overloaded(self.limits.max_in_flight)
        self.in_flight += 1
        try:
            body = await read_body(exchange.receive, headers, self.limits.max_body_bytes)
            await self._forwarder.forward(exchange, body, peek(body, PROMPT_OF_ROUTE[exchange.route]))
        finally:
            self.in_flight -= 1

    async def _answer_models(self, exchange: Exchange, model_id: str) -> None:
        if model_id:
            found = self._table.serving(model_id)
            if not found:
                raise errors.not_running(model_id, self._table.models())
            answer = _describe(model_id, found)
        else:
            names = self._table.models()
            answer = {
                "object": "list",
                "data": [_describe(name, self._table.serving(name)) for name in names],
            }
        exchange.status, exchange.response_started = 200, True
        await send_json(exchange.send, 200, answer, [_request_id(exchange)])

    async def _refuse(self, exchange: Exchange, error: GatewayError) -> None:
        exchange.status, exchange.response_started = error.status, True
        exchange.failure = exchange.failure or error.code
        await send_json(exchange.send, error.status, error.body, [_request_id(exchange), *error.headers])

    def _ended(self, exchange: Exchange) -> None:
        duration_s = (exchange.ended_s or time.perf_counter()) - exchange.started_s
        method = exchange.method if exchange.method in ("GET", "POST") else OTHER
        model = exchange.model or NO_MODEL
        self._metrics.ended(exchange.route, method, model, exchange.status, duration_s, exchange.ttft_s)
        if self._observer is not None:
            target = exchange.target
            self._observer(
                RequestRecord(
                    request_id=exchange.identity.request_id,
                    route=exchange.route,
                    principal=exchange.principal,
                    model=exchange.model,
                    target_id=target.target_id if target else None,
                    instance_id=target.instance_id if target else None,
                    stream=exchange.stream,
                    status=exchange.status,
                    failure=exchange.failure,
                    duration_s=duration_s,
                    ttft_s=exchange.ttft_s,
                )
            )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.startup()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _route_of(path: str) -> str:
    if path in TASK_OF_ROUTE:
        return path
    return MODELS if path == MODELS or path.startswith(MODELS + "/") else OTHER


def _require_method(method: str, allowed: str) -> None:
    if method != allowed:
        message = f"This URL takes {allowed}, not {method}."
        raise GatewayError(405, "method_not_allowed", message, headers=[(b"allow", allowed.encode())])


def _request_id(exchange: Exchange) -> tuple[bytes, bytes]:
    return b"x-request-id", exchange.identity.request_id.encode("ascii")


def _describe(model_id: str, targets: tuple[Target, ...]) -> dict[str, Any]:
    """OpenAI's model object; ``max_model_len`` (vLLM's name for it) only when every target's context is known."""
    described: dict[str, Any] = {
        "id": model_id,
        "object": "model",
        "created": min(target.created_unix_s for target in targets),
        "owned_by": "wharfinger",
    }
    contexts = [target.context_tokens for target in targets]
    known = [context for context in contexts if context is not None]
    if len(known) == len(contexts):
        described["max_model_len"] = min(known)
    return described

"""The gateway's own Prometheus metrics.

Labels come from fixed sets and from names that were in the route table; what a client sends is never a label.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

NO_MODEL = ""
"""The label of a request whose model is not running, or that names none."""


class GatewayMetrics:
    """One set per registry; children are kept, so a request pays for no label look-up in the library."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._requests = Counter(
            "wharfinger_gateway_requests_total",
            "Requests ended, by route, model and class of the status sent.",
            ("route", "method", "model", "code"),
            registry=registry,
        )
        self._duration = Histogram(
            "wharfinger_gateway_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            ("route", "model"),
            buckets=_DURATION_BUCKETS_S,
            registry=registry,
        )
        self._ttft = Histogram(
            "wharfinger_gateway_time_to_first_token_seconds",
            "From a streaming request's arrival to the first event from its endpoint.",
            ("model",),
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self._upstream_errors = Counter(
            "wharfinger_gateway_upstream_errors_total",
            "Failures of endpoints, by reason; a stream that broke after its 200 counts here.",
            ("model", "reason"),
            registry=registry,
        )
        self._client_cancels = Counter(
            "wharfinger_gateway_client_cancels_total",
            "Requests whose client hung up before the end; their endpoint was told to stop.",
            ("model",),
            registry=registry,
        )
        self._in_flight = Gauge(
            "wharfinger_gateway_in_flight", "Requests being carried to endpoints now.", registry=registry
        )
        self._children: dict[tuple[str, str, str, int], tuple[Counter, Histogram]] = {}
        self._ttft_children: dict[str, Histogram] = {}

    def watch_in_flight(self, read: Callable[[], int]) -> None:
        """Take the in-flight gauge from ``read`` whenever it is scraped."""
        self._in_flight.set_function(read)

    def ended(
        self, route: str, method: str, model: str, status: int, duration_s: float, ttft_s: float | None
    ) -> None:
        """A request ended with ``status`` (499: the client left before there was one)."""
        key = (route, method, model, status // 100)
        children = self._children.get(key)
        if children is None:
            counter = self._requests.labels(route, method, model, f"{status // 100}xx")
            children = self._children[key] = (counter, self._duration.labels(route, model))
        children[0].inc()
        children[1].observe(duration_s)
        if ttft_s is not None:
            ttft = self._ttft_children.get(model)
            if ttft is None:
                ttft = self._ttft_children[model] = self._ttft.labels(model)
            ttft.observe(ttft_s)

    def upstream_failed(self, model: str, reason: str) -> None:
        """An endpoint of ``model`` failed, also when another one then answered."""
        self._upstream_errors.labels(model, reason).inc()

    def client_left(self, model: str) -> None:
        """A client hung up before its answer was complete."""
        self._client_cancels.labels(model).inc()


@functools.cache
def default_metrics() -> GatewayMetrics:
    """The set on prometheus_client's own registry, which refuses a second one: gateways of a process share it."""
    return GatewayMetrics()

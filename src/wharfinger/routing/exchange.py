"""One request on its way through the gateway, what is recorded of it, and the limits it lives under."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from wharfinger.routing.asgi import Receive, Send
from wharfinger.routing.headers import Identity
from wharfinger.routing.targets import Target

CLIENT_LEFT = 499
"""The status recorded, never sent, for a client that hung up before there was one (nginx's number)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the gateway. A time of ``None`` means no bound. There is no bound on a request's total time."""

    max_body_bytes: int = 16 * 1024 * 1024
    max_in_flight: int = 1024
    """Requests carried at once, and connections in the pool; one more is refused with 503."""
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float | None = None
    """Wait for the head of an answer. ``None``: a long prompt, or a long answer that is not streamed, is normal."""
    idle_timeout_s: float | None = 120.0
    """Silence allowed once an answer has begun."""
    heartbeat_s: float | None = 15.0
    """After this much silence in an event stream the client gets a comment, which readers skip."""


@dataclass(slots=True)
class Exchange:
    """The state of one request. ``model`` is set only once it is known to be running."""

    route: str
    method: str
    receive: Receive
    send: Send
    identity: Identity
    principal: object | None = None
    model: str | None = None
    stream: bool = False
    """The client wants a stream."""
    collected: bool = False
    """The endpoint was asked for a stream, of which the client gets one document."""
    target: Target | None = None
    status: int = CLIENT_LEFT
    failure: str | None = None
    """``client_gone``, a reason of :class:`~wharfinger.routing.errors.UpstreamError`, or an error code."""
    started_s: float = field(default_factory=time.perf_counter)
    ttft_s: float | None = None
    ended_s: float | None = None
    response_started: bool = False
    events_sent: bool = False
    """The answer that was started is an event stream."""
    mid_event: bool = False
    """The client has been sent a part of an event."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One ended request, for the gateway's observer. Never holds a prompt, an answer or a credential."""

    request_id: str
    route: str
    principal: object | None
    model: str | None
    target_id: str | None
    instance_id: str | None
    stream: bool
    status: int
    failure: str | None
    duration_s: float
    ttft_s: float | None

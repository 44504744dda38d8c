"""Refusals and failures of the gateway, in OpenAI's error envelope."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from wharfinger.routing.asgi import RawHeaders

INVALID = "invalid_request_error"
UPSTREAM = "upstream_error"
_MODELS_NAMED = 10
_NAME_CHARACTERS = 200


class GatewayError(Exception):
    """A request that ends with an error answer.

    ``message`` is shown to the client: it never holds a URL, a credential or the text of a library's exception.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        error_type: str = INVALID,
        param: str | None = None,
        headers: RawHeaders | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.error_type = error_type
        self.param = param
        self.headers: RawHeaders = headers or []

    @property
    def body(self) -> dict[str, object]:
        """``{"error": {"message", "type", "param", "code"}}``."""
        return envelope(self.message, self.error_type, self.param, self.code)


class UpstreamError(GatewayError):
    """The endpoint failed, not the request. ``reason`` is the metric's label, from a small fixed set."""

    def __init__(self, status: int, reason: str, message: str, headers: RawHeaders | None = None) -> None:
        super().__init__(status, reason, message, error_type=UPSTREAM, headers=headers)
        self.reason = reason


def envelope(message: str, error_type: str, param: str | None, code: str | None) -> dict[str, object]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def unauthorized(*, key_sent: bool) -> GatewayError:
    """401: no credential, or one that is not known."""
    return GatewayError(
        401,
        "invalid_api_key",
        "This API key is unknown or revoked."
        if key_sent
        else "This endpoint needs an API key: send 'Authorization: Bearer KEY' with a key that is known here.",
        error_type="authentication_error",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def not_running(model: str, running: Sequence[str]) -> GatewayError:
    """404 that says what is running, and what the name may have meant."""
    shown = model if len(model) <= _NAME_CHARACTERS else model[:_NAME_CHARACTERS] + "…"
    if not running:
        message = f"The model {shown!r} is not running; no model is running here."
    else:
        more = f" and {len(running) - _MODELS_NAMED} more" if len(running) > _MODELS_NAMED else ""
        message = f"The model {shown!r} is not running. Running: {', '.join(running[:_MODELS_NAMED])}{more}."
        close = difflib.get_close_matches(shown, running, n=3)
        if close:
            message += f" Did you mean {' or '.join(repr(name) for name in close)}?"
    return GatewayError(404, "model_not_found", message, param="model")


def unreachable(model: str, tried: int) -> UpstreamError:
    """503: no connection to any endpoint of the model could be made, so nothing was sent."""
    endpoints = "its endpoint" if tried == 1 else f"any of its {tried} endpoints"
    message = f"The model {model!r} cannot be reached: no connection to {endpoints} could be made. Nothing was sent."
    return UpstreamError(503, "upstream_unreachable", message, [(b"retry-after", b"1")])


def disconnected(model: str) -> UpstreamError:
    """502: the endpoint went away after it had been given the request, so it may have done the work.

    ``x-should-retry: false`` keeps OpenAI's clients from sending it a second time by themselves.
    """
    message = (
        f"The endpoint of {model!r} closed the connection before its answer was complete. Not sent again."
    )
    return UpstreamError(502, "upstream_disconnected", message, [(b"x-should-retry", b"false")])


def malformed(model: str) -> UpstreamError:
    """502: the endpoint answered with something that is no answer. It has done the work: not to be sent again."""
    message = f"The endpoint of {model!r} sent an answer that cannot be read. Not sent again."
    return UpstreamError(502, "upstream_malformed", message, [(b"x-should-retry", b"false")])


def silent(model: str, limit_s: float) -> UpstreamError:
    """504: nothing came from the endpoint for longer than allowed."""
    message = f"The endpoint of {model!r} sent nothing for {limit_s:g} s."
    return UpstreamError(504, "upstream_timeout", message, [(b"x-should-retry", b"false")])


def overloaded(limit: int) -> GatewayError:
    """503: refused at once instead of queued without an end."""
    message = f"The gateway already carries {limit} requests, its limit. Try again."
    return GatewayError(
        503, "overloaded", message, error_type="overloaded_error", headers=[(b"retry-after", b"1")]
    )

"""Request bodies: read with a cap, looked into without being changed, renamed without touching another byte."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from wharfinger.routing.asgi import RawHeaders, Receive
from wharfinger.routing.errors import GatewayError

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]', re.DOTALL)
"""A whole string, or a bracket. Enough to know the depth in JSON that is known to be valid."""
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
_BEYOND_TEXT = ("tools", "functions", "logprobs", "top_logprobs", "n_probs", "verbose", "return_tokens")
_NOTHING = (None, False, [], {})
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


class ClientGone(Exception):
    """The client hung up; nobody is there to be answered."""


class Peek(NamedTuple):
    """What the gateway wants to know of a request."""

    model: str
    stream: bool
    max_tokens: int | None
    max_tokens_param: str
    plain: bool = True
    """The answer is text and nothing else: no tools, no log probabilities, no engine's own details."""


async def read_body(receive: Receive, headers: RawHeaders, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        GatewayError: 413 when it is, or says it is, longer than ``limit_bytes``.
        ClientGone: the client hung up before the body was complete.
    """
    for name, value in headers:
        if name == b"content-length" and int(value) > limit_bytes:
            raise _too_large(limit_bytes)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    pieces = [body]
    size_bytes = len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size_bytes += len(pieces[-1])
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
    return b"".join(pieces)


def peek(body: bytes, prompt_param: str) -> Peek:
    """Look at the fields the gateway routes by, and refuse what no engine should be given.

    Engines take an empty prompt or a token limit of zero or less for "as much as fits": minutes of work for nothing.

    Args:
        prompt_param: the field that holds the prompt on the request's route. A missing one is left to the endpoint.

    Raises:
        GatewayError: 400 naming the field, when the body is not a JSON object, a field has the wrong type, the prompt
            is empty or a token limit is below 1.
    """
    try:
        request: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid("invalid_json", f"The body is not valid JSON: {error}.", None) from None
    if not isinstance(request, dict):
        raise _invalid("invalid_json", f"The body must be a JSON object, not {_json_type(request)}.", None)
    fields: dict[str, Any] = request
    model = fields.get("model")
    if model is None:
        raise _invalid(
            "missing_required_parameter", "The field 'model' is missing: name a running model.", "model"
        )
    if not isinstance(model, str) or not model:
        raise _invalid(
            "invalid_type", f"'model' must be a non-empty string, not {_json_type(model)}.", "model"
        )
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _invalid("invalid_type", f"'stream' must be true or false, not {_json_type(stream)}.", "stream")
    for name in _TOKEN_LIMITS:
        _check_token_limit(name, fields.get(name))
    if _is_empty(fields.get(prompt_param)):
        raise _invalid(
            "invalid_value", f"{prompt_param!r} is empty: there is nothing to answer.", prompt_param
        )
    param = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    plain = all(fields.get(name) in _NOTHING for name in _BEYOND_TEXT)
    return Peek(model, bool(stream), fields.get(param), param, plain)


def _check_token_limit(name: str, limit: object) -> None:
    if limit is None:
        return
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise _invalid("invalid_type", f"{name!r} must be an integer, not {_json_type(limit)}.", name)
    if limit < 1:
        raise _invalid("invalid_value", f"{name!r} must be at least 1, not {limit}.", name)


def _is_empty(prompt: Any) -> bool:
    """Nothing at all, or among several prompts one that is nothing. ``None`` is a missing prompt, not an empty one."""
    if prompt == "" or prompt == []:
        return True
    if not isinstance(prompt, list) or not isinstance(prompt[0], str | list):
        return False  # one prompt, as text, tokens or messages
    return "" in prompt or [] in prompt


def replace_model(body: bytes, upstream_model: str) -> bytes:
    """``body`` with the value of its top-level ``"model"`` replaced and every other byte kept.

    ``body`` is valid JSON, an object, with a string under ``"model"``: what :func:`peek` accepted.

    Raises:
        GatewayError: 400 when ``"model"`` stands in the object twice, because readers disagree which one counts.
    """
    spans = _model_values(body)
    if len(spans) != 1:
        raise _invalid("duplicate_parameter", "'model' appears twice in the body; send it once.", "model")
    start, end = spans[0]
    return body[:start] + orjson.dumps(upstream_model) + body[end:]


def _model_values(body: bytes) -> list[tuple[int, int]]:
    """Start and end of the value of each top-level ``model`` key (of a value that is a string: its whole span)."""
    spans: list[tuple[int, int]] = []
    depth = 0
    for token in _TOKEN.finditer(body):
        start, end = token.span()
        opening = body[start]
        if opening in b"{[":
            depth += 1
        elif opening in b"}]":
            depth -= 1
        elif depth == 1 and _is_model_key(body[start:end]):
            colon = _COLON.match(body, end)  # a string before a colon is a key, any other is a value
            if colon is not None:
                spans.append((colon.end(), _string_end(body, colon.end())))
    return spans


def _is_model_key(token: bytes) -> bool:
    return token == b'"model"' or (b"\\" in token and orjson.loads(token) == "model")


def _string_end(body: bytes, start: int) -> int:
    found = _TOKEN.match(body, start)
    return found.end() if found else start


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return "an empty string" if value == "" else names.get(type(value), "a number")


def _too_large(limit_bytes: int) -> GatewayError:
    message = f"The body is longer than {limit_bytes} bytes, the limit of this gateway."
    return GatewayError(413, "request_too_large", message)


def _invalid(code: str, message: str, param: str | None) -> GatewayError:
    return GatewayError(400, code, message, param=param)

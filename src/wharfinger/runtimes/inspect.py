"""Is an endpoint healthy, closed to strangers, and serving the model it should? An answer with its reason.

The one proof of an endpoint: the node that starts a runner asks for it until the runner is ready, and the control
plane asks once more, from its own side, before it routes to it.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import aiohttp

MAX_MODELS_BYTES: Final = 1 << 20
"""Longest list of models that is read."""
_TOLD_MODELS: Final = 10
_TOLD_CHARACTERS: Final = 100
"""How many names, and how much of each, an endpoint's list of models puts into a message."""
_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Verdict(StrEnum):
    """What an inspection proved."""

    READY = "ready"
    NOT_READY = "not_ready"
    """Nothing wrong is proven; ask again."""
    WRONG = "wrong"
    """Healthy, but not the endpoint it should be: asking again cannot help."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of looking at one endpoint once."""

    verdict: Verdict
    stage: str
    """``health`` or ``models``: how far the inspection came."""
    reason: str
    """A stable word. ``ok``. Not ready: ``refused``, ``timeout``, ``broken_off``, ``redirect``, ``unauthorized``,
    ``http_503`` and other statuses, ``bad_json``, ``models_too_large``. Wrong: ``endpoint_open``, ``model_mismatch``,
    ``window_too_small``."""
    detail: str
    """The reason as a clause for people, e.g. ``the endpoint serves a, b, not c``."""
    latency_s: float
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    """Tokens of a request, as far as the endpoint says."""


@dataclass(slots=True)
class _Look:
    """One inspection under way."""

    session: aiohttp.ClientSession
    base_url: str
    started: float = field(default_factory=time.monotonic)
    stage: str = "health"

    async def get(self, path: str, api_key: str | None) -> tuple[int, bytes]:
        """Status and the first bytes of the body. Redirects are answers, never followed."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        url = f"{self.base_url}{path}"
        async with self.session.get(url, headers=headers, allow_redirects=False) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_MODELS_BYTES:
                    break
            return response.status, bytes(body)

    def status(self, status: int) -> Inspection:
        """Not ready because of an HTTP status."""
        reason = (
            "unauthorized" if status in _REFUSED else "redirect" if 300 <= status < 400 else f"http_{status}"
        )
        return self.not_ready(reason)

    def not_ready(self, reason: str) -> Inspection:
        """Not ready: ask again."""
        return self._end(Verdict.NOT_READY, reason, f"the endpoint is not ready: {reason} at {self.stage}")

    def wrong(self, reason: str, detail: str, **facts: Any) -> Inspection:
        """Not what it should be."""
        return self._end(Verdict.WRONG, reason, detail, **facts)

    def ready(self, **facts: Any) -> Inspection:
        """All is as it should be."""
        return self._end(Verdict.READY, "ok", "the endpoint is ready", **facts)

    def _end(self, verdict: Verdict, reason: str, detail: str, **facts: Any) -> Inspection:
        return Inspection(verdict, self.stage, reason, detail, time.monotonic() - self.started, **facts)


async def inspect(
    session: aiohttp.ClientSession,
    base_url: str,
    expected_model: str,
    *,
    api_key: str | None,
    context_tokens: int | None = None,
    timeout_s: float = 5.0,
) -> Inspection:
    """Ask ``/health`` and then ``/v1/models`` of an OpenAI-compatible endpoint, without the key and with it.

    Redirects are never followed: they would prove another origin and hand it the key. All calls share ``timeout_s``.

    Args:
        session: makes the calls.
        base_url: the endpoint, without a slash at its end.
        expected_model: the name it must serve.
        api_key: the key it must demand; ``None`` for an endpoint that has none.
        context_tokens: the window a request must get, where the endpoint tells it.
        timeout_s: seconds for the whole inspection.
    """
    look = _Look(session, base_url)
    try:
        async with asyncio.timeout(timeout_s):
            return await _look(look, expected_model, api_key, context_tokens)
    except TimeoutError:
        return look.not_ready("timeout")
    except aiohttp.ClientConnectorError:
        return look.not_ready("refused")
    except (aiohttp.ClientError, OSError):
        return look.not_ready("broken_off")


async def _look(look: _Look, expected: str, api_key: str | None, context_tokens: int | None) -> Inspection:
    status, _ = await look.get("/health", api_key)
    if status != HTTPStatus.OK:
        return look.status(status)
    look.stage = "models"
    if api_key is not None:
        status, _ = await look.get("/v1/models", None)
        if status < 300:
            return look.wrong(
                "endpoint_open", f"the endpoint answered {status} without its API key; it must refuse"
            )
        if status not in _REFUSED:
            return look.status(status)
    status, body = await look.get("/v1/models", api_key)
    if status != HTTPStatus.OK:
        return look.status(status)
    if len(body) > MAX_MODELS_BYTES:
        return look.not_ready("models_too_large")
    served = _served(body)
    if served is None:
        return look.not_ready("bad_json")
    models = tuple(sorted(served))
    if expected not in served:
        return look.wrong(
            "model_mismatch",
            f"the endpoint serves {_told(models)}, not {expected}",
            models=models,
        )
    window = _window(served[expected])
    if window is not None and context_tokens is not None and window < context_tokens:
        return look.wrong(
            "window_too_small",
            f"the engine gives a request {window} tokens, not the {context_tokens} that were placed",
            models=models,
            max_model_len=window,
        )
    return look.ready(models=models, max_model_len=window)


def _served(body: bytes) -> dict[str, dict[str, Any]] | None:
    """Entries of a list of models by their ids; ``None`` when it is no such list."""
    try:
        entries = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    return {str(entry["id"]): entry for entry in entries if entry.get("id")}


def _told(models: tuple[str, ...]) -> str:
    """Names of models in words, however many and long they are."""
    if not models:
        return "nothing"
    shown = ", ".join(
        name if len(name) <= _TOLD_CHARACTERS else name[: _TOLD_CHARACTERS - 1] + "…"
        for name in models[:_TOLD_MODELS]
    )
    return shown if len(models) <= _TOLD_MODELS else f"{shown} and {len(models) - _TOLD_MODELS} more"


def _window(entry: dict[str, Any]) -> int | None:
    """The window an endpoint says it serves: vLLM's ``max_model_len`` or llama.cpp's ``meta.n_ctx``."""
    direct = entry.get("max_model_len")
    if isinstance(direct, int):
        return direct
    meta = entry.get("meta")
    found = meta.get("n_ctx") if isinstance(meta, dict) else None
    return found if isinstance(found, int) else None

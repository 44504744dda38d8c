"""Is an endpoint healthy, and does it serve the model it should? An answer with its reason, never a bare bool."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

import httpx

_MAX_MODELS_BYTES = 1 << 20


class Verdict(StrEnum):
    """What an inspection proved."""

    READY = "ready"
    NOT_READY = "not_ready"
    """Nothing wrong is proven; ask again."""
    MODEL_MISMATCH = "model_mismatch"
    """Healthy, but it serves something else: asking again cannot help."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of looking at one endpoint once."""

    verdict: Verdict
    stage: str
    """``health`` or ``models``: how far the inspection came."""
    reason: str
    """``ok``, ``refused``, ``timeout``, ``redirect``, ``unauthorized``, ``http_503``, ``bad_json``, …"""
    latency_s: float
    models: tuple[str, ...] = ()
    max_model_len: int | None = None


async def inspect(
    base_url: str, expected_model: str, *, api_key: str | None = None, timeout_s: float = 5.0
) -> Inspection:
    """Ask ``/health`` and then ``/v1/models`` of an OpenAI-compatible endpoint.

    Redirects are never followed: they would prove another origin and hand it the key. Both calls share
    ``timeout_s`` seconds.
    """
    started = time.monotonic()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def result(verdict: Verdict, stage: str, reason: str, **facts: object) -> Inspection:
        return Inspection(verdict, stage, reason, time.monotonic() - started, **facts)  # type: ignore[arg-type]

    stage = "health"
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=timeout_s, trust_env=False
    ) as client:
        try:
            health = await client.get("/health")
            if health.status_code != 200:
                return result(Verdict.NOT_READY, stage, _status_reason(health.status_code))
            stage = "models"
            listing = await client.get("/v1/models")
        except httpx.TimeoutException:
            return result(Verdict.NOT_READY, stage, "timeout")
        except httpx.ConnectError:
            return result(Verdict.NOT_READY, stage, "refused")
        except httpx.TransportError as error:
            return result(Verdict.NOT_READY, stage, type(error).__name__.lower())
    if listing.status_code != 200:
        return result(Verdict.NOT_READY, stage, _status_reason(listing.status_code))
    if len(listing.content) > _MAX_MODELS_BYTES:
        return result(Verdict.NOT_READY, stage, "models_too_large")
    try:
        entries = [entry for entry in listing.json()["data"] if isinstance(entry, dict) and entry.get("id")]
    except (ValueError, KeyError, TypeError):
        return result(Verdict.NOT_READY, stage, "bad_json")
    models = tuple(sorted({str(entry["id"]) for entry in entries}))
    if expected_model not in models:
        return result(Verdict.MODEL_MISMATCH, stage, "model_mismatch", models=models)
    served = next(entry for entry in entries if entry["id"] == expected_model)
    return result(Verdict.READY, stage, "ok", models=models, max_model_len=_context_of(served))


def _status_reason(status: int) -> str:
    if status in (401, 403):
        return "unauthorized"
    return "redirect" if 300 <= status < 400 else f"http_{status}"


def _context_of(entry: dict[str, object]) -> int | None:
    """The window an endpoint says it serves: vLLM's ``max_model_len`` or llama.cpp's ``meta.n_ctx``."""
    direct = entry.get("max_model_len")
    if isinstance(direct, int):
        return direct
    meta = entry.get("meta")
    found = meta.get("n_ctx") if isinstance(meta, dict) else None
    return found if isinstance(found, int) else None

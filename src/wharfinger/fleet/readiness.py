"""From a runner that has loaded to one that is proven: its endpoint is as it must be, and it has computed once."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from wharfinger.fleet.agent import RunnerSpec
from wharfinger.runtimes.inspect import Verdict, inspect

_RETRY_S: Final = 0.05
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)
"""The deadline of :func:`prove` is the only one."""


class NotServing(Exception):
    """The runner does not serve as it must. ``code`` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def prove(session: aiohttp.ClientSession, base_url: str, spec: RunnerSpec, deadline_s: float) -> None:
    """Return once the endpoint serves ``spec`` to the holder of its key and has computed one token or embedding.

    Raises:
        NotServing: ``endpoint_open``, ``model_mismatch``, ``window_too_small``; ``warmup_failed``;
            ``runner_wedged`` when it takes longer than ``deadline_s`` seconds.
    """
    obstacle = "the endpoint does not answer"
    try:
        async with asyncio.timeout(deadline_s):
            while (found := await _obstacle(session, base_url, spec)) is not None:
                obstacle = found
                await asyncio.sleep(_RETRY_S)
            obstacle = "its first computation does not end"
            await _warm_up(session, base_url, spec)
    except TimeoutError:
        raise NotServing(
            "runner_wedged",
            f"the runner loaded but did not serve within {deadline_s:g} s and was ended: {obstacle}",
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotServing("warmup_failed", f"the endpoint broke off its first answer: {error}") from None


async def _obstacle(session: aiohttp.ClientSession, base_url: str, spec: RunnerSpec) -> str | None:
    """What the endpoint is not ready for; ``None`` when it is."""
    found = await inspect(
        session,
        base_url,
        spec.model_id,
        api_key=spec.api_key.get_secret_value(),
        context_tokens=spec.context_tokens,
    )
    if found.verdict is Verdict.WRONG:
        raise NotServing(found.reason, found.detail)
    return None if found.verdict is Verdict.READY else found.detail


async def _warm_up(session: aiohttp.ClientSession, base_url: str, spec: RunnerSpec) -> None:
    """Compute once: one token, or one embedding.

    Raises:
        NotServing: ``warmup_failed``.
    """
    path = "/v1/embeddings" if spec.embedding else "/v1/completions"
    body: dict[str, Any] = {"model": spec.model_id}
    body |= {"input": "ready"} if spec.embedding else {"prompt": "ready", "max_tokens": 1}
    headers = {"Authorization": f"Bearer {spec.api_key.get_secret_value()}"}
    async with session.post(
        f"{base_url}{path}", json=body, headers=headers, timeout=_NO_TIMEOUT, allow_redirects=False
    ) as response:
        if response.status != HTTPStatus.OK:
            text = (await response.text(errors="replace"))[:300]
            raise NotServing(
                "warmup_failed", f"the first request to {path} was answered {response.status}: {text}"
            )

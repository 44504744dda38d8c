"""Proof that a runner's endpoint serves the right model to the holder of the key, and to nobody else."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import aiohttp

_RETRY_S: Final = 0.05
_REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0)


class NotServing(Exception):
    """The endpoint answers, but not as it must. ``code`` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Endpoint:
    """One OpenAI-compatible endpoint under test. Deadlines are the caller's."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, api_key: str) -> None:
        self._session = session
        self._base_url = base_url
        self._headers = {"Authorization": f"Bearer {api_key}"}

    async def wait_healthy(self) -> None:
        """Return once ``/health`` answers 200, asking again for ever."""
        while True:
            try:
                async with self._session.get(
                    f"{self._base_url}/health", timeout=_REQUEST_TIMEOUT
                ) as response:
                    if response.status == HTTPStatus.OK:
                        return
            except (aiohttp.ClientError, OSError):
                pass  # not listening yet, or no descriptor left for now; the caller's deadline ends this
            await asyncio.sleep(_RETRY_S)

    async def check_identity(self, model_id: str, context_tokens: int) -> None:
        """The key is demanded, ``model_id`` is what is served, and a request gets its whole window.

        Raises:
            NotServing: ``endpoint_open``, ``model_mismatch``.
        """
        status, _ = await self._get("/v1/models", {})
        if status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise NotServing(
                "endpoint_open", f"the endpoint answered {status} without its API key; it must refuse"
            )
        status, body = await self._get("/v1/models", self._headers)
        models = body.get("data") if isinstance(body, dict) else None
        if status != HTTPStatus.OK or not isinstance(models, list):
            raise NotServing("model_mismatch", f"/v1/models answered {status} without a list of models")
        by_id = {str(model.get("id")): model for model in models if isinstance(model, dict)}
        if model_id not in by_id:
            served = ", ".join(sorted(by_id)) or "nothing"
            raise NotServing("model_mismatch", f"the endpoint serves {served}, not {model_id}")
        meta = by_id[model_id].get("meta")
        window = meta.get("n_ctx") if isinstance(meta, dict) else None
        if isinstance(window, int) and window < context_tokens:
            raise NotServing(
                "model_mismatch",
                f"the engine gives a request {window} tokens, not the {context_tokens} that were placed",
            )

    async def warm_up(self, model_id: str, *, embedding: bool) -> None:
        """Compute once: one token, or one embedding.

        Raises:
            NotServing: ``warmup_failed``.
        """
        path = "/v1/embeddings" if embedding else "/v1/completions"
        body: dict[str, Any] = {"model": model_id}
        body |= {"input": "ready"} if embedding else {"prompt": "ready", "max_tokens": 1}
        async with self._session.post(
            f"{self._base_url}{path}", json=body, headers=self._headers, timeout=_REQUEST_TIMEOUT
        ) as response:
            if response.status != HTTPStatus.OK:
                text = (await response.text(errors="replace"))[:300]
                raise NotServing(
                    "warmup_failed", f"the first request to {path} was answered {response.status}: {text}"
                )

    async def _get(self, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        async with self._session.get(
            f"{self._base_url}{path}", headers=headers, timeout=_REQUEST_TIMEOUT
        ) as response:
            try:
                return response.status, await response.json(content_type=None)
            except ValueError:
                return response.status, None

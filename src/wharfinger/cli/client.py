"""The CLI's way to a control plane over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from wharfinger.cli.errors import refused
from wharfinger.cli.location import local_key, local_url, named_key, named_url
from wharfinger.cli.output import CliError, Exit
from wharfinger.cli.settings import settings_from


class Client:
    """A control plane over HTTP.

    Its address is ``WHARF_URL``, or where the control plane of the data directory listens. Its key is
    ``WHARF_API_KEY``, or the admin key of the data directory, which is sent to that directory's control plane and to
    no address named otherwise. ``url`` is that control plane's own; with it, the environment is not asked.

    Raises:
        CliError: a setting is wrong. That nothing answers is told by the first request.
    """

    def __init__(self, data_dir: Path | None = None, *, url: str | None = None) -> None:
        self.data_dir = data_dir or settings_from().data_dir
        self._named = url or named_url()
        key = None if url else named_key()
        if key is None and (url or self._named is None):
            key = local_key(self.data_dir)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(30.0, read=60.0), trust_env=False)

    @property
    def url(self) -> str:
        """Where the control plane is now; it may come back elsewhere.

        Raises:
            CliError: none runs.
        """
        return (self._named or local_url(self.data_dir)).rstrip("/")

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """GET a JSON document; query values of ``None`` are left out."""
        return self._json("GET", path, params=_query(params))

    def post(
        self, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """POST a JSON document."""
        return self._json("POST", path, json=body, headers=headers)

    def delete(self, path: str, **params: Any) -> dict[str, Any]:
        """DELETE a resource; query values of ``None`` are left out."""
        return self._json("DELETE", path, params=_query(params))

    def problems(self) -> list[str]:
        """What ``/readyz`` says is wrong; empty when the control plane can work."""
        url = self.url
        with _reaching(url):
            response = self._http.get(f"{url}/readyz")
        document = _document(response, (200, 503))
        return [] if response.status_code == 200 else document.get("problems") or ["not ready"]

    @contextmanager
    def stream(
        self, method: str, path: str, *, read_s: float | None, **options: Any
    ) -> Iterator[httpx.Response]:
        """An answer that comes in pieces; ``read_s`` is how long it may be silent.

        Raises:
            CliError: refused, or nothing answers.
            httpx.TransportError: the stream broke.
        """
        url = self.url
        request = self._http.build_request(
            method, url + path, timeout=httpx.Timeout(30.0, read=read_s), **options
        )
        with _reaching(url):
            response = self._http.send(request, stream=True)
        try:
            if response.status_code != 200:
                response.read()
                raise refused(response)
            yield response
        finally:
            response.close()

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        url = self.url
        with _reaching(url):
            response = self._http.request(method, url + path, **options)
        if response.status_code >= 400:
            raise refused(response)
        return _document(response, (response.status_code,))


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise CliError(
            f"no control plane answers at {url}. Start one with `wharf up`, or name it in WHARF_URL.",
            Exit.UNREACHABLE,
        ) from error
    except httpx.TransportError as error:
        raise CliError(
            f"the control plane at {url} did not answer ({type(error).__name__})", Exit.UNREACHABLE
        ) from error


def _document(response: httpx.Response, accepted: tuple[int, ...]) -> dict[str, Any]:
    if response.status_code not in accepted:
        raise refused(response)
    try:
        return response.json()
    except ValueError as error:
        raise CliError(
            f"{response.url} answers, but not as a control plane does; is WHARF_URL right?", Exit.UNREACHABLE
        ) from error


def _query(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def path_of(name: str, *, keep: str = "") -> str:
    """A name as one segment of a path; model ids keep their ``/`` (``keep="/"``)."""
    segments = quote(name, safe=keep).split("/")
    # Dot segments would be taken out on the way, and the request would mean another resource.
    return "/".join(s.replace(".", "%2E") if s in (".", "..") else s for s in segments)

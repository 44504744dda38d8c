"""The CLI's way to a control plane: where it is, with which key, and what its errors mean."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from wharfinger.cli.output import CliError, Exit
from wharfinger.settings import DEFAULT_PORT, Settings

_EXIT_BY_STATUS = {
    400: Exit.REFUSED,
    401: Exit.UNAUTHORIZED,
    403: Exit.UNAUTHORIZED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    422: Exit.USAGE,
    503: Exit.REFUSED,
}
_RECONNECT_S = 1.0
_RECONNECT_FOR_S = 60.0


class Client:
    """A control plane over HTTP.

    Its address is ``WHARF_URL``, or what the control plane of the data directory wrote there; its key is
    ``WHARF_API_KEY``, or the ``admin.key`` file of the data directory.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        self.data_dir = data_dir or Settings().data_dir
        self.url = os.environ.get("WHARF_URL") or self._local_url()
        key = os.environ.get("WHARF_API_KEY") or self._local_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(
            base_url=self.url, headers=headers, timeout=httpx.Timeout(30.0, read=60.0), trust_env=False
        )

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """GET a JSON document; query values of ``None`` are left out."""
        return self._json("GET", path, params=_query(params))

    def post(
        self, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """POST a JSON document."""
        return self._json("POST", path, json=body, headers=headers)

    def delete(self, path: str) -> dict[str, Any]:
        """DELETE a resource."""
        return self._json("DELETE", path)

    def follow(self, operation_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events of an operation as ``(name, data)``, to its end. Reconnects from the last one seen.

        The last item is ``("end", operation)``. Interrupting it never touches the operation.
        """
        last, lost_since = 0, None
        while True:
            try:
                for name, sequence, data in self._stream(operation_id, last):
                    lost_since = None
                    last = sequence or last
                    yield name, data
                    if name == "end":
                        return
            except (httpx.TransportError, CliError) as error:
                if isinstance(error, CliError) and error.code is not Exit.UNREACHABLE:
                    raise
                now = time.monotonic()
                lost_since = lost_since or now
                if now - lost_since > _RECONNECT_FOR_S:
                    raise CliError(
                        f"lost the control plane for {_RECONNECT_FOR_S:.0f} s; the work goes on. "
                        f"Watch it again with: wharf ops watch {operation_id}",
                        Exit.UNREACHABLE,
                    ) from error
            time.sleep(_RECONNECT_S)

    def _stream(self, operation_id: str, last: int) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        path = f"/api/v1/operations/{operation_id}/events"
        timeout = httpx.Timeout(30.0, read=None)
        with self.http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                raise _refused(response)
            name, sequence = "message", None
            for line in response.iter_lines():
                key, _, value = line.partition(": ")
                if key == "event":
                    name = value
                elif key == "id":
                    sequence = int(value)
                elif key == "data":
                    yield name, sequence, json.loads(value)
                    name, sequence = "message", None

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self.http.request(method, path, **options)
        except httpx.ConnectError as error:
            raise CliError(
                f"no control plane answers at {self.url}. Start one with `wharf up`, or name it in WHARF_URL.",
                Exit.UNREACHABLE,
            ) from error
        except httpx.TransportError as error:
            raise CliError(
                f"the control plane at {self.url} did not answer ({type(error).__name__})", Exit.UNREACHABLE
            ) from error
        if response.status_code >= 400:
            raise _refused(response)
        return response.json()

    def _local_url(self) -> str:
        written = self.data_dir / "endpoint"
        try:
            return written.read_text().strip()
        except OSError:
            return f"http://127.0.0.1:{DEFAULT_PORT}"

    def _local_key(self) -> str | None:
        try:
            return (self.data_dir / "admin.key").read_text().strip()
        except OSError:
            return None


def _query(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _refused(response: httpx.Response) -> CliError:
    try:
        error = response.json()["error"]
        message = error["message"]
    except (ValueError, KeyError, TypeError):
        error, message = {}, f"HTTP {response.status_code} from {response.url.path}"
    code = _EXIT_BY_STATUS.get(response.status_code, Exit.FAILED)
    if code is Exit.UNAUTHORIZED:
        message += " (the CLI sends WHARF_API_KEY, or admin.key of the data directory)"
    return CliError(message, code, document=error)

"""Sending a request to an endpoint, and what can go wrong told apart by one question: may it have been accepted?"""

from __future__ import annotations

import functools

import aiohttp
from yarl import URL

from wharfinger.routing.headers import Identity, towards_upstream
from wharfinger.routing.targets import Target

IDLE_CONNECTION_S = 4.0
"""uvicorn (vLLM, SGLang) and cpp-httplib (llama.cpp) close idle connections after 5 s. We let go before they do, or
a request could meet a connection that is just being closed, and nobody could tell whether it was accepted."""


class CouldNotConnect(Exception):
    """No connection was made: nothing was sent, so another target may be tried."""


class Disconnected(Exception):
    """The connection ended early. The endpoint may have accepted the request: it is not sent again."""


class UpstreamClient:
    """Pooled connections to the endpoints.

    The pool holds as many connections as the gateway carries requests, so a request never waits for one.
    """

    def __init__(self, max_connections: int, connect_timeout_s: float) -> None:
        self._max_connections = max_connections
        # No total timeout: it would cut a long answer. Silence is the gateway's own watch.
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def startup(self) -> None:
        """Open the pool; it belongs to the running event loop."""
        connector = aiohttp.TCPConnector(
            limit=self._max_connections, limit_per_host=0, keepalive_timeout=IDLE_CONNECTION_S
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def shutdown(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self, target: Target, path: str, body: bytes, identity: Identity
    ) -> aiohttp.ClientResponse:
        """Send once; the answer's head is there, its body is not read yet. The caller closes the response.

        Raises:
            CouldNotConnect: before anything was sent.
            Disconnected: after the connection was made.
        """
        if self._session is None:
            raise RuntimeError("the gateway is not started: call startup() on the serving event loop first")
        try:
            return await self._session.post(
                _url(target.base_url, path),
                data=body,
                headers=towards_upstream(target, identity),
                allow_redirects=False,  # a redirect would take the credential elsewhere
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError) as error:
            raise CouldNotConnect(type(error).__name__) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Disconnected(type(error).__name__) from None


async def read_some(response: aiohttp.ClientResponse) -> bytes:
    """What has arrived of the body, at least one byte; empty at its end.

    Raises:
        Disconnected: the connection ended before the body did.
    """
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise Disconnected(type(error).__name__) from None


@functools.lru_cache(maxsize=1024)
def _url(base_url: str, path: str) -> URL:
    return URL(base_url.rstrip("/") + path)

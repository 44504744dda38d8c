"""Turns request headers into a principal."""

from __future__ import annotations

from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from wharfinger.access.keys import KeyStore
from wharfinger.access.principals import ANONYMOUS_ADMIN, Principal
from wharfinger.access.secrets import InstallationSecret
from wharfinger.settings import is_loopback

SESSION_COOKIE = "wharf_session"


def same_origin(origin: str | None, host: str | None) -> bool:
    """Whether a browser's request came from one of our own pages. No ``Origin`` at all is not ours."""
    return bool(origin) and urlsplit(origin).netloc == host


class Authenticator:
    """Checks ``Authorization: Bearer KEY`` first, then the dashboard's session cookie."""

    def __init__(self, keys: KeyStore, secret: InstallationSecret, *, disabled: bool = False) -> None:
        self.keys = keys
        self.secret = secret
        self.disabled = disabled

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal | None:
        """The caller, or ``None``. ``headers`` are ASGI's: lower-case names, raw bytes."""
        headers = list(headers)
        if self.disabled:
            return ANONYMOUS_ADMIN if _is_local(headers) else None
        cookies: bytes | None = None
        for name, value in headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    return None
                return self.keys.check(key.strip().decode("latin-1"))
            if name == b"cookie":
                cookies = value
        return self._from_cookie(cookies) if cookies else None

    def still_valid(self, principal: Principal) -> bool:
        """Whether what let this caller in still would: for answers that go on for long. No query, no header needed."""
        return self.disabled or self.keys.by_id(principal.key_id) == principal

    def _from_cookie(self, cookies: bytes) -> Principal | None:
        try:
            morsel = SimpleCookie(cookies.decode("latin-1")).get(SESSION_COOKIE)
        except CookieError:
            return None
        key_id = self.secret.session_key_id(morsel.value) if morsel else None
        return self.keys.by_id(key_id) if key_id else None


def _is_local(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request without any key may be let in: sent to a loopback name, and by no foreign web page.

    A foreign name that resolves here (DNS rebinding) is no loopback name; plain clients send no ``Origin``.
    """
    named = {name: value.decode("latin-1") for name, value in headers}
    host, origin = named.get(b"host", ""), named.get(b"origin")
    return is_loopback(urlsplit(f"//{host}").hostname or "") and (origin is None or same_origin(origin, host))

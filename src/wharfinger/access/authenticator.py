"""Turns request headers into a principal."""

from __future__ import annotations

from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

from wharfinger.access.keys import KeyStore
from wharfinger.access.principals import ANONYMOUS_ADMIN, Principal
from wharfinger.access.secrets import InstallationSecret

SESSION_COOKIE = "wharf_session"


class Authenticator:
    """Checks ``Authorization: Bearer KEY`` first, then the dashboard's session cookie."""

    def __init__(self, keys: KeyStore, secret: InstallationSecret, *, disabled: bool = False) -> None:
        self.keys = keys
        self.secret = secret
        self.disabled = disabled

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal | None:
        """The caller, or ``None``. ``headers`` are ASGI's: lower-case names, raw bytes."""
        if self.disabled:
            return ANONYMOUS_ADMIN
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

    def _from_cookie(self, cookies: bytes) -> Principal | None:
        try:
            morsel = SimpleCookie(cookies.decode("latin-1")).get(SESSION_COOKIE)
        except CookieError:
            return None
        key_id = self.secret.session_key_id(morsel.value) if morsel else None
        return self.keys.by_id(key_id) if key_id else None

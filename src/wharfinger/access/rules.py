"""The rules all front ends share: the role an act wants, and which requests another site or a proxy may have sent."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from wharfinger.access.principals import Principal, Role
from wharfinger.settings import is_loopback

Headers = Iterable[tuple[bytes, bytes]]
"""ASGI's: lower-case names, raw bytes."""

_READING = frozenset({"GET", "HEAD"})
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})


class Forbidden(Exception):
    """What is asked for is not this caller's to do. ``reason`` is a stable code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def require_role(principal: Principal, role: Role) -> None:
    """Let pass whoever has ``role`` or a higher one.

    Raises:
        Forbidden: ``forbidden``.
    """
    if principal.role < role:
        raise Forbidden(
            "forbidden",
            f"this needs the role {role.name.lower()}; the key {principal.key_id} is {principal.role.name.lower()}",
        )


def require_same_origin(method: str, headers: Headers) -> None:
    """Refuse a request that changes something and that a page of another site may have made with our cookie.

    A key in the request is proof enough: no page has it. Browsers send ``Origin`` with everything that changes
    something, so a cookie without one is refused too; with neither, it was no browser.

    Raises:
        Forbidden: ``foreign_origin``.
    """
    named = text_headers(headers)
    if method in _READING or "authorization" in named:
        return
    origin = named.get("origin")
    if origin is None and "cookie" not in named:
        return
    if not same_origin(origin, named.get("host")):
        shown = origin or "an unknown origin"
        raise Forbidden("foreign_origin", f"requests from {shown} are not accepted here without a key")


def same_origin(origin: str | None, host: str | None) -> bool:
    """Whether an ``Origin`` is that of our own pages. No origin is not ours."""
    return bool(origin) and bool(host) and _netloc(origin or "") == host


def _netloc(url: str) -> str:
    """Host and port of a URL as it is written; nothing when it is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def is_local(headers: Headers) -> bool:
    """Whether somebody on this machine asks, as far as headers can tell: by a loopback name, through no proxy, from no
    page of another site.

    A foreign name that resolves here (DNS rebinding) is no loopback name; plain clients send no ``Origin``. What a
    proxy on this machine passes on may come from anywhere.
    """
    named = text_headers(headers)
    if any(name in _OF_PROXIES or name.startswith("x-forwarded-") for name in named):
        return False
    host, origin = named.get("host", ""), named.get("origin")
    return is_loopback(_host_name(host)) and (origin is None or same_origin(origin, host))


def _host_name(host: str) -> str:
    """The name or address in a ``Host`` header, without its port; nothing when there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def text_headers(headers: Headers) -> dict[str, str]:
    """Headers by name as text; of several of one name the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def bearer_key(headers: Headers) -> str | None:
    """The key that a request was sent with; ``None`` when there is none."""
    scheme, _, key = dict(headers).get(b"authorization", b"").decode("latin-1").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None

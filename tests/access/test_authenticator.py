"""Who a request's headers say it is: keys, cookies, origins, and what ``--no-auth`` lets in."""

from __future__ import annotations

import asyncio

import pytest

from wharfinger.access.authenticator import SESSION_COOKIE, Authenticator
from wharfinger.access.keys import KeyStore
from wharfinger.access.principals import ANONYMOUS_ADMIN, Role
from wharfinger.access.secrets import InstallationSecret
from wharfinger.access.sessions import SessionStore
from wharfinger.store.database import Database

HOST = "127.0.0.1:7300"
OURS = f"http://{HOST}"


def headers(**values: str) -> list[tuple[bytes, bytes]]:
    """ASGI headers to our own address; ``_`` stands for ``-``."""
    named = {"host": HOST, **values}
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in named.items()]


def cookie(token: str) -> str:
    return f"theme=dark; {SESSION_COOKIE}={token}"


@pytest.fixture
def authenticator(database: Database, secret: InstallationSecret) -> Authenticator:
    return Authenticator(KeyStore(database), SessionStore(database, secret))


@pytest.fixture
def unguarded(database: Database, secret: InstallationSecret) -> Authenticator:
    return Authenticator(KeyStore(database), SessionStore(database, secret), disabled=True)


async def test_a_cookie_counts_only_in_requests_of_our_own_pages(authenticator: Authenticator) -> None:
    record, _ = await authenticator.keys.create("k", Role.VIEWER)
    shown = cookie(authenticator.sessions.begin(record.key_id))
    for own in (headers(cookie=shown), headers(cookie=shown, origin=OURS)):
        principal = authenticator.authenticate(own)
        assert principal is not None
        assert principal.key_id == record.key_id
        assert principal.session is not None
    for origin in ("http://evil.example", "null", "http://127.0.0.1:7301", "http://[", ""):
        assert authenticator.authenticate(headers(cookie=shown, origin=origin)) is None


async def test_a_key_counts_wherever_it_comes_from(authenticator: Authenticator) -> None:
    record, key = await authenticator.keys.create("k", Role.OPERATOR)
    principal = authenticator.authenticate(
        headers(authorization=f"bearer {key}", origin="http://evil.example")
    )
    assert principal is not None
    assert (principal.key_id, principal.role, principal.session) == (record.key_id, Role.OPERATOR, None)


async def test_a_wrong_key_is_not_made_good_by_a_cookie(authenticator: Authenticator) -> None:
    record, key = await authenticator.keys.create("k", Role.VIEWER)
    shown = cookie(authenticator.sessions.begin(record.key_id))
    for wrong in ("Bearer wrong", f"Basic {key}", key, "Bearer", "\xe9"):
        assert authenticator.authenticate(headers(authorization=wrong, cookie=shown)) is None


@pytest.mark.parametrize("others", ["theme=a b", 'foo={"a":1}', "no value", "a=\xe9", "=;;", 'b="'])
async def test_cookies_of_other_applications_on_this_host_do_not_matter(
    authenticator: Authenticator, others: str
) -> None:
    """Cookies know no port: what else runs on this machine has set them."""
    record, _ = await authenticator.keys.create("k", Role.VIEWER)
    ours = cookie(authenticator.sessions.begin(record.key_id))
    for shown in (f"{others}; {ours}", f"{ours}; {others}"):
        principal = authenticator.authenticate(headers(cookie=shown))
        assert principal is not None
        assert principal.key_id == record.key_id


@pytest.mark.parametrize("nonsense", ['wharf_session="a.1.\\351"', "wharf_session=\xe9", "=;=;", "\x00", "a"])
async def test_a_broken_cookie_is_none(authenticator: Authenticator, nonsense: str) -> None:
    assert authenticator.authenticate(headers(cookie=nonsense)) is None


async def test_what_goes_on_for_long_ends_with_the_key(authenticator: Authenticator) -> None:
    record, key = await authenticator.keys.create("k", Role.VIEWER)
    by_key = authenticator.authenticate(headers(authorization=f"Bearer {key}"))
    by_cookie = authenticator.authenticate(
        headers(cookie=cookie(authenticator.sessions.begin(record.key_id)))
    )
    assert by_key is not None
    assert by_cookie is not None
    assert authenticator.still_valid(by_key)
    assert authenticator.still_valid(by_cookie)
    await authenticator.keys.revoke(record.key_id)
    assert not authenticator.still_valid(by_key)
    assert not authenticator.still_valid(by_cookie)


async def test_what_goes_on_for_long_ends_with_the_session(authenticator: Authenticator) -> None:
    record, key = await authenticator.keys.create("k", Role.VIEWER)
    by_key = authenticator.authenticate(headers(authorization=f"Bearer {key}"))
    shown = headers(cookie=cookie(authenticator.sessions.begin(record.key_id)))
    by_cookie = authenticator.authenticate(shown)
    assert by_key is not None
    assert by_cookie is not None
    assert by_cookie.session is not None
    await authenticator.sessions.end(by_cookie.session)
    assert authenticator.authenticate(shown) is None
    assert not authenticator.still_valid(by_cookie)
    assert authenticator.still_valid(by_key)


@pytest.mark.parametrize("change", ["revoke", "end"])
async def test_a_refresh_under_way_undoes_no_revocation(
    authenticator: Authenticator, database: Database, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The loop's own read may have begun before: what it saw must not come last."""
    record, _ = await authenticator.keys.create("k", Role.VIEWER)
    shown = headers(cookie=cookie(authenticator.sessions.begin(record.key_id)))
    principal = authenticator.authenticate(shown)
    assert principal is not None
    session = principal.session
    assert session is not None
    has_read, goes_on = asyncio.Event(), asyncio.Event()
    read = database.read

    class HeldAtItsEnd:
        """A read that has its answer and is not scheduled for a while."""

        def __init__(self) -> None:
            self._inner = read()

        async def __aenter__(self) -> object:
            return await self._inner.__aenter__()

        async def __aexit__(self, *error: object) -> object:
            has_read.set()
            await goes_on.wait()
            return await self._inner.__aexit__(*error)  # type: ignore[arg-type]

    async def take_back() -> None:
        if change == "revoke":
            await authenticator.keys.revoke(record.key_id)
        else:
            await authenticator.sessions.end(session)

    store = authenticator.keys if change == "revoke" else authenticator.sessions
    monkeypatch.setattr(database, "read", HeldAtItsEnd)
    stale = asyncio.ensure_future(store.refresh())
    await has_read.wait()
    monkeypatch.undo()
    taken_back = asyncio.ensure_future(take_back())
    # Until it is done, or waits for its turn.
    while not taken_back.done() and not store._refreshing._waiters:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(stale, taken_back)
    assert authenticator.authenticate(shown) is None


@pytest.mark.parametrize("host", ["127.0.0.1:7300", "localhost:7300", "localhost", "[::1]:7300"])
async def test_without_authentication_this_machine_is_let_in(unguarded: Authenticator, host: str) -> None:
    assert unguarded.authenticate(headers(host=host)) is ANONYMOUS_ADMIN
    assert unguarded.authenticate(headers(host=host, origin=f"http://{host}")) is ANONYMOUS_ADMIN
    assert unguarded.authenticate(headers(host=host, origin="http://evil.example")) is None


@pytest.mark.parametrize(
    "host", ["", "[", "evil.example", "evil.example:7300", "127.0.0.1.evil.example", "0.0.0.0"]
)
async def test_without_authentication_no_other_name_is(unguarded: Authenticator, host: str) -> None:
    assert unguarded.authenticate(headers(host=host)) is None


@pytest.mark.parametrize(
    "header", ["forwarded", "via", "x_real_ip", "x_forwarded_for", "x_forwarded_host", "x_forwarded_proto"]
)
async def test_without_authentication_nothing_comes_through_a_proxy(
    unguarded: Authenticator, header: str
) -> None:
    assert unguarded.authenticate(headers(**{header: "203.0.113.9"})) is None

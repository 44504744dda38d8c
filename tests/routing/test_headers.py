from __future__ import annotations

import pytest

from wharfinger.routing.headers import Identity, identify, towards_client, towards_upstream
from wharfinger.routing.targets import Target

TARGET = Target("t", "m", "m", "http://h", api_key="sk-target")
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("value", [b"a", b"!" * 128, b"job/7:retry=1"])
def test_a_well_formed_request_id_is_kept(value: bytes) -> None:
    assert identify([(b"x-request-id", value)]).request_id == value.decode()


@pytest.mark.parametrize("value", [b"", b"a" * 129, b"two words", b"caf\xc3\xa9", b"tab\t"])
def test_another_request_id_is_replaced(value: bytes) -> None:
    made = identify([(b"x-request-id", value)]).request_id
    assert len(made) == 32
    assert int(made, 16) >= 0


def test_a_trace_passes_only_when_it_is_well_formed() -> None:
    assert identify([(b"traceparent", TRACE), (b"tracestate", b"a=1")])[1:] == (TRACE.decode(), "a=1")
    assert identify([(b"traceparent", b"00-xyz"), (b"tracestate", b"a=1")])[1:] == (None, None)


def test_only_our_own_headers_reach_the_endpoint() -> None:
    sent = towards_upstream(TARGET, Identity("id-1", TRACE.decode(), None))
    assert sent == {
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": "wharfinger",
        "X-Request-ID": "id-1",
        "Authorization": "Bearer sk-target",
        "traceparent": TRACE.decode(),
    }
    assert "Authorization" not in towards_upstream(
        Target("t", "m", "m", "http://h"), Identity("id-1", None, None)
    )


def test_what_belongs_to_the_hop_or_names_the_credential_stays_here() -> None:
    raw = [
        (b"Content-Type", b"application/json"),
        (b"Connection", b"keep-alive, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Content-Length", b"9"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Set-Cookie", b"a=b"),
        (b"X-Request-ID", b"the-engines-own"),
        (b"X-Debug", b"Bearer sk-target"),
        (b"Retry-After", b"3"),
    ]
    assert towards_client(raw, TARGET, "id-1") == [
        (b"x-request-id", b"id-1"),
        (b"content-type", b"application/json"),
        (b"retry-after", b"3"),
    ]

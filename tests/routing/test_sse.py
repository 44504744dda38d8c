from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharfinger.routing import sse


@given(
    st.lists(st.sampled_from([b"data: a\n\n", b"data: b\r\n\r\n", b": c\n\n", b"data: half", b"\n", b"x"]))
)
def test_nothing_is_lost_and_only_whole_events_pass(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    passed, held = sse.split_events(data)
    assert passed + held == data
    assert not passed or passed.endswith((b"\n\n", b"\r\n\r\n"))
    assert b"\n\n" not in held
    assert b"\r\n\r\n" not in held


def test_an_endless_event_is_passed_on() -> None:
    data = b"data: " + b"x" * sse.HELD_LIMIT_BYTES
    assert sse.split_events(data) == (data, b"")


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\n\n", True),
        (b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', True),
        (b'data: {"content":"data: [DONE]"}\n\n', False),
        (b'data: {"content":"\\ndata: [DONE]"}\n\n', False),
        (b'data: {"content":"plain"}\n\n', False),
    ],
)
def test_only_a_done_event_ends_the_stream(events: bytes, ends: bool) -> None:
    assert sse.ends_stream(events) is ends

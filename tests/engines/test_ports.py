"""Ports for endpoints: free, in our range, and an honest no."""

from __future__ import annotations

import socket

import pytest

from wharfinger.engines.base import EngineError
from wharfinger.engines.ports import LOOPBACK, PORTS, choose_port, is_free


def test_the_range_is_below_every_ephemeral_range() -> None:
    assert (PORTS.start, PORTS.stop - 1) == (24000, 31999)


def test_a_chosen_port_is_free_and_a_held_one_is_not() -> None:
    port = choose_port()
    assert port in PORTS
    assert is_free(port)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)
    assert is_free(port)


def test_the_scan_finds_the_last_free_port_and_then_refuses() -> None:
    first = choose_port()
    with socket.create_server((LOOPBACK, first)):
        if is_free(first + 1):
            assert choose_port(range(first, first + 2)) == first + 1
        with pytest.raises(
            EngineError, match=f"every port from {first} to {first} on 127.0.0.1 is in use"
        ) as caught:
            choose_port(range(first, first + 1))
    assert caught.value.code == "port_in_use"

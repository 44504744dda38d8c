"""Choosing a loopback port for an engine's endpoint."""

from __future__ import annotations

import random
import socket
from typing import Final

from wharfinger.engines.base import EngineError

PORTS: Final = range(24000, 32000)
"""Below the ephemeral range of every operating system we run on, so no outgoing connection sits on one."""
LOOPBACK: Final = "127.0.0.1"
_RANDOM_TRIES: Final = 64


def is_free(port: int) -> bool:
    """Whether a listener could bind ``port`` on loopback at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are in TIME_WAIT is free, one with a listener is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_port(ports: range = PORTS) -> int:
    """A port of ``ports`` that is free now: random tries first, then a scan.

    Another process may take it before the engine binds it; the caller then tries again.

    Raises:
        EngineError: ``port_in_use`` when every port is taken.
    """
    for _ in range(_RANDOM_TRIES):
        port = random.choice(ports)
        if is_free(port):
            return port
    for port in ports:
        if is_free(port):
            return port
    raise EngineError(
        "port_in_use",
        f"every port from {ports.start} to {ports.stop - 1} on {LOOPBACK} is in use; stop what holds them",
    )

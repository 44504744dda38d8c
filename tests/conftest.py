"""Servers shared by the rooms' tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from support.server import Server

# The same examples in every run, however slow the machine is: a failure is a change of ours, and comes back.
settings.register_profile("suite", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: children would inherit that, and the tests of Ctrl-C need it to work.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A run that is told to end does so like one that is interrupted: fixtures and servers are torn down, nothing is left.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real control plane of this module's own, with the demo model in its catalog."""
    running = Server(tmp_path_factory.mktemp("server") / "data").start()
    running.add_demo_model()
    yield running
    running.kill()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    """A server that is not started yet, on an empty data directory."""
    unstarted = Server(tmp_path / "data")
    yield unstarted
    unstarted.kill()

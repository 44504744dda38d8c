"""A node without engines looks for them again by itself, and a search that hangs is none of anybody's business."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wharfinger.engines.detect import detect_engines
from wharfinger.fleet import engine_search
from wharfinger.fleet.engine_search import EngineSearch
from wharfinger.fleet.telemetry import Telemetry

HANGS_IN_ITS_DRIVER = """
import ctypes
from wharfinger.engines import detect

class Engine:
    name = "hanging"

    def detect(self):
        ctypes.PyDLL(None).pause()  # holds the interpreter lock

detect.ENGINES = (Engine(),)
detect._TIMEOUT_S = 0.2
detect.main()
"""


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Searches fail until there is a file ``repaired``; returns how many there have been."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho >> {tmp_path}/searches\n[ -e {tmp_path}/repaired ] || {{ echo "no libcuda" >&2; exit 1; }}\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    return lambda: len((tmp_path / "searches").read_text())


def wait_for(search: EngineSearch) -> None:
    assert search._thread is not None
    search._thread.join(60)
    assert not search._thread.is_alive()


def test_a_node_whose_search_failed_searches_again(
    tmp_path: Path, searches: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry("node_x", "x", "full", tmp_path)
    for _ in range(3):  # not before its time
        report = telemetry.measure()
        assert report.engines == ()
        assert report.missing["engines.llama_cpp"] == "the detection failed: no libcuda"
    assert (searches(), telemetry._engines._thread) == (1, None)
    monkeypatch.setattr(telemetry._engines, "_again_at_s", 0.0)
    telemetry.measure()
    wait_for(telemetry._engines)
    telemetry.measure()  # the pause begins anew
    assert searches() == 2
    (tmp_path / "repaired").touch()
    monkeypatch.setattr(telemetry._engines, "_again_at_s", 0.0)
    telemetry.measure()
    wait_for(telemetry._engines)
    monkeypatch.setattr(telemetry._engines, "_again_at_s", 0.0)
    for _ in range(2):  # what was found stays
        report = telemetry.measure()
        assert [engine.engine for engine in report.engines] == ["llama_cpp"]
        assert "engines.llama_cpp" not in report.missing
    assert searches() == 3


def test_one_search_at_a_time_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    search = EngineSearch()
    monkeypatch.setattr(engine_search, "detect_engines", lambda: ((), {"llama_cpp": "did not answer"}))
    search.find()
    release, calls = threading.Event(), []

    def hang() -> Any:
        calls.append(1)
        assert release.wait(60)
        return detect_engines()

    monkeypatch.setattr(engine_search, "detect_engines", hang)
    monkeypatch.setattr(engine_search, "_AGAIN_AFTER_S", 0.0)
    search._again_at_s = 0.0
    for _ in range(3):
        assert search.answer() == ((), {"engines.llama_cpp": "did not answer"})
    release.set()
    wait_for(search)
    engines, missing = search.answer()
    assert ([engine.engine for engine in engines], missing, calls) == (["llama_cpp"], {}, [1])


def test_no_process_and_no_thread_left_is_a_reason_to_search_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    search = EngineSearch()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", nothing_left)
        search.find()
        patch.setattr(threading.Thread, "start", no_thread)
        patch.setattr(search, "_again_at_s", 0.0)
        reason = "the detection failed: [Errno 11] Resource temporarily unavailable"
        assert search.answer() == ((), {"engines.llama_cpp": reason})
    search._again_at_s = 0.0
    search.answer()
    wait_for(search)
    assert [engine.engine for engine in search.answer()[0]] == ["llama_cpp"]


def test_a_search_that_hangs_ends_although_nobody_is_left_to_end_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS_IN_ITS_DRIVER], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGALRM, "")

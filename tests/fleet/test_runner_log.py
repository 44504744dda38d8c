"""Logs on disk: rotation must not move an offset, and a reader must not miss or see a byte twice."""

from __future__ import annotations

import os
import select
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wharfinger.fleet import runner_log
from wharfinger.fleet.local import whole_characters
from wharfinger.fleet.runner_log import LogPump, RunnerLog

PATIENCE_S = 30.0


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=20),
    limit=st.integers(1, 64),
    part_bytes=st.integers(1, 64),
)
@settings(max_examples=60)
def test_following_gives_every_byte_once_and_in_order(
    pieces: list[bytes], limit: int, part_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = RunnerLog(Path(folder), part_bytes=part_bytes, parts=1000)
        for piece in pieces:
            log.append(piece)
        whole, offset = b"", 0
        while True:
            read = RunnerLog(Path(folder)).read(offset, limit)  # a reader that knows only the files
            assert read.start == offset
            assert len(read.data) <= limit
            if not read.data:
                break
            whole, offset = whole + read.data, read.next_offset
        assert whole == b"".join(pieces)
        assert read.size_bytes == len(whole)


def test_rotation_keeps_the_newest_parts_and_their_offsets(tmp_path: Path) -> None:
    log = RunnerLog(tmp_path, part_bytes=10, parts=3)
    for number in range(8):
        log.append(f"{number}".encode() * 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", f"log.{50:016d}", f"log.{60:016d}"]
    oldest = log.read(0, 15)
    assert (oldest.start, oldest.data, oldest.next_offset) == (50, b"5" * 10 + b"6" * 5, 65)
    assert log.read(-5, 100).data == b"7" * 5
    assert log.read(-1000, 5).start == 50
    assert log.read(10_000, 5) == RunnerLog(tmp_path).read(80, 5)
    log.append(b"8")
    assert (log.read(80, 10).data, log.read(80, 10).start) == (b"8", 80)


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    read = RunnerLog(tmp_path).read(0, 10)
    assert (read.start, read.data, read.size_bytes) == (0, b"", 0)
    assert RunnerLog(tmp_path).tail() == ()


def test_the_tail_is_whole_lines(tmp_path: Path) -> None:
    log = RunnerLog(tmp_path)
    log.append(b"".join(b"line %06d of this log\n" % number for number in range(5000)))
    log.append(b"no end")
    tail = log.tail(3)
    assert tail == ("line 004998 of this log", "line 004999 of this log", "no end")
    assert len(log.tail()) == 40
    assert all(line.startswith("line ") for line in log.tail(10_000)[:-1])


def test_the_pump_ends_when_the_last_holder_of_the_pipe_does(tmp_path: Path) -> None:
    log, ended = RunnerLog(tmp_path), threading.Event()
    read_fd, write_fd = os.pipe()
    second = os.dup(write_fd)
    LogPump(read_fd, log, ended.set)
    os.write(write_fd, b"one ")
    os.close(write_fd)
    assert not ended.wait(0.05)
    os.write(second, b"two")
    os.close(second)
    assert ended.wait(PATIENCE_S)
    assert log.read(0, 100).data == b"one two"


def test_a_disk_that_refuses_does_not_block_the_writer(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    log, ended = RunnerLog(directory), threading.Event()
    directory.rmdir()
    read_fd, write_fd = os.pipe()
    LogPump(read_fd, log, ended.set, retry_s=0)
    for _ in range(64):
        os.write(write_fd, b"x" * 65536)  # more than a pipe holds: returns only because somebody reads
    os.close(write_fd)
    assert ended.wait(PATIENCE_S)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_emptied(read_end: int) -> None:
    """Returns when the pump has taken everything out of the pipe."""
    wait_until(lambda: not select.select([read_end], [], [], 0)[0])


class Clock:
    """Stands in for the pump's :mod:`time`: moved by hand, and counts how often it was looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now_s


def test_a_disk_that_takes_data_again_is_written_again_and_the_gap_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(runner_log, "time", clock)
    directory = tmp_path / "log"
    log, ended = RunnerLog(directory), threading.Event()
    read_fd, write_fd = os.pipe()
    LogPump(read_fd, log, ended.set, retry_s=60)
    os.write(write_fd, b"lost one\n")
    wait_until(lambda: clock.looks == 1)  # it was refused
    os.write(write_fd, b"lost two\n")
    wait_until(lambda: clock.looks == 2)  # it came too early to be tried
    directory.mkdir()
    clock.now_s = 61
    os.write(write_fd, b"kept\n")
    os.close(write_fd)
    assert ended.wait(PATIENCE_S)
    assert log.read(0, 1000).data == (
        b"\n[up to 18 bytes of this log could not be written: No such file or directory]\nkept\n"
    )


def test_a_gap_at_the_end_is_noted_too(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log, ended = RunnerLog(directory), threading.Event()
    read_fd, write_fd = os.pipe()
    LogPump(read_fd, log, ended.set, retry_s=60)
    for word in (b"last ", b"words"):  # the second is taken only once the first was refused
        os.write(write_fd, word)
        wait_until_emptied(read_fd)
    directory.mkdir()
    os.close(write_fd)
    assert ended.wait(PATIENCE_S)
    assert b"[up to 10 bytes of this log could not be written" in log.read(0, 1000).data


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_an_error_of_the_append(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        RunnerLog(tmp_path).append(b"x")


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"", b""),
        (b"abc", b"abc"),
        ("é".encode(), "é".encode()),
        ("aé".encode()[:-1], b"a"),
        ("a€".encode()[:-1], b"a"),
        ("a😀".encode()[:-1], b"a"),
        ("a😀".encode()[:-3], b"a"),
        (b"a\x80\x80\x80\x80\x80", b"a\x80\x80\x80\x80\x80"),
    ],
)
def test_a_chunk_does_not_end_inside_a_character(data: bytes, kept: bytes) -> None:
    assert whole_characters(data) == kept

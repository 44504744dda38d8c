"""Processors that an engine may keep busy: fewer than the machine has in a container or with an affinity."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from wharfinger.engines import control_groups
from wharfinger.engines.control_groups import cpu_quota, usable_cores, usable_cpus


def group(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(f"{content}\n")
    return directory


def test_the_tightest_quota_counts(tmp_path: Path) -> None:
    unlimited = group(tmp_path / "a" / "b", cpu__max="max 100000")
    tight = group(tmp_path / "a", cpu__max="150000 100000")
    root = group(tmp_path)
    version_1 = group(tmp_path / "v1", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    without = group(tmp_path / "v1" / "c", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert cpu_quota([unlimited, tight, root]) == 1.5
    assert cpu_quota([without, version_1]) == 4.0
    assert cpu_quota([unlimited, without, root, tmp_path / "none"]) is None


@pytest.mark.parametrize(
    ("quota", "count"), [("250000", 2), ("199999", 1), ("20000", 1), ("900000", 3), ("max", 3)]
)
def test_a_quota_gives_whole_processors(
    quota: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(tmp_path, cpu__max=f"{quota} 100000")
    monkeypatch.setattr(control_groups, "group_directories", lambda _: (tmp_path,))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert usable_cpus() == count


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [
        ({0, 1, 2, 3}, "max", 4),
        ({0, 4}, "max", 1),  # two threads of one core
        ({0, 1, 4, 5}, "max", 2),
        ({0, 1, 2, 4, 5, 6}, "200000", 2),
        (set(range(8)), "600000", 4),
        ({0, 9}, "max", 2),  # nothing is told of processor 9: it counts as a core
    ],
)
def test_threads_of_one_core_count_once(
    affinity: set[int], quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        siblings = f"{number % 4},{number % 4 + 4}"
        group(tmp_path / f"cpu{number}" / "topology", thread_siblings_list=siblings)
    monkeypatch.setattr(control_groups, "PROCESSORS", tmp_path)
    monkeypatch.setattr(control_groups, "group_directories", lambda _: (tmp_path,))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity, raising=False)
    group(tmp_path, cpu__max=f"{quota} 100000")
    assert usable_cores() == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not restrict cores")
def test_an_affinity_counts() -> None:
    seen: list[int] = []

    def restricted() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread only
        seen.append(usable_cpus())

    thread = threading.Thread(target=restricted)
    thread.start()
    thread.join()
    assert seen == [1]

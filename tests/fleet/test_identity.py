"""The node id outlives restarts and is never made twice."""

from __future__ import annotations

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wharfinger.fleet.agent import AgentError
from wharfinger.fleet.identity import node_id


def test_the_id_is_made_once_and_kept(tmp_path: Path) -> None:
    made = node_id(tmp_path / "new" / "data")
    assert re.fullmatch(r"node_[a-z2-7]{26}", made)
    assert node_id(tmp_path / "new" / "data") == made
    assert stat.S_IMODE((tmp_path / "new" / "data" / "node_id").stat().st_mode) == 0o644
    assert os.listdir(tmp_path / "new" / "data") == ["node_id"]


def test_two_directories_are_two_nodes(tmp_path: Path) -> None:
    assert node_id(tmp_path / "a") != node_id(tmp_path / "b")


def test_starting_at_the_same_moment_gives_one_id(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: node_id(tmp_path), range(32)))
    assert len(set(made)) == 1


@pytest.mark.parametrize("content", ["", "node_short", "node_" + "A" * 26, "something else"])
def test_a_damaged_id_is_not_replaced(content: str, tmp_path: Path) -> None:
    (tmp_path / "node_id").write_text(content)
    with pytest.raises(AgentError, match="put the right id back, or delete it") as caught:
        node_id(tmp_path)
    assert caught.value.code == "node_id_damaged"
    assert (tmp_path / "node_id").read_text() == content


def test_a_data_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(AgentError, match="give a data directory that can be written") as caught:
        node_id(tmp_path / "file")
    assert caught.value.code == "data_dir_unusable"

"""The runner process is light, and cannot be started by hand into somebody else's process group."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

from wharfinger.engines.base import EngineLaunch
from wharfinger.fleet.agent import RunnerSpec
from wharfinger.fleet.runner_main import EXIT_FAILED
from wharfinger.fleet.supervisor import RUNNER_COMMAND

HEAVY = (
    "pydantic",
    "asyncio",
    "aiohttp",
    "psutil",
    "fastapi",
    "sqlalchemy",
    "structlog",
    "xllamacpp",
    "numpy",
    "email",
)


def test_the_runner_imports_nothing_of_the_control_plane() -> None:
    code = "import wharfinger.fleet.runner_main, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert loaded.isdisjoint(HEAVY)
    ours = {name for name in loaded if name.startswith("wharfinger.")}
    assert {name.split(".")[1] for name in ours} == {"engines", "fleet"}
    assert ours & {"wharfinger.fleet.agent", "wharfinger.fleet.supervisor"} == set()


def test_it_refuses_to_run_outside_a_session_of_its_own() -> None:
    done = subprocess.run(
        [*RUNNER_COMMAND, "1", "by-hand"], capture_output=True, text=True, check=False, input="{}\n"
    )
    assert done.returncode == 1
    assert "started by the node agent" in done.stderr


def run_in_session(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUNNER_COMMAND, "1", "test"],
        capture_output=True,
        text=True,
        check=False,
        input=line,
        start_new_session=True,
    )


def test_it_ends_when_its_input_ends_before_the_launch() -> None:
    assert run_in_session("").returncode == EXIT_FAILED
    assert run_in_session('{"model_id": "cut').returncode == EXIT_FAILED


def test_it_ends_when_its_parent_is_not_the_control_plane() -> None:
    done = run_in_session(json.dumps({"control_plane_pid": os.getpid() + 1}) + "\n")
    assert (done.returncode, done.stdout) == (EXIT_FAILED, "")


def test_every_part_of_a_launch_comes_from_the_spec_under_the_same_name_and_default() -> None:
    for field in dataclasses.fields(EngineLaunch):
        assert field.name in RunnerSpec.model_fields
        if field.default is not dataclasses.MISSING:
            assert RunnerSpec.model_fields[field.name].default == field.default

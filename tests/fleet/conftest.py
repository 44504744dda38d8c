"""A tiny real model and a real agent for the tests of this room."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.local_node import demo_spec
from support.tiny_gguf import write_tiny_gguf
from wharfinger.fleet.agent import RunnerSpec, StopDeadlines
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.supervisor import Supervisor

TINY_LAYERS = 4
STUBBORN = Path(__file__).with_name("stubborn_runner.py")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of 5 MB that loads in a tenth of a second."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model"), "llama").path


@pytest.fixture
def tiny_spec(tiny_model: Path) -> Callable[..., RunnerSpec]:
    """Makes specs that serve the tiny model."""

    def make(**changes: Any) -> RunnerSpec:
        tiny = {
            "model_path": tiny_model,
            "model_id": "tiny",
            "end_layer": TINY_LAYERS,
            "n_layers": TINY_LAYERS,
        }
        return demo_spec(**(tiny | changes))

    return make


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[LocalAgent]:
    """A started agent on a data directory of its own; closed afterwards."""
    made = LocalAgent(tmp_path / "data", node_name="testbed")
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def misbehaving(
    tmp_path: Path, tiny_spec: Callable[..., RunnerSpec]
) -> AsyncIterator[Callable[..., Supervisor]]:
    """Makes supervisors whose runner process is the stubborn one in a given mode; kills what a test leaves."""
    made: list[Supervisor] = []
    async with aiohttp.ClientSession() as own:

        def make(mode: str, *, session: aiohttp.ClientSession = own, **changes: object) -> Supervisor:
            command = (sys.executable, str(STUBBORN), mode)
            made.append(Supervisor(tiny_spec(**changes), "node_test", tmp_path, session, command))
            return made[-1]

        yield make
        for supervisor in made:
            await supervisor.stop(StopDeadlines(ask_s=0.3, terminate_s=0.3, kill_s=5))

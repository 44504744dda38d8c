"""A local agent in an interpreter without engines; prints the refusal's code and message and the node's report."""

from __future__ import annotations

import asyncio
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ENGINE_WHEELS = ("xllamacpp",)


class WithoutEngines(importlib.machinery.PathFinder):
    """Finds modules as always, except the engines' wheels: an environment where they were never installed."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return None if fullname in ENGINE_WHEELS else super().find_spec(fullname, path, target)


async def main(data_dir: Path, model_path: str) -> None:
    from pydantic import SecretStr

    from wharfinger.fleet.agent import AgentError, RunnerSpec
    from wharfinger.fleet.local import LocalAgent

    agent = LocalAgent(data_dir)
    await agent.start()
    spec = RunnerSpec(
        runner_id="r",
        instance_id="i",
        model_id="tiny",
        backend="llama_cpp-cpu",
        model_path=model_path,
        context_tokens=512,
        api_key=SecretStr("k"),
        end_layer=4,
        n_layers=4,
    )
    try:
        await agent.start_runner(spec)
    except AgentError as error:
        os.write(1, f"{error.code}\n{error}\n{(await agent.report()).model_dump_json()}\n".encode())
    await agent.close()


if __name__ == "__main__":
    place = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path[place] = WithoutEngines
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

"""A process that runs a local agent and signals itself when its runner is in a wanted state.

Arguments: DATA_DIR MODEL_PATH STATE SIGNAL [fork]. ``STATE`` is a runner state or ``spawned``. Prints the runner's
pid first. With ``fork`` a child that inherits every pipe outlives it; its pid comes second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from pydantic import SecretStr

from wharfinger.fleet.agent import RunnerSpec
from wharfinger.fleet.local import LocalAgent


async def main(data_dir: str, model_path: str, wanted: str, number: int, fork: bool) -> None:
    agent = LocalAgent(Path(data_dir))
    await agent.start()
    spec = RunnerSpec(
        runner_id="doomed",
        instance_id="instance",
        model_id="tiny",
        backend="llama_cpp-cpu",
        model_path=model_path,
        context_tokens=512,
        api_key=SecretStr("not-a-real-key"),
        end_layer=4,
        n_layers=4,
    )
    report = await agent.start_runner(spec)
    os.write(1, f"{report.pid}\n".encode())
    while wanted not in ("spawned", report.state.value):
        assert not report.state.ended, report
        report = await agent.wait_runner(spec.runner_id, report, 60)
    if fork:
        leave_a_child()
    os.kill(os.getpid(), number)
    await asyncio.sleep(60)


def leave_a_child() -> None:
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        time.sleep(60)
        os._exit(0)
    os.write(1, f"{child}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:] == ["fork"]))

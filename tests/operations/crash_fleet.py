"""Starts, kills and stops real worker processes, and checks what they left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from operations import crash_worker
from operations.polling import until
from wharfinger.operations.model import Operation, OperationState
from wharfinger.operations.store import OperationStore


class Fleet:
    """Worker processes on one database, with one journal and one place for resources."""

    def __init__(self, url: str, directory: Path, lease_s: float = 1.0) -> None:
        self._order = {"url": url, "directory": str(directory), "lease_s": lease_s, "affinities": []}
        self._directory = directory
        self._pids: list[int] = []
        self._serial = 0
        (directory / "resources").mkdir()
        (directory / "journal").touch()

    def __enter__(self) -> Fleet:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._nursery = subprocess.Popen(
            [sys.executable, crash_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self._pids:
            if _alive(pid):
                os.kill(pid, signal.SIGKILL)
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.stdout.close()
        self._nursery.wait(timeout=30)

    def start(self, **changes: Any) -> int:
        """Start a worker; returns its process id."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._serial += 1
        order = self._order | {"owner": f"worker-{self._serial}"} | changes
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()
        pid = int(self._nursery.stdout.readline())
        self._pids.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """kill -9."""
        os.kill(pid, signal.SIGKILL)

    async def died(self, pid: int) -> None:
        """Wait until the process is gone."""
        await until(lambda: not _alive(pid))

    def journal(self) -> list[tuple[str, str, str, str]]:
        """What, operation, step, owner; in the order of writing."""
        lines = (self._directory / "journal").read_text().splitlines()
        return [tuple(line.split()) for line in lines]  # type: ignore[misc]

    def resources(self) -> list[str]:
        """Keys of what exists."""
        return sorted(file.name for file in (self._directory / "resources").iterdir())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def all_ended(store: OperationStore, ids: list[str]) -> list[Operation]:
    """The operations, once all have ended."""
    async with asyncio.timeout(120):
        while True:
            operations = [await store.get(operation_id) for operation_id in ids]
            if all(operation.state.terminal for operation in operations):
                return operations
            await asyncio.sleep(0.1)


async def nothing_lost_nothing_doubled(
    fleet: Fleet, store: OperationStore, operations: list[Operation]
) -> None:
    """What succeeded has its one resource and all its steps; what did not has none; no finished step was done again."""
    journal = fleet.journal()
    succeeded = [operation for operation in operations if operation.state is OperationState.SUCCEEDED]
    assert fleet.resources() == sorted(operation.result["key"] for operation in succeeded if operation.result)
    for operation in operations:
        events = await store.events(operation.operation_id, limit=1000)
        assert [event.sequence for event in events] == list(range(1, operation.last_sequence + 1))
        assert sum(event.type in ("succeeded", "failed", "cancelled") for event in events) == 1
        steps = {step.name for step in await store.steps(operation.operation_id)}
        if operation.state is OperationState.SUCCEEDED:
            assert steps == {"resource.identity", *crash_worker.STEPS}
        checkpoints = Counter(
            event.payload["step"] for event in events if event.type == "step.succeeded" and event.payload
        )
        assert set(checkpoints.values()) <= {1}
        done: set[str] = set()
        for what, operation_id, step, _ in journal:
            if operation_id == operation.operation_id:
                assert what != "begin" or step not in done, f"{step} was begun again after its checkpoint"
                if what == "done":
                    done.add(step)

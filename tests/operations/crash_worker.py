"""Worker processes to be killed: forks one per line of JSON on standard input, and answers with its process id.

Each handler makes one resource (a file, created exclusively under its external key), takes its steps, and writes what
it does to an append-only journal. A process can be told to kill itself at the n-th write to the store, before or after.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiosqlite  # noqa: F401 - imported before the fork, so that a new process works at once
import asyncpg  # noqa: F401

from wharfinger.operations.attempt import AttemptSettings
from wharfinger.operations.backoff import Backoff
from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.handler import OperationContext
from wharfinger.operations.model import Lease, LeaseLost, Operation, PermanentError
from wharfinger.operations.port import ClaimRequest
from wharfinger.operations.store import OperationStore
from wharfinger.operations.transitions import Heartbeat
from wharfinger.operations.worker import Worker
from wharfinger.store.database import Database

KIND = "crash.work"
STEPS = ("one", "two", "three")


class DyingStore(OperationStore):
    """Kills its process at write number ``die_at`` (from 1; heartbeats do not count), before or after the write."""

    def __init__(self, database: Database, die_at: int, after: bool) -> None:
        super().__init__(database)
        self._left = die_at
        self._after = after

    async def claim(self, request: ClaimRequest) -> Sequence[Operation]:
        self._count(after=False)
        claimed = await super().claim(request)
        if claimed:
            self._count(after=True)
        else:
            self._left += not self._after
        return claimed

    async def apply(self, lease: Lease, rule: Rule) -> Change:
        if isinstance(rule, Heartbeat):
            return await super().apply(lease, rule)
        self._count(after=False)
        change = await super().apply(lease, rule)
        self._count(after=True)
        return change

    def _count(self, after: bool) -> None:
        if after is self._after:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Work:
    """See the module."""

    def __init__(self, directory: Path, owner: str) -> None:
        self._resources = directory / "resources"
        self._journal = os.open(directory / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._owner = owner

    async def run(self, context: OperationContext) -> dict[str, Any]:
        operation = context.operation
        fresh = f"{operation.operation_id}-{os.getpid()}-{operation.attempt}"
        key = str((await context.persist_identity("resource", {"key": fresh}))["key"])
        self._create(key)
        for step in STEPS:
            if step in context.steps:
                continue
            self._write("begin", context, step)
            try:
                await context.sleep(operation.request["step_s"])
                await context.checkpoint(step)
            except (LeaseLost, asyncio.CancelledError):
                self._write("lost", context, step)
                raise
            self._write("done", context, step)
            if context.cancelled:
                break
        if operation.request.get("refuse"):
            raise PermanentError("refused", "as asked")
        return {"key": key}

    async def cleanup(self, context: OperationContext) -> None:
        identity = context.steps.get("resource.identity")
        if identity is not None and identity.payload is not None:
            (self._resources / identity.payload["key"]).unlink(missing_ok=True)
        self._write("clean", context, "-")

    def _create(self, key: str) -> None:
        try:
            os.close(os.open(self._resources / key, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # made by an earlier attempt: adopted

    def _write(self, what: str, context: OperationContext, step: str) -> None:
        line = f"{what} {context.operation.operation_id} {step} {self._owner}\n"
        os.write(self._journal, line.encode())


async def work(order: dict[str, Any]) -> None:
    """Run one worker as ordered until the process is killed."""
    database = Database.open(order["url"])
    if order.get("die_at"):
        store: OperationStore = DyingStore(database, order["die_at"], order["after"])
    else:
        store = OperationStore(database)
    settings = AttemptSettings(
        lease_s=order["lease_s"],
        backoff=Backoff(base_s=0.05, cap_s=0.2),
        cancel_grace_s=1.0,
        store_retry_s=0.05,
    )
    worker = Worker(
        store,
        {KIND: Work(Path(order["directory"]), order["owner"])},
        owner=order["owner"],
        affinities=order["affinities"],
        concurrency=4,
        poll_s=0.1,
        settings=settings,
    )
    await worker.run()


def main() -> None:
    """Fork as ordered until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed children are not ours to collect
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            asyncio.run(work(order))
            os._exit(0)
        print(pid, flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

"""Real processes, killed with kill -9, stopped past their lease, and left without a server or a disk."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from operations.crash_fleet import Fleet, all_ended, nothing_lost_nothing_doubled
from operations.crash_worker import KIND, STEPS, Work
from operations.polling import reached, until
from support.postgres import PostgresServer, fresh_database_url
from wharfinger.operations.attempt import AttemptSettings
from wharfinger.operations.model import NewOperation, OperationState
from wharfinger.operations.store import OperationStore
from wharfinger.operations.worker import Worker
from wharfinger.store.database import Database
from wharfinger.store.errors import StoreUnavailable
from wharfinger.store.migrate import upgrade

State = OperationState
WRITES_OF_SUCCESS = 7
"""claim, start, identity, three steps, success."""
WRITES_OF_FAILURE = 8
"""claim, start, identity, three steps, failure, end of cleanup."""


@dataclass
class Scene:
    url: str
    store: OperationStore
    directory: Path

    async def submit(
        self, name: str, step_s: float = 0.0, refuse: bool = False, affinity: str | None = None
    ) -> str:
        request = {"step_s": step_s, "refuse": refuse}
        new = NewOperation(
            KIND, "thing", name, request, idempotency_key=name, affinity=affinity, max_attempts=1000
        )
        async with asyncio.timeout(60):
            while True:
                try:
                    operation, _ = await self.store.submit(new)
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
                else:
                    return operation.operation_id


@pytest.fixture(params=["sqlite", "postgres"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    url = await fresh_database_url(request.param, tmp_path)
    database = Database.open(url)
    yield Scene(url, OperationStore(database), tmp_path)
    await database.close()


async def test_processes_killed_at_random_lose_and_double_nothing(scene: Scene) -> None:
    chance = random.Random(4)
    with Fleet(scene.url, scene.directory, lease_s=1.0) as fleet:
        endless = [await scene.submit(f"endless-{n}", step_s=3600) for n in range(3)]
        ids = [
            await scene.submit(f"r{n}", step_s=chance.uniform(0, 0.6), refuse=n % 5 == 4) for n in range(30)
        ]
        living = [fleet.start() for _ in range(2)]
        for round_ in range(10):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            victim = living.pop(chance.randrange(2))
            fleet.kill(victim)
            living.append(fleet.start())
            if round_ in (3, 6, 9):
                await scene.store.request_cancel(endless[round_ // 3 - 1])
        operations = await all_ended(scene.store, endless + ids)
        await nothing_lost_nothing_doubled(fleet, scene.store, operations)
    ends = Counter(operation.state for operation in operations)
    assert ends == {State.CANCELLED: 3, State.SUCCEEDED: 24, State.FAILED: 6}
    assert max(operation.lease_generation for operation in operations) > 1  # somebody did die at work


@pytest.mark.parametrize("refuse", [False, True], ids=["success", "failure"])
async def test_processes_killed_at_each_write_lose_and_double_nothing(scene: Scene, refuse: bool) -> None:
    """Each write, before and after, kills a process of its own; one healthy worker then finishes everything."""
    writes = WRITES_OF_FAILURE if refuse else WRITES_OF_SUCCESS
    moments = [(number, after) for number in range(1, writes + 1) for after in (False, True)]
    deaths = {f"{'after' if after else 'before'}-{number}": (number, after) for number, after in moments}
    with Fleet(scene.url, scene.directory, lease_s=2.0) as fleet:
        ids = [await scene.submit(name, refuse=refuse, affinity=name) for name in deaths]
        dying = [
            fleet.start(affinities=[name], die_at=die_at, after=after)
            for name, (die_at, after) in deaths.items()
        ]
        for pid in dying:
            await fleet.died(pid)
        fleet.start(affinities=list(deaths))
        operations = await all_ended(scene.store, ids)
        await nothing_lost_nothing_doubled(fleet, scene.store, operations)
    assert {operation.state for operation in operations} == {State.FAILED if refuse else State.SUCCEEDED}
    attempts = {operation.resource_name: operation.attempt for operation in operations}
    # Who died after its start has used up an attempt; a machine under load may cost more, never fewer.
    assert min(attempts["after-2"], attempts["after-4"], attempts[f"before-{WRITES_OF_SUCCESS}"]) >= 2


async def test_a_process_stopped_past_its_lease_writes_nothing_when_it_wakes(scene: Scene) -> None:
    with Fleet(scene.url, scene.directory, lease_s=3.0) as fleet:
        operation_id = await scene.submit("r", step_s=1.0)  # two more steps: time enough to be stopped in
        sleeper = fleet.start()
        await until(lambda: any(what == "done" for what, *_ in fleet.journal()))
        os.kill(sleeper, signal.SIGSTOP)
        fleet.start()
        operation = await reached(scene.store, operation_id)
        assert operation.state is State.SUCCEEDED
        assert operation.lease_generation >= 2  # more, where the second worker was too slow to keep its lease
        os.kill(sleeper, signal.SIGCONT)
        await until(lambda: any(line[0] == "lost" and line[3] == "worker-1" for line in fleet.journal()))
        assert await scene.store.get(operation_id) == operation
        await nothing_lost_nothing_doubled(fleet, scene.store, [operation])


async def test_a_postgres_that_crashes_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    postgres = PostgresServer()
    try:
        postgres.start()
        url = postgres.url(await postgres.create_database())
        database = Database.open(url)
        await upgrade(database)
        scene = Scene(url, OperationStore(database), tmp_path)
        with Fleet(url, tmp_path, lease_s=3.0) as fleet:
            for _ in range(2):
                fleet.start()
            ids: list[str] = []
            for n in range(30):
                ids.append(await scene.submit(f"r{n}", step_s=0.1, refuse=n % 5 == 4))
                if n in (8, 20):
                    await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
                    await asyncio.to_thread(postgres.start)
            operations = await all_ended(scene.store, ids)
            await nothing_lost_nothing_doubled(fleet, scene.store, operations)
        await database.close()
    finally:
        postgres.remove()
    failed = [operation for operation in operations if operation.state is State.FAILED]
    assert [operation.error_code for operation in failed] == ["refused"] * 6
    assert sum(operation.state is State.SUCCEEDED for operation in operations) == 24


def mounted_small(directory: Path) -> bool:
    """Make ``directory`` a disk of 1 MiB; false where this process may not, or has nothing to do it with."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def no_file_above(limit_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size; log lines go nowhere, as the runner's own capture is a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(os.devnull, "w") as nowhere:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            structlog.reset_defaults()
            signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """Make ``directory`` a disk of 1 MiB where that is allowed; elsewhere it stays what it is."""
    mounted = mounted_small(directory)
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(directory)], check=True)


@contextmanager
def no_space_left(directory: Path) -> Iterator[None]:
    """Fill the small disk to the last byte; where there is none, take away all room for files to grow."""
    if not os.path.ismount(directory):
        with no_file_above(4096):
            yield
        return
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    yield
    ballast.unlink()


async def test_a_full_disk_holds_work_up_and_ends_nothing(tmp_path: Path) -> None:
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    for directory in (disk, elsewhere, elsewhere / "resources"):
        directory.mkdir()
    with small_disk(disk):
        database = Database.open(await fresh_database_url("sqlite", disk))
        scene = Scene("", OperationStore(database), disk)
        settings = AttemptSettings(lease_s=30.0, store_retry_s=0.05)
        worker = Worker(
            scene.store, {KIND: Work(elsewhere, "w1")}, owner="w1", poll_s=0.05, settings=settings
        )
        running = asyncio.create_task(worker.run())
        operation_id = await scene.submit("r", step_s=0.2)
        await reached(scene.store, operation_id, State.RUNNING)
        with no_space_left(disk):
            refused: list[str] = []
            for number in range(200):
                try:
                    await scene.store.submit(
                        NewOperation("other", "thing", f"x{number}", {"text": "x" * 4000})
                    )
                except StoreUnavailable as error:
                    refused.append(str(error))
                    break
            assert len(refused) == 1
            await asyncio.sleep(1.0)  # in which the worker would have taken its three steps
            during = await scene.store.get(operation_id)
            assert (during.state, during.lease_owner, during.attempt) == (State.RUNNING, "w1", 1)
            assert not running.done()
        operation = await reached(scene.store, operation_id)
        await worker.stop()
        await running
        steps = [step.name for step in await scene.store.steps(operation_id)]
        events = await scene.store.events(operation_id)
        await database.close()
    if "disk I/O" not in refused[0]:
        assert "there is no space left" in refused[0]
    assert (operation.state, operation.attempt, operation.lease_generation) == (State.SUCCEEDED, 1, 1)
    assert steps == ["resource.identity", *STEPS]
    assert [event.sequence for event in events] == list(range(1, operation.last_sequence + 1))
    begun = [
        line.split()[2]
        for line in (elsewhere / "journal").read_text().splitlines()
        if line.startswith("begin")
    ]
    assert begun == list(STEPS)

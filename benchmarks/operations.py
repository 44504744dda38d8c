"""Durable operations per second on SQLite and PostgreSQL, beside DBOS and the raw floor of both databases.

    python benchmarks/operations.py [--seconds S]

SQLite runs with synchronous=FULL, PostgreSQL with fsync and full commits, both on the disk of the temporary directory.
A step is one checkpoint: row, step and event in one fenced transaction. An operation is submitted, claimed, started,
takes two steps and succeeds. A DBOS workflow takes two steps, and is run in two ways: through its queue, as durable
submission and a worker's claim are part of our figure, and called directly, which spares it both (and has no row of
ours to be compared with). Each is measured at 1 and at 8 at a time, and the best counts. Eight at a time are eight
tasks (of ours) or threads (of DBOS) of one process, and on PostgreSQL, where there may be several, also eight
processes. ``dbos_workflows_per_s`` is DBOS called, ``dbos_queued_workflows_per_s`` through its queue. Recovery is
measured with a lease of 10 s: with the default of 30 s it takes up to 20 s more, all of it waiting. The last line of
the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import structlog

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.postgres import fresh_database_url, server  # noqa: E402
from wharfinger.operations.attempt import AttemptSettings  # noqa: E402
from wharfinger.operations.handler import OperationContext  # noqa: E402
from wharfinger.operations.model import NewOperation, OperationState  # noqa: E402
from wharfinger.operations.port import ClaimRequest  # noqa: E402
from wharfinger.operations.store import OperationStore  # noqa: E402
from wharfinger.operations.transitions import Checkpoint, Start  # noqa: E402
from wharfinger.operations.worker import Worker, new_owner  # noqa: E402
from wharfinger.store.database import Database  # noqa: E402

WIDTHS = (1, 8)
RECOVERED = 1000
RECOVERY_LEASE_S = 10.0


class TwoSteps:
    """The smallest honest handler."""

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Two checkpoints."""
        await context.checkpoint("one", progress=30, payload={"n": 1})
        await context.checkpoint("two", progress=60, payload={"n": 2})
        return {"done": True}

    async def cleanup(self, context: OperationContext) -> None:
        """Nothing to undo."""


class Stuck(TwoSteps):
    """Holds its lease until the process is killed."""

    async def run(self, context: OperationContext) -> dict[str, Any] | None:
        """Never returns."""
        await asyncio.sleep(3600)
        return None


async def steps_per_s(store: OperationStore, width: int, seconds: float) -> float:
    """Checkpoints per second of ``width`` operations at a time, each under its lease."""
    for number in range(width):
        await store.submit(NewOperation(f"steps-{width}", "bench", f"s{width}-{number}"))
    claimed = await store.claim(ClaimRequest("bench", [f"steps-{width}"], [], width, 600.0))
    assert len(claimed) == width
    count = 0
    started = time.perf_counter()

    async def one(lease: Any) -> None:
        nonlocal count
        await store.apply(lease, Start())
        number = 0
        while time.perf_counter() - started < seconds:
            number += 1
            await store.apply(
                lease, Checkpoint(f"step-{number % 50}", "succeeded", {"n": number}, 50, "at work")
            )
            count += 1

    await asyncio.gather(*(one(operation.lease) for operation in claimed))
    return count / (time.perf_counter() - started)


async def operations_per_s(store: OperationStore, width: int, seconds: float) -> float:
    """Operations per second from submission to success, ``width`` submitted and worked on at a time by one process."""
    kind = f"two-steps-{width}"
    worker = Worker(store, {kind: TwoSteps()}, owner=new_owner("bench"), concurrency=width)
    running = asyncio.create_task(worker.run())
    rate = await submitted_per_s(store, kind, width, seconds)
    await worker.stop()
    await running
    return rate


async def operations_of_processes_per_s(store: OperationStore, width: int, seconds: float) -> float:
    """The same by ``width`` worker processes, each of which works on one at a time."""
    kind = f"two-steps-{width}-processes"
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(width + 1)
    url = store.database.engine.url.render_as_string(hide_password=False)
    processes = [context.Process(target=work, args=(url, kind, ready), daemon=True) for _ in range(width)]
    for process in processes:
        process.start()
    await asyncio.to_thread(ready.wait, 120)
    rate = await submitted_per_s(store, kind, width, seconds)
    for process in processes:
        process.kill()
        process.join()
    return rate


async def submitted_per_s(store: OperationStore, kind: str, width: int, seconds: float) -> float:
    """Submit for so long, ``width`` at a time, wait until all have ended, and return how many that is per second."""
    count = 0
    started = time.perf_counter()

    async def submit(client: int) -> None:
        nonlocal count
        number = 0
        while time.perf_counter() - started < seconds:
            number += 1
            await store.submit(NewOperation(kind, "bench", f"{kind}-{client}-{number}", {"client": client}))
            count += 1

    await asyncio.gather(*(submit(client) for client in range(width)))
    await until(lambda: nothing_open(store, kind))
    return count / (time.perf_counter() - started)


def work(url: str, kind: str, ready: Barrier) -> None:
    """A worker process, which does one operation at a time until it is killed."""

    async def main() -> None:
        store = OperationStore(Database.open(url))
        await store.now()  # imports and the connection are made
        ready.wait(120)
        worker = Worker(store, {kind: TwoSteps()}, owner=new_owner("bench"), concurrency=1, poll_s=0.01)
        await worker.run()

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(main())


def refuse_memory(directory: Path) -> None:
    """End with a message where a commit would never reach a disk."""
    mounts = psutil.disk_partitions(all=True)
    holding = [mount for mount in mounts if directory.resolve().is_relative_to(mount.mountpoint)]
    kind = max(holding, key=lambda mount: len(mount.mountpoint)).fstype
    if kind in ("tmpfs", "ramfs"):
        sys.exit(
            f"{directory} is on {kind}, where a commit costs nothing; set TMPDIR to a directory on a disk"
        )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once ``condition`` holds."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.05)


async def recovery_s(url: str) -> float:
    """Seconds from kill -9 of a worker that holds 8 of 1,000 operations until a new worker has finished all."""
    database = Database.open(url)
    store = OperationStore(database)
    settings = AttemptSettings(lease_s=RECOVERY_LEASE_S)
    for number in range(RECOVERED):
        await store.submit(NewOperation("recover", "bench", f"r{number}"))
    victim = multiprocessing.get_context("spawn").Process(target=hold, args=(url,))
    victim.start()
    await until(lambda: held_by_victim(store))
    victim.kill()
    killed = time.perf_counter()
    victim.join()
    worker = Worker(store, {"recover": TwoSteps()}, owner=new_owner("bench"), settings=settings)
    running = asyncio.create_task(worker.run())
    await until(lambda: nothing_open(store, "recover"))
    seconds = time.perf_counter() - killed
    assert (
        len((await store.list(states=[OperationState.SUCCEEDED], kind="recover", limit=1000)).items)
        == RECOVERED
    )
    await worker.stop()
    await running
    await database.close()
    return seconds


async def held_by_victim(store: OperationStore) -> bool:
    """True when 8 operations are under way."""
    return len((await store.list(states=[OperationState.RUNNING])).items) == 8


async def nothing_open(store: OperationStore, kind: str) -> bool:
    """True when every operation of ``kind`` has ended."""
    open_states = [state for state in OperationState if not state.terminal]
    return not (await store.list(states=open_states, kind=kind, limit=1)).items


def hold(url: str) -> None:
    """A process that claims 8 operations and never lets go."""

    async def main() -> None:
        store = OperationStore(Database.open(url))
        settings = AttemptSettings(lease_s=RECOVERY_LEASE_S)
        await Worker(store, {"recover": Stuck()}, owner=new_owner("victim"), settings=settings).run()

    asyncio.run(main())


def sqlite_floor(directory: Path, seconds: float) -> float:
    """Bare transactions per second: one update, one insert, one commit, no layer in between."""
    connection = sqlite3.connect(directory / "floor.db", isolation_level=None)
    for statement in FLOOR_SCHEMA:
        connection.execute(statement)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    count = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        count += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE floor_rows SET n = ? WHERE id = 1 AND n = ?", (count, count - 1))
        connection.execute("INSERT INTO floor_events VALUES (?, ?)", (count, "x" * 100))
        connection.execute("COMMIT")
    connection.close()
    return count / seconds


async def postgres_floor(url: str, seconds: float) -> float:
    """The same through one bare asyncpg connection."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    for statement in FLOOR_SCHEMA:
        await connection.execute(statement)
    count = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        count += 1
        async with connection.transaction():
            await connection.execute("UPDATE floor_rows SET n = $1 WHERE id = 1 AND n = $2", count, count - 1)
            await connection.execute("INSERT INTO floor_events VALUES ($1, $2)", count, "x" * 100)
    await connection.close()
    return count / seconds


FLOOR_SCHEMA = (
    "CREATE TABLE floor_rows (id INTEGER PRIMARY KEY, n INTEGER)",
    "CREATE TABLE floor_events (id INTEGER PRIMARY KEY, body TEXT)",
    "INSERT INTO floor_rows VALUES (1, 0)",
)


def dbos_workflows_per_s(url: str, seconds: float) -> dict[str, float]:
    """DBOS workflows of two steps per second, by how they were run."""
    width = WIDTHS[-1]
    shapes = {
        "called_at_1": (1, 1, False),
        f"called_at_{width}": (1, width, False),
        f"called_at_{width}_processes": (width, 1, False),
        "queued_at_1": (1, 1, True),
        f"queued_at_{width}": (1, width, True),
        f"queued_at_{width}_processes": (width, 1, True),
    }
    return {name: _workflows_per_s(url, seconds, *shape) for name, shape in shapes.items()}


def _workflows_per_s(url: str, seconds: float, processes: int, threads: int, queued: bool) -> float:
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.SimpleQueue()
    arguments = (url, seconds, threads, queued, ready, rates)
    started = [context.Process(target=dbos_process, args=arguments) for _ in range(processes)]
    for process in started:
        process.start()
    rate = sum(rates.get() for _ in started)
    for process in started:
        process.join()
    return rate


def dbos_process(url: str, seconds: float, threads: int, queued: bool, ready: Barrier, rates: Any) -> None:
    """Run workflows for so long, once every process is up, and tell how many that was per second.

    Queued ones are submitted for so long, and the time runs until all have ended, as with ours. The queue's settings
    are in its favour: no limit on how many run at once, and a look at it every 10 ms where its default is 1 s.
    """
    from dbos import DBOS, DBOSConfig

    DBOS(config=DBOSConfig(name="bench", system_database_url=url, log_level="ERROR"))

    @DBOS.step()
    def step(number: int) -> int:
        return number

    @DBOS.workflow()
    def workflow() -> int:
        return step(1) + step(2)

    DBOS.launch()
    queue = DBOS.register_queue("bench", polling_interval_sec=0.01)
    ready.wait(120)
    started = time.perf_counter()

    def client() -> int:
        handles = []
        count = 0
        while time.perf_counter() - started < seconds:
            if queued:
                handles.append(queue.enqueue(workflow))
            else:
                assert workflow() == 3
            count += 1
        assert all(handle.get_result(polling_interval_sec=0.05) == 3 for handle in handles)
        return count

    with ThreadPoolExecutor(threads) as pool:
        counts = [future.result() for future in [pool.submit(client) for _ in range(threads)]]
    rates.put(sum(counts) / (time.perf_counter() - started))
    ready.wait(120)  # a process runs queued workflows of the others, too
    DBOS.destroy()


Measure = Callable[[OperationStore, int, float], Awaitable[float]]


async def measure(backend: str, directory: Path, seconds: float) -> dict[str, float]:
    """All figures of one database."""
    found: dict[str, float] = {}
    database = Database.open(await fresh_database_url(backend, directory))
    store = OperationStore(database)
    measures: dict[str, Measure] = {"steps": steps_per_s, "operations": operations_per_s}
    for name, take in measures.items():
        await take(store, WIDTHS[-1] + 1, 0.3)  # warm up: statements compiled, connections open
        for width in WIDTHS:
            found[f"{backend}_{name}_per_s_at_{width}"] = rate = await take(store, width, seconds)
            print(f"{backend}: {rate:,.0f} {name} per s, {width} at a time in one process", flush=True)
    if not database.is_sqlite:
        width = WIDTHS[-1]
        rate = await operations_of_processes_per_s(store, width, seconds)
        found[f"{backend}_operations_per_s_at_{width}_processes"] = rate
        print(f"{backend}: {rate:,.0f} operations per s, {width} processes", flush=True)
    for name in measures:
        best = max(rate for key, rate in found.items() if key.startswith(f"{backend}_{name}_"))
        found[f"{backend}_{name}_per_s"] = best
    await database.close()
    (directory / "recovery").mkdir()
    found[f"{backend}_recovery_{RECOVERED}_s"] = await recovery_s(
        await fresh_database_url(backend, directory / "recovery")
    )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measured run")
    seconds = parser.parse_args().seconds
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    refuse_memory(Path(tempfile.gettempdir()))
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for backend in ("sqlite", "postgres"):
            directory = Path(name) / backend
            directory.mkdir()
            results |= asyncio.run(measure(backend, directory, seconds))
        results["sqlite_floor_per_s"] = sqlite_floor(Path(name), seconds)
    results["postgres_floor_per_s"] = asyncio.run(_postgres_floor(seconds))
    url = asyncio.run(_new_database()).replace("+asyncpg", "")
    rates = dbos_workflows_per_s(url, seconds)
    results |= {f"dbos_workflows_per_s_{shape}": rate for shape, rate in rates.items()}
    for way, key in (("called", "dbos_workflows_per_s"), ("queued", "dbos_queued_workflows_per_s")):
        results[key] = max(rate for shape, rate in rates.items() if way in shape)
    results[f"recovery_{RECOVERED}_s"] = max(
        results[f"{b}_recovery_{RECOVERED}_s"] for b in ("sqlite", "postgres")
    )
    for key, value in results.items():
        print(f"{key:40} {value:10,.1f}")
    print(f"recovery: with a lease of {RECOVERY_LEASE_S:g} s, the default is {AttemptSettings().lease_s:g} s")
    facts = {
        "recovery_lease_s": RECOVERY_LEASE_S,
        "default_lease_s": AttemptSettings().lease_s,
        "seconds_per_run": seconds,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "dbos": version("dbos"),
    }
    print(json.dumps({key: round(value, 1) for key, value in results.items()} | facts))


async def _new_database() -> str:
    return server().url(await server().create_database())


async def _postgres_floor(seconds: float) -> float:
    return await postgres_floor(await _new_database(), seconds)


if __name__ == "__main__":
    main()

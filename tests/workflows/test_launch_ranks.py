"""A model over two nodes: its runners start together, and the first that fails ends them all with its own cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from operations.polling import reached
from support.postgres import fresh_database_url
from wharfinger.access.secrets import InstallationSecret
from wharfinger.catalog.library import CardSource, CatalogLibrary
from wharfinger.fleet.agent import (
    AgentError,
    LogChunk,
    NodeReport,
    RunnerReport,
    RunnerSpec,
    RunnerState,
    StopDeadlines,
)
from wharfinger.operations.model import NewOperation, Operation, OperationState
from wharfinger.operations.worker import new_owner
from wharfinger.routing.targets import RouteTable
from wharfinger.settings import Settings
from wharfinger.store.database import Database
from wharfinger.store.errors import StoreUnavailable
from wharfinger.workflows import instances as rows
from wharfinger.workflows.admission import INSTANCE, LAUNCH
from wharfinger.workflows.instances import InstanceStatus
from wharfinger.workflows.routes import RoutePublisher
from workflows.conftest import Control, one_rank

READY, FAILED, SHUTDOWN = RunnerState.READY, RunnerState.FAILED, RunnerState.SHUTDOWN


@dataclass
class Ring:
    """What two nodes share: a rank is ready only once both have started."""

    endpoint: str
    met: asyncio.Event = field(default_factory=asyncio.Event)
    specs: dict[int, RunnerSpec] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    failing_rank: int | None = None


class RingNode:
    """A node whose runner joins a ring."""

    def __init__(self, node_id: str, ring: Ring) -> None:
        self.node_id = node_id
        self._ring = ring
        self._spec: RunnerSpec | None = None
        self._report: RunnerReport | None = None

    async def report(self) -> NodeReport:
        raise AgentError("telemetry_timeout", "this node measures nothing")

    async def has_files(self, paths: tuple[str, ...]) -> tuple[bool, ...]:
        return tuple(Path(path).is_file() for path in paths)

    async def start_runner(self, spec: RunnerSpec) -> RunnerReport:
        if self._report is not None:
            return self._report
        self._spec = self._ring.specs[spec.rank] = spec
        if len(self._ring.specs) == spec.world_size:
            self._ring.met.set()
        return self._now(RunnerState.LOADING)

    async def runners(self) -> tuple[RunnerReport, ...]:
        return () if self._report is None else (self._report,)

    async def wait_runner(self, runner_id: str, since: RunnerReport | None, timeout_s: float) -> RunnerReport:
        assert self._spec is not None
        await self._ring.met.wait()
        if self._ring.failing_rank is None:
            return self._now(READY)
        if self._spec.rank == self._ring.failing_rank:
            return self._now(FAILED)
        await asyncio.Event().wait()
        raise AssertionError

    async def stop_runner(self, runner_id: str, deadlines: StopDeadlines) -> RunnerReport:
        assert self._spec is not None
        assert self._report is not None
        self._ring.stopped.append(self._spec.rank)
        return self._report if self._report.state.ended else self._now(SHUTDOWN)

    async def forget_runner(self, runner_id: str) -> None:
        self._report = None

    async def read_log(self, runner_id: str, offset: int, limit_bytes: int) -> LogChunk:
        raise NotImplementedError

    async def close(self) -> None:
        return

    def _now(self, state: RunnerState) -> RunnerReport:
        assert self._spec is not None
        self._report = RunnerReport(
            runner_id=self._spec.runner_id,
            instance_id=self._spec.instance_id,
            node_id=self.node_id,
            model_id=self._spec.model_id,
            backend=self._spec.backend,
            state=state,
            state_since=datetime.now(UTC),
            started_at=datetime.now(UTC),
            endpoint=self._ring.endpoint if state is READY else None,
            error_code="out_of_memory" if state is FAILED else None,
            error_message=f"no memory on {self.node_id}" if state is FAILED else None,
        )
        return self._report


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    """A ring whose first rank serves ``m`` on loopback to whoever has a key."""

    async def models(request: web.Request) -> web.Response:
        if "Authorization" not in request.headers:
            return web.Response(status=401)
        return web.json_response({"data": [{"id": one_rank("n0")[0].model_id}]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/v1/models", models)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Ring(f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


async def launched(tmp_path: Path, ring: Ring) -> tuple[Control, Operation]:
    """A control plane with two nodes of the ring, after it launched one model over both."""
    database = Database.open(await fresh_database_url("sqlite", tmp_path))
    model, alone = one_rank("n0")
    (first,) = alone.ranks
    both = replace(alone, ranks=(first, replace(first, node_id="n1", rank=1)))
    artifact = tmp_path / "m.gguf"
    artifact.touch()
    catalog = CatalogLibrary(database)
    await catalog.add_card(model, CardSource.CUSTOM, artifact)
    control = Control(
        *(Settings(data_dir=tmp_path), database, catalog, {n: RingNode(n, ring) for n in ("n0", "n1")}),
        *(RouteTable(), InstallationSecret.load_or_create(tmp_path / "secret"), new_owner("test")),
    )
    new = NewOperation(
        kind=LAUNCH,
        resource_type=INSTANCE,
        resource_name="inst_a",
        request={},
        affinity="n0",
        cleanup_if_unstarted=True,
    )
    async with database.begin() as connection:
        await rows.add_instance(connection, "inst_a", model, {}, both)
        operation, _ = await control.operations.submit(new, connection)
    async with control.working():
        return control, await reached(control.operations, operation.operation_id)


async def test_ranks_that_wait_for_each_other_become_ready(tmp_path: Path, ring: Ring) -> None:
    control, operation = await launched(tmp_path, ring)
    assert (operation.state, operation.error_code) == (OperationState.SUCCEEDED, None)
    found = await control.found()
    assert found is not None
    assert found.status is InstanceStatus.READY
    assert [(spec.runner_id, spec.world_size) for _, spec in sorted(ring.specs.items())] == [
        ("inst_a-r0", 2),
        ("inst_a-r1", 2),
    ]
    steps = {step.name: step.status for step in await control.operations.steps(operation.operation_id)}
    assert steps == dict.fromkeys(
        ("files", "runner.0.identity", "runner.0", "runner.1.identity", "runner.1", "inspect", "route"),
        "succeeded",
    )
    assert len(control.table.serving(found.model_id)) == 1
    await control.database.close()


async def test_a_launch_that_is_ready_and_not_over_is_tried_again_and_succeeds(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database went away right after the instance was recorded as ready."""
    refresh = RoutePublisher.refresh
    outages = [StoreUnavailable("gone for a moment")]

    async def refreshed(publisher: RoutePublisher) -> None:
        if outages:
            raise outages.pop()
        await refresh(publisher)

    monkeypatch.setattr(RoutePublisher, "refresh", refreshed)
    control, operation = await launched(tmp_path, ring)
    assert outages == []
    assert (operation.state, operation.error_code) == (OperationState.SUCCEEDED, None)
    assert ring.stopped == []
    await control.database.close()


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_fails_ends_the_others_with_its_own_cause(
    rank: int, tmp_path: Path, ring: Ring
) -> None:
    ring.failing_rank = rank
    control, operation = await launched(tmp_path, ring)
    assert (operation.state, operation.error_code, operation.error_message) == (
        OperationState.FAILED,
        "out_of_memory",
        f"no memory on n{rank}",
    )
    assert sorted(ring.stopped) == [0, 1]
    found = await control.found()
    assert found is not None
    assert found.status is InstanceStatus.FAILED
    (failure,) = await control.failures()
    assert (failure.error_code, failure.affected_node_ids) == ("out_of_memory", ("n0", "n1"))
    await control.database.close()

"""A control plane in this process: a real node, a real database, and a worker where a test asks for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.fleets import ask, card, cpu_server, fleet
from support.postgres import fresh_database_url
from wharfinger.access.secrets import InstallationSecret
from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.library import CatalogLibrary
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.worker import new_owner
from wharfinger.placement.planner import plan
from wharfinger.placement.types import Plan
from wharfinger.routing.targets import RouteTable
from wharfinger.settings import Settings
from wharfinger.store.database import Database
from wharfinger.workflows import instances as rows
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.instances import Instance, InstanceStatus


def one_rank(node_id: str) -> tuple[ModelCard, Plan]:
    """A small model and its plan on one node."""
    model = card(n_layers=2, layer_mib=1, backends=("llama_cpp-cpu",))
    placed = plan(fleet(cpu_server(node_id)), model, ask()).best
    assert placed is not None
    return model, placed


class Control(ControlPlane):
    """A control plane that has not started: nothing happens but what a test does."""

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Its worker runs until the end of the block."""
        task = asyncio.create_task(self.worker.run())
        try:
            yield
        finally:
            await self.worker.stop()
            await task

    async def look(self) -> None:
        """One look of the watch over the runners, and what it begins, to its end."""
        await self.watch.look()
        await asyncio.gather(*self.watch.at_work.values())

    async def add(
        self, node_id: str, status: InstanceStatus = InstanceStatus.LAUNCHING, instance_id: str = "inst_a"
    ) -> Instance:
        """Write an instance of one rank on ``node_id``, with its reservation and without any operation."""
        model, placed = one_rank(node_id)
        async with self.database.begin() as connection:
            await rows.add_instance(connection, instance_id, model, {}, placed)
            await rows.set_status(connection, instance_id, status)
        return (await self.instance(instance_id)).instance

    async def found(self, instance_id: str = "inst_a") -> Instance | None:
        """The instance, if it is not deleted."""
        async with self.database.read() as connection:
            return await rows.get_instance(connection, instance_id)

    async def reserved_bytes(self) -> int:
        """What all instances hold."""
        async with self.database.read() as connection:
            return sum(held.size_bytes for held in await rows.list_reservations(connection))


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[LocalAgent]:
    """This machine as a node."""
    started = LocalAgent(tmp_path / "node")
    await started.start()
    yield started
    await started.close()


ON_BOTH = pytest.mark.parametrize("control", ["sqlite", "postgres"], indirect=True)
"""Runs a test that takes ``control`` on each database."""


@pytest.fixture
async def control(
    request: pytest.FixtureRequest, tmp_path: Path, agent: LocalAgent
) -> AsyncIterator[Control]:
    """A control plane that reaches ``agent``, on SQLite unless a test asks for :data:`ON_BOTH`."""
    database = Database.open(await fresh_database_url(getattr(request, "param", "sqlite"), tmp_path))
    secret = InstallationSecret.load_or_create(tmp_path / "installation.secret")
    catalog = CatalogLibrary(database)
    made = Control(
        *(Settings(data_dir=tmp_path), database, catalog, {agent.node_id: agent}),
        *(RouteTable(), secret, new_owner("test")),
    )
    yield made
    await made.watch.close()
    await database.close()

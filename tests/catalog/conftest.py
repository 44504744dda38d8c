"""Databases and the demo model for the catalog's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.postgres import fresh_database_url
from wharfinger.catalog.demo import ensure_demo_model
from wharfinger.store.database import Database


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    opened = Database.open(await fresh_database_url(request.param, tmp_path))
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real demo model, put together once."""
    return ensure_demo_model(tmp_path_factory.mktemp("models"), lambda _: None)

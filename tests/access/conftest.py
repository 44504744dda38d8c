"""Keys and sessions on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.postgres import fresh_database_url
from wharfinger.access.secrets import InstallationSecret
from wharfinger.store.database import Database


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(await fresh_database_url(request.param, tmp_path))
    yield opened
    await opened.close()


@pytest.fixture
def secret() -> InstallationSecret:
    return InstallationSecret(bytes(32))

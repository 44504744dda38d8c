from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from support.gateway import Serve, Serving
from support.upstream import Upstream


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(target, …, limits=…)`` starts a gateway; it is stopped at the end of the test."""
    serving = Serving()
    yield serving
    serving.stop()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """One upstream on a free port."""
    async with Upstream() as running:
        yield running

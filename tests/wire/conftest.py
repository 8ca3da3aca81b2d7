"""Workers with a played scheduler."""

from collections.abc import AsyncIterator

import pytest

from tests.wire.fake_scheduler import Worker, serve


@pytest.fixture
async def loading() -> AsyncIterator[Worker]:
    """A worker whose scheduler has not reported ready."""
    async with serve() as worker:
        yield worker


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """A ready worker."""
    async with serve(served_model_name="tiny") as made:
        await made.become_ready()
        yield made

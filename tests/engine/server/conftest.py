"""What tests of a replica's process share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.engine.fake_gateway import Client


@pytest_asyncio.fixture
async def connections() -> AsyncIterator[None]:
    """Hang up what a test dialed. What was dialed before, in other modules, belonged to other event loops."""
    Client.dialed.clear()
    yield
    for client in Client.dialed:
        await client.close()

"""Users on a fresh database, as a gateway has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from audit_log.actors import Actor, acting_as
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.users.passwords import Passwords
from tenancy.users.service import Users


@pytest.fixture(autouse=True)
def acting() -> Iterator[None]:
    with acting_as(Actor("command", "tester", "tester")):
        yield


@pytest.fixture
async def bus() -> AsyncIterator[LocalBus]:
    bus = LocalBus()
    yield bus
    await bus.close()


@pytest.fixture
async def users(database: Database, bus: LocalBus) -> AsyncIterator[Users]:
    users = Users(database, b"m" * 32, bus)
    quicken(users.passwords)
    await users.start()
    yield users
    await users.close()


def quicken(passwords: Passwords) -> None:
    """Let a hash take a millisecond: what is tested is not argon2."""
    from argon2 import PasswordHasher

    passwords._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

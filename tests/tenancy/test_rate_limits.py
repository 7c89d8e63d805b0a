"""Limits as rows, and what is cached of them: changes are heard, and old ones serve while the database is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from audit_log.actors import Actor, NoActor, acting_as
from storage.bus import LocalBus
from storage.database.database import Database, DatabaseUnavailable
from tenancy.keys import Peppers
from tenancy.rate_limits import InvalidLimit, LimitCache, Limits, LimitSubject, RateLimits
from tenancy.repositories import NoSuchRecord, Tenancy

PEPPERS = Peppers({1: b"p" * 32}, 1)
ACTOR = Actor("command", "tester", "tester")


class Owner:
    """A project with a key."""

    def __init__(self, database: Database, bus: LocalBus, key: LimitSubject) -> None:
        self.store = RateLimits(database, bus)
        self.key = key
        self.project = LimitSubject(key.tenant_id, key.project_id)

    async def set(self, subject: LimitSubject, **limits: int) -> Limits | None:
        with acting_as(ACTOR):
            return await self.store.set(subject, Limits(**limits))


@pytest.fixture
async def bus() -> AsyncIterator[LocalBus]:
    bus = LocalBus()
    yield bus
    await bus.close()


@pytest.fixture
async def owner(database: Database, bus: LocalBus) -> Owner:
    tenancy = Tenancy(database, PEPPERS, bus)
    tenant = await tenancy.create_tenant(f"acme-{uuid4().hex}")
    project = await tenancy.create_project(tenant.id, "web")
    issued = await tenancy.create_key(tenant.id, project.id)
    return Owner(database, bus, await RateLimits(database, bus).subject_of_key(issued.public_id))


async def applying(cache: LimitCache, owner: Owner) -> list[Limits]:
    assert owner.key.key_id is not None
    key = (owner.key.key_id, owner.key.project_id, owner.key.tenant_id)
    found = cache.known(*key)
    return [one.limits for one in (await cache.load(*key) if found is None else found)]


async def test_a_change_returns_what_was_and_is_heard(database: Database, bus: LocalBus, owner: Owner) -> None:
    cache = LimitCache(database, bus, ttl=1000)
    await cache.start()
    assert await applying(cache, owner) == []
    assert await owner.set(owner.key, requests_per_minute=5) is None
    await asyncio.sleep(0)
    assert await applying(cache, owner) == [Limits(requests_per_minute=5)]
    assert await owner.set(owner.key, concurrent_requests=2) == Limits(requests_per_minute=5)
    await owner.set(owner.project, output_tokens_per_minute=100)
    await asyncio.sleep(0)
    assert await applying(cache, owner) == [Limits(output_tokens_per_minute=100), Limits(concurrent_requests=2)]
    with acting_as(ACTOR):
        assert await owner.store.remove(owner.project) == Limits(output_tokens_per_minute=100)
        assert await owner.store.remove(owner.project) is None
    await asyncio.sleep(0)
    assert await applying(cache, owner) == [Limits(concurrent_requests=2)]
    await cache.close()


async def test_old_limits_serve_while_they_are_read_and_while_the_database_is_away(
    database: Database, bus: LocalBus, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LimitCache(database, LocalBus(), ttl=0.05)  # hears nothing
    await owner.set(owner.key, requests_per_minute=5)
    assert await applying(cache, owner) == [Limits(requests_per_minute=5)]
    await owner.set(owner.key, requests_per_minute=6)
    await asyncio.sleep(0.06)
    assert await applying(cache, owner) == [Limits(requests_per_minute=5)]
    await cache.close()
    assert await applying(cache, owner) == [Limits(requests_per_minute=6)]
    await asyncio.sleep(0.11)

    def away() -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(database, "reading", away)
    assert await applying(cache, owner) == [Limits(requests_per_minute=6)]
    with pytest.raises(DatabaseUnavailable):
        await cache.load(uuid4(), owner.key.project_id, owner.key.tenant_id)


async def test_limits_have_bounds_owners_and_an_actor(database: Database, bus: LocalBus, owner: Owner) -> None:
    for limits in (Limits(), Limits(requests_per_minute=0), Limits(concurrent_requests=10**9 + 1)):
        with pytest.raises(InvalidLimit):
            await owner.store.set(owner.key, limits)
    with pytest.raises(NoActor):
        await owner.store.set(owner.key, Limits(requests_per_minute=1))
    assert await owner.store.get(owner.key) is None
    for look in (owner.store.subject_of_key("nobody"), owner.store.subject_of_project(uuid4())):
        with pytest.raises(NoSuchRecord):
            await look


async def test_a_list_names_owners_and_is_of_one_tenant(owner: Owner) -> None:
    await owner.set(owner.key, requests_per_minute=5)
    await owner.set(owner.project, requests_per_minute=50)
    found = await owner.store.list(tenant_id=owner.key.tenant_id)
    assert [(one.scope, one.project, one.limits.requests_per_minute) for one in found] == [
        ("project", "web", 50),
        ("key", "web", 5),
    ]
    assert found[1].key
    assert await owner.store.list(tenant_id=uuid4()) == []

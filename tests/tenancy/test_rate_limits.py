"""Limits as rows, and what is cached of them: changes are heard, and old ones serve while the database is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from sqlalchemy import select

from audit_log.actors import Actor, acting_as
from audit_log.tables import audit_entry
from storage.bus import LocalBus
from storage.database.database import Database, DatabaseUnavailable
from tenancy.keys import Peppers
from tenancy.rate_limits import InvalidLimit, LimitCache, Limits, LimitSubject, RateLimits
from tenancy.repositories import NoSuchRecord, Tenancy

PEPPERS = Peppers({1: b"p" * 32}, 1)
ACTOR = Actor("command", "tester", "tester")


class Owner:
    """A project with a key."""

    def __init__(self, database: Database, bus: LocalBus, key: LimitSubject, public_id: str) -> None:
        self.store = RateLimits(database, bus)
        self.key = key
        self.public_id = public_id
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
    subject = await RateLimits(database, bus).subject_of_key(issued.public_id)
    return Owner(database, bus, subject, issued.public_id)


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
    now = 1000.0
    cache = LimitCache(database, LocalBus(), ttl=10.0, clock=lambda: now)  # hears nothing
    await owner.set(owner.key, requests_per_minute=5)
    assert await applying(cache, owner) == [Limits(requests_per_minute=5)]
    await owner.set(owner.key, requests_per_minute=6)
    now += 11
    assert await applying(cache, owner) == [Limits(requests_per_minute=5)]
    await cache.close()
    assert await applying(cache, owner) == [Limits(requests_per_minute=6)]
    now += 21

    def away() -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(database, "reading", away)
    assert await applying(cache, owner) == [Limits(requests_per_minute=6)]
    with pytest.raises(DatabaseUnavailable):
        await cache.load(uuid4(), owner.key.project_id, owner.key.tenant_id)


async def test_limits_have_bounds_and_owners(owner: Owner) -> None:
    for limits in (Limits(), Limits(requests_per_minute=0), Limits(concurrent_requests=10**9 + 1)):
        with pytest.raises(InvalidLimit):
            await owner.store.set(owner.key, limits)
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


async def test_every_change_is_in_the_audit_log(database: Database, owner: Owner) -> None:
    await owner.set(owner.key, requests_per_minute=5)
    await owner.set(owner.key, concurrent_requests=2)
    with acting_as(ACTOR):
        await owner.store.remove(owner.key, "trial over")
    query = select(audit_entry).where(audit_entry.c.tenant_id == owner.key.tenant_id).order_by(audit_entry.c.number)
    async with database.reading() as session:
        rows = [row for row in (await session.execute(query)).all() if row.action.startswith("limits.")]
    assert [(row.action, row.target, row.target_id, row.actor_name) for row in rows] == [
        (action, "key", owner.public_id, "tester") for action in ("limits.set", "limits.set", "limits.removed")
    ]
    assert rows[2].reason == "trial over"
    assert rows[0].before is None
    assert rows[1].before == rows[0].after
    assert rows[2].after is None

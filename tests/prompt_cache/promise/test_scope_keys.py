"""Projects' data keys: one for all gateways, wrapped, destroyed for good."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import select, update

from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys, ScopeKeyUnreadable
from prompt_cache.tables import cache_scope_key
from prompt_cache.tiers.identity import ScopeAccess
from protocol.replicas import TierLimit
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable

MASTER = b"m" * 32
TENANT = new_id()


def keys_of(database: Database, master: bytes = MASTER) -> ScopeKeys:
    return ScopeKeys(database, master)


@pytest.fixture
def project() -> UUID:
    return new_id()


@pytest.mark.both_databases
async def test_gateways_that_ask_at_once_get_one_key(database: Database, project: UUID) -> None:
    gateways = [keys_of(database) for _ in range(6)]
    keys = await asyncio.gather(*(gateway.load(TENANT, project) for gateway in gateways for _ in range(3)))
    assert len({key.key for key in keys}) == 1
    assert len(keys[0].key) == 32
    async with database.reading() as session:
        (row,) = (await session.execute(select(cache_scope_key))).all()
    assert keys[0].key not in row.wrapped_key, "it is not in the database as it is"
    assert gateways[0].known(project) == keys[0]


async def test_projects_have_keys_of_their_own(database: Database, project: UUID) -> None:
    keys = keys_of(database)
    other = await keys.load(TENANT, new_id())
    assert (await keys.load(TENANT, project)).key != other.key


async def test_another_tenant_does_not_get_the_key(database: Database, project: UUID) -> None:
    mine = await keys_of(database).load(TENANT, project)
    with pytest.raises(ScopeKeyUnreadable):
        await keys_of(database).load(new_id(), project)
    assert (await keys_of(database).load(TENANT, project)) == mine


@pytest.mark.both_databases
async def test_a_destroyed_key_is_gone_and_the_next_is_another(database: Database, project: UUID) -> None:
    keys, elsewhere = keys_of(database), keys_of(database)
    before, _ = await keys.load(TENANT, project), await elsewhere.load(TENANT, project)
    _, since = await elsewhere.changes(None)
    assert await keys.destroy(TENANT, project, "the project was deleted") == 1
    assert await keys.destroy(TENANT, project, "again") == 0
    async with database.reading() as session:
        (row,) = (await session.execute(select(cache_scope_key))).all()
    assert row.wrapped_key is None
    assert row.reason == "the project was deleted"

    changes, _ = await elsewhere.changes(since)
    (destroyed,) = [change for change in changes if change.destroyed]
    assert (destroyed.project_id, destroyed.generation) == (project, 1)
    await elsewhere.refresh(destroyed)
    assert elsewhere.known(project) is None
    after = await elsewhere.load(TENANT, project)
    assert after.generation == 2
    assert after.key != before.key
    await elsewhere.refresh(destroyed)
    assert elsewhere.known(project) == after, "the newer key was not destroyed"


async def test_a_key_of_another_master_key_is_refused(database: Database, project: UUID) -> None:
    await keys_of(database).load(TENANT, project)
    with pytest.raises(ScopeKeyUnreadable, match="master key"):
        await keys_of(database, b"n" * 32).load(TENANT, project)


async def test_a_key_in_another_projects_row_is_refused(database: Database, project: UUID) -> None:
    keys, other = keys_of(database), new_id()
    await keys.load(TENANT, project)
    await keys.load(TENANT, other)
    of = cache_scope_key.c
    async with database.transaction() as session:
        wrapped = (await session.execute(select(of.wrapped_key).where(of.project_id == other))).scalar_one()
        change = update(cache_scope_key).where(of.project_id == project).values(wrapped_key=wrapped)
        await session.execute(change)
    with pytest.raises(ScopeKeyUnreadable):
        await keys_of(database).load(TENANT, project)


async def test_policies_reach_the_scope_and_survive_a_destroyed_key(database: Database, project: UUID) -> None:
    keys = keys_of(database)
    domains = CacheDomains(b"s" * 32, keys, retention=100.0)
    assert domains.project(TENANT, project).retention == 0.0, "without its key nothing leaves the device"
    await domains.prepare(TENANT, project)
    first = domains.project(TENANT, project)
    assert (first.retention, first.limits) == (100.0, ())
    assert domains.project(TENANT, project) is first, "a scope that did not change is the same object"

    limits = (TierLimit("nvme", 10, 20), TierLimit("dram", 1, 2))
    await keys.set_policy(TENANT, project, retention=7, limits=limits)
    await domains.prepare(TENANT, project)
    second = domains.project(TENANT, project)
    assert (second.scope, second.root, second.data_key) == (first.scope, first.root, first.data_key)
    assert (second.retention, second.limits) == (7.0, limits)
    access = ScopeAccess.of(second)
    assert (access.reserve, access.limit, access.retention) == (10, 20, 7.0)

    await keys.destroy(TENANT, project, "test")
    await domains.prepare(TENANT, project)
    third = domains.project(TENANT, project)
    assert third.scope != second.scope, "a late Forget of the old scope leaves the new one alone"
    assert third.data_key != second.data_key
    assert third.root == second.root
    assert (third.retention, third.limits) == (7.0, limits)
    assert domains.name(TENANT, project, 1) == second.scope


async def test_a_database_that_is_away_leaves_kv_on_the_device(database: Database, project: UUID) -> None:
    keys = keys_of(database)
    domains = CacheDomains(b"s" * 32, keys, retention=100.0)
    await database.engine.dispose()

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("away")

    keys._read_or_make = away  # type: ignore[method-assign,assignment]
    assert not domains.ready(project)
    await domains.prepare(TENANT, project)
    assert domains.project(TENANT, project).retention == 0.0


async def test_changes_are_told_once_they_are_old(database: Database) -> None:
    keys = keys_of(database)
    for _ in range(5):
        await keys.load(TENANT, new_id())
    changes, since = await keys.changes(None)
    assert len(changes) == 5
    assert since > 0
    assert len((await keys.changes(since))[0]) == 5, "rows may be committed late"
    assert not (await keys.changes(max(change.changed_at for change in changes)))[0]


async def test_a_limit_of_a_tier_that_we_do_not_know_is_left_out(database: Database, project: UUID) -> None:
    """A newer gateway wrote it. The others hold, and requests go on."""
    keys = keys_of(database)
    domains = CacheDomains(b"s" * 32, keys, retention=100.0)
    known = TierLimit("dram", 1, 2)
    newer = TierLimit("tape", 1, 2)  # type: ignore[arg-type]
    await keys.set_policy(TENANT, project, retention=7, limits=(newer, known))
    await domains.prepare(TENANT, project)
    assert domains.project(TENANT, project).limits == (known,)

"""On PostgreSQL several transactions change leases at once: one that is in another's way costs nobody an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, text, update

from prompt_cache.promise.lease_decisions import Confirmation, LeaseDecision
from prompt_cache.promise.lease_rows import LeaseRows
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.tables import lease
from storage.database.database import Database, TransactionConflict, retried_after_conflict
from tests.prompt_cache.promise.decided_leases import PROJECT, decided
from tests.waiting import LONG_S


@pytest.fixture
async def database(fresh_postgres_url: str) -> AsyncIterator[Database]:
    """PostgreSQL alone: SQLite has one writer."""
    opened = await Database.open(fresh_postgres_url)
    yield opened
    await opened.close()


async def written(store: LeaseStore, database: Database, path: str) -> LeaseDecision:
    """What is decided for a request that marks this prefix, and reads what there is of it."""
    return (await decided(store, database, path, tokens=64))[1]


async def waiting(database: Database) -> None:
    """Wait until somebody waits for a lock."""
    found = 0
    while not found:
        async with database.reading() as session:
            found = await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))


@pytest.mark.parametrize("how", ["settle", "confirm"])
async def test_a_deadlock_is_tried_again(database: Database, how: str) -> None:
    """The other transaction locks the rows in another order, and is patient: PostgreSQL ends ours."""
    store = LeaseStore(database)
    decisions = [await written(store, database, path) for path in ("a", "b")]
    first, second = (decision.written[0].id for decision in decisions)
    async with database.transaction() as session:
        await session.execute(text("SET LOCAL deadlock_timeout = '60s'"))
        await session.execute(update(lease).where(lease.c.id == second).values(reads=7))
        if how == "settle":
            ours = asyncio.create_task(store.settle_writes({one.request_id: range(10**6) for one in decisions}))
        else:
            ours = asyncio.create_task(store.confirm_all([Confirmation(one) for one in decisions]))
        async with asyncio.timeout(LONG_S):
            await waiting(database)
        await session.execute(update(lease).where(lease.c.id == first).values(reads=7))
    assert await ours == (0 if how == "settle" else [True, True])
    async with database.reading() as session:
        rows = (await session.execute(select(lease.c.paid, lease.c.told))).all()
    assert [tuple(row) for row in rows] == [(1, 0) if how == "settle" else (0, 1)] * 2


async def test_a_conflict_that_stays_is_told() -> None:
    tries = 0

    @retried_after_conflict
    async def conflicts() -> None:
        nonlocal tries
        tries += 1
        raise TransactionConflict("in the way")

    with pytest.raises(TransactionConflict):
        await conflicts()
    assert tries == 2


async def test_what_is_locked_is_billed_later(database: Database) -> None:
    """Who pays for the beginning of a chain does not wait for who reads the end of it."""
    store = LeaseStore(database)
    beginning = await written(store, database, "a")
    end = await written(store, database, "ab")
    await store.settle_writes({end.request_id: range(10**6)})

    async def billed() -> list[bool]:
        return [
            bool(one.billed) for one in sorted(await store.page(PROJECT, limit=9, after=None), key=lambda x: x.tokens)
        ]

    async with database.transaction() as session:
        await session.execute(select(lease.c.id).where(lease.c.id == end.written[0].id).with_for_update())
        async with asyncio.timeout(LONG_S):
            assert await store.settle_writes({beginning.request_id: range(10**6)}) == 0
        assert await billed() == [True, False]
        await store.bill_rest()
        assert await billed() == [True, False]
    await store.bill_rest()
    assert await billed() == [True, True]


@pytest.mark.parametrize("how", ["purged", "expired"])
async def test_who_goes_on_from_a_lease_that_ends_counts_its_tokens_although_locked(
    database: Database, how: str
) -> None:
    """A client extends the end of a chain while another one deletes the beginning, or that expires."""
    store = LeaseStore(database)
    (beginning,) = (await written(store, database, "a")).written
    await written(store, database, "ab")
    async with database.transaction() as session:
        await session.execute(select(lease.c.id).where(lease.c.id != beginning.id).with_for_update())
        if how == "purged":
            ending = asyncio.create_task(store.purge(PROJECT, identity=beginning.id))
        else:
            await session.execute(update(lease).where(lease.c.id != beginning.id).values(expires_at=2**62))
            ending = asyncio.create_task(store.reclaim(now=beginning.expires_at + 10**9))
        await asyncio.wait([ending], timeout=0.5)
    await ending
    await store.bill_rest()
    (kept,) = await store.page(PROJECT, limit=9, after=None)
    assert (kept.tokens, kept.new_tokens, kept.base) == (128, 128, None)


async def test_who_ends_leases_beside_others_who_do_counts_their_tokens(database: Database) -> None:
    """The middle of a chain ends in a transaction that the end of its beginning waits for."""
    store = LeaseStore(database)
    (beginning,) = (await written(store, database, "a")).written
    (middle,) = (await written(store, database, "ab")).written
    await written(store, database, "abc")
    async with database.transaction() as session:
        await LeaseRows(database).end(session, [middle], "purged", middle.created_at)
        ending = asyncio.create_task(store.purge(PROJECT, identity=beginning.id))
        await asyncio.wait([ending], timeout=0.5)
    await ending
    (kept,) = await store.page(PROJECT, limit=9, after=None)
    assert (kept.tokens, kept.new_tokens, kept.base) == (192, 192, None)

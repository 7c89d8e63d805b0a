"""SQLite's connections: a transaction begins with its first statement, and nothing of one is left that is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import insert, select

from billing.tables.money import balance
from storage.database.base import new_id
from storage.database.database import Database


@pytest.fixture
async def database(fresh_sqlite_url: str) -> AsyncIterator[Database]:
    """SQLite alone: PostgreSQL has another driver."""
    opened = await Database.open(fresh_sqlite_url)
    yield opened
    await opened.close()


def _row() -> dict[str, object]:
    counts = (
        "credit",
        "debit",
        "held",
        "overdraft",
        "promo",
        "receivable",
        "credit_line",
        "holds",
        "budgets",
        "restricted",
    )
    return {"tenant_id": new_id(), "currency": "USD", **dict.fromkeys(counts, 0)}


@pytest.mark.parametrize("turns", range(8))
async def test_who_leaves_a_transaction_early_leaves_nothing_of_it(database: Database, turns: int) -> None:
    """Whether it has begun by then or not: after `turns` of the event loop."""

    async def write() -> None:
        async with database.transaction() as session:
            await session.execute(insert(balance).values(_row()))
            await asyncio.Event().wait()

    writing = asyncio.create_task(write())
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    row = _row()
    async with database.transaction() as session:
        await session.execute(insert(balance).values(row))
    async with database.reading() as session:
        assert [r._mapping for r in await session.execute(select(balance))] == [row]


async def test_what_is_begun_and_not_used_ends_with_nothing(database: Database) -> None:
    async with database.transaction():
        pass
    async with database.transaction(write=False) as session:
        await session.execute(insert(balance).values(_row()))
    async with database.reading() as session:
        assert not (await session.execute(select(balance))).all()

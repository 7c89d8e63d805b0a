"""The database: its URL, its clock, its transactions, and how it says that it is away."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from billing.tables.money import balance, refused_settlement
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import (
    Database,
    DatabaseDamaged,
    DatabaseUnavailable,
    InvalidDatabaseUrl,
    StatementTimeout,
    UnstorableText,
)
from storage.database.sql_arrays import one_of

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize(
    "url",
    ["", "x", "mysql://u:secret@h/d", "sqlite://", "sqlite:///", "sqlite:///:memory:", "postgresql://host",
     "postgresql+asyncpg://u:secret@h/d", "sqlite+aiosqlite:///x", "sqlite://host/x", "sqlite:///nowhere/at/all.db",
     "postgresql://u:secret@h:port/d", "sqlite:///x?mode=ro"],
)  # fmt: skip
async def test_a_malformed_url_is_refused_naming_the_setting_and_no_password(url: str) -> None:
    with pytest.raises(InvalidDatabaseUrl, match="TURNPIKE_DATABASE_URL") as refusal:
        await Database.open(url)
    assert "secret" not in str(refusal.value)


async def test_the_clock_is_the_present_in_microseconds(database: Database) -> None:
    before = time.time_ns() // 1000
    now = await database.now()
    assert before - 1000 <= now <= time.time_ns() // 1000
    assert to_instant(from_instant(now)) == now
    await database.ping()


def test_an_instant_needs_a_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        to_instant(from_instant(0).replace(tzinfo=None))


def _row() -> dict[str, object]:
    return {"tenant_id": new_id(), "currency": "USD", "credit": 1, "debit": 0, "held": 0, "overdraft": 0} | {
        "promo": 0,
        "receivable": 0,
        "credit_line": 0,
        "holds": 0,
        "budgets": 0,
        "restricted": 0,
    }


async def test_a_transaction_is_whole_or_not_at_all(database: Database) -> None:

    async def fail() -> None:
        async with database.transaction() as session:
            await session.execute(insert(balance).values(_row()))
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    row = _row()
    async with database.transaction() as session:
        await session.execute(insert(balance).values(row))
    async with database.reading() as session:
        assert [r._mapping for r in await session.execute(select(balance))] == [row]
    with pytest.raises(DBAPIError):
        async with database.reading() as session:
            await session.execute(insert(balance).values(_row()))


async def test_reading_sees_one_snapshot(database: Database) -> None:
    async with database.reading() as session:
        assert (await session.execute(select(balance))).all() == []
        async with database.transaction() as other:
            await other.execute(insert(balance).values(_row()))
        assert (await session.execute(select(balance))).all() == []


@pytest.mark.parametrize("count", [1, 255, 256, 257, 3_000])
async def test_results_of_any_length_are_read_whole_in_portions_and_in_part(database: Database, count: int) -> None:
    """However many rows come with the statement and however many later (`storage.database.sqlite_connection`)."""
    numbers = text(f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n")
    wanted = list(range(1, count + 1))
    async with database.reading() as session:
        assert list(await session.scalars(numbers)) == wanted
        streamed = [portion async for portion in (await session.stream_scalars(numbers)).partitions(100)]
        assert [number for portion in streamed for number in portion] == wanted
        broken_off = await session.stream_scalars(numbers)
        assert await broken_off.fetchmany(10) == wanted[:10]
        await broken_off.close()
        assert await session.scalar(numbers) == 1
    async with database.transaction() as session:
        await session.execute(text("CREATE TEMPORARY TABLE kept_numbers (i INTEGER)"))
        inserted = await session.scalars(text(f"INSERT INTO kept_numbers {numbers.text} RETURNING i"))
        assert sorted(inserted) == wanted
        updated = await session.execute(text("UPDATE kept_numbers SET i = i + 1"))
        assert updated.rowcount == len(wanted)
        assert await session.scalar(text("SELECT count(*) FROM kept_numbers")) == len(wanted)
        await session.execute(text("DROP TABLE kept_numbers"))


async def test_writers_take_turns(database: Database) -> None:
    row = _row()
    async with database.transaction() as session:
        await session.execute(insert(balance).values(row))

    async def add() -> None:
        async with database.transaction() as session:
            (credit,) = (await session.execute(database.locked(select(balance.c.credit)))).one()
            await asyncio.sleep(0)
            await session.execute(balance.update().values(credit=credit + 1))

    await asyncio.gather(*(add() for _ in range(20)))
    async with database.reading() as session:
        assert (await session.execute(select(balance.c.credit))).scalar_one() == 21


async def test_an_integer_that_does_not_fit_is_an_error_and_no_float(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(insert(balance).values(_row() | {"credit": 2**63 - 1}))
    if database.dialect == "sqlite":
        async with database.transaction() as session:
            with pytest.raises(DBAPIError):
                await session.execute(balance.update().values(credit=balance.c.credit + 1))


async def test_rows_are_found_by_any_of_many_values(database: Database) -> None:
    def row() -> dict[str, object]:
        return {"id": new_id(), "request_id": new_id(), "cause": "é", "body": b"\0", "refused_at": 1}

    rows = [row() for _ in range(5)]
    ids = [r["id"] for r in rows[:3]]
    async with database.transaction() as session:
        await session.execute(insert(refused_settlement), rows)
    async with database.reading() as session:
        query = select(refused_settlement).where(one_of(database, refused_settlement.c.id, [*ids, new_id()]))
        assert {r.id for r in await session.execute(query)} == set(ids)
        query = select(refused_settlement).where(one_of(database, refused_settlement.c.id, []))
        assert (await session.execute(query)).all() == []


async def test_a_database_that_is_away_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    others = set(threading.enumerate())
    for url in ("postgresql://nobody@127.0.0.1:1/nothing", f"sqlite:///{tmp_path}/folder"):
        away = await Database.open(url)
        with pytest.raises(DatabaseUnavailable):
            await away.ping()
        with pytest.raises(DatabaseUnavailable):
            async with away.transaction() as session:
                await session.execute(text("SELECT 1"))
        await away.close()
    for thread in set(threading.enumerate()) - others:  # the driver's, of the connection that failed
        await asyncio.to_thread(thread.join, 30)  # it says good-bye to the loop, which has to be there


async def test_a_server_that_does_not_let_us_in_is_away_too(postgres_url: str) -> None:
    server, _, _ = postgres_url.rpartition("/")
    for url in (f"{server}/nothing", postgres_url.replace("//turnpike@", "//nobody@")):
        away = await Database.open(url)
        with pytest.raises(DatabaseUnavailable, match=r"TURNPIKE_DATABASE_URL: .*Invalid"):
            await away.ping()
        await away.close()


async def test_a_bug_is_no_outage(database: Database) -> None:
    row = _row()
    with pytest.raises(IntegrityError):
        async with database.transaction() as session:
            await session.execute(insert(balance), [row, row])
    with pytest.raises(DBAPIError) as failure:
        async with database.transaction() as session:
            await session.execute(text("SELECT * FROM nothing WHERE secret = :secret"), {"secret": "opensesame"})
    assert "opensesame" not in str(failure.value)


async def test_a_text_that_postgresql_cannot_hold_is_not_found_or_refused_by_name(database: Database) -> None:
    query = select(refused_settlement).where(refused_settlement.c.cause == "a\0b")
    if database.dialect == "sqlite":
        async with database.reading() as session:
            assert (await session.execute(query)).all() == []
        return
    with pytest.raises(UnstorableText, match="U\\+0000"):
        async with database.reading() as session:
            await session.execute(query)
    with pytest.raises(UnstorableText):
        async with database.transaction() as session:
            await session.execute(query)
    with pytest.raises(UnstorableText):
        async with database.direct() as connection:
            await connection.fetch("SELECT 1 WHERE $1::text = ''", "a\0b")
    await database.ping()


async def test_a_statement_that_takes_too_long_is_told_from_a_database_that_is_away(fresh_postgres_url: str) -> None:
    database = await Database.open(fresh_postgres_url, statement_s=0.05)
    try:
        for session in (database.reading, database.transaction):
            with pytest.raises(StatementTimeout, match="took longer than it may"):
                async with session() as entered:
                    await entered.execute(text("SELECT pg_sleep(60)"))
        with pytest.raises(StatementTimeout):
            async with database.direct() as connection:
                await connection.execute("SELECT pg_sleep(60)")
        await database.ping()
    finally:
        await database.close()


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.db").write_text("this was never a database " * 10)
    database = await Database.open(f"sqlite:///{tmp_path}/d.db")
    try:
        with pytest.raises(DatabaseDamaged, match=r"d\.db is no SQLite database") as refusal:
            await database.ping()
        assert not refusal.value.temporary, "who starts it again meets the same"
    finally:
        await database.close()

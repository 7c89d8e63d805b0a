"""Months: events go to the partition of their id's month, which is made before them and never by chance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.calendar import following_period
from billing.events import partitions
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import Settled, settle
from billing.verification.audit import audit_money
from storage.database.base import new_id, to_instant
from storage.database.database import Database
from tests.billing.money import Tenant


def id_at(moment: datetime) -> UUID:
    """A UUIDv7 of another time."""
    return UUID(int=(to_instant(moment) // 1000 << 80) | (new_id().int & (1 << 80) - 1))


@given(st.datetimes(datetime(2020, 1, 1), datetime(2198, 12, 31), timezones=st.just(UTC)))
def test_an_id_is_of_the_month_of_its_time(moment: datetime) -> None:
    identity = id_at(moment)
    period = partitions.period_of_id(identity)
    assert period == f"{moment:%Y-%m}"
    assert partitions.is_ordered_by_time(identity)
    assert partitions._first_id(period) <= identity < partitions._first_id(following_period(period))


@pytest.fixture
async def database(fresh_postgres_url: str) -> Database:
    return await Database.open(fresh_postgres_url)


async def _partitions(database: Database) -> set[str]:
    async with database.reading() as session:
        found = await session.scalars(text("SELECT inhrelid::regclass::text FROM pg_inherits"))
        return {name for name in found if name.startswith("usage_fact_2")}


async def test_partitions_are_made_ahead_and_on_demand_by_many_at_once(
    database: Database, fresh_postgres_url: str
) -> None:
    others = [await Database.open(fresh_postgres_url) for _ in range(3)]
    await asyncio.gather(*(partitions.prepare(pool) for pool in (database, *others)))
    period = f"{datetime.now(UTC):%Y-%m}"
    for _ in range(3):
        assert f"usage_fact_{period.replace('-', '_')}" in await _partitions(database)
        period = following_period(period)
    tenant = await Tenant.rich(database, 10**12)
    ids = [id_at(datetime(2031, 12, 31, 23, 59, 59, tzinfo=UTC)), id_at(datetime(2032, 1, 1, tzinfo=UTC))]
    holds = [await HoldService(database).reserve(tenant.request(10**9, identity)) for identity in ids]
    events = [tenant.event(hold, sequence=n) for n, hold in enumerate(holds, 1)]
    settled = await asyncio.gather(*(settle(pool, PriceCatalog(pool), events) for pool in (database, *others)))
    assert sum(done.written for done in settled) == 2
    assert {"usage_fact_2031_12", "usage_fact_2032_01"} <= await _partitions(database)
    async with database.reading() as session:
        assert (await session.scalars(text("SELECT id FROM usage_fact_2032_01"))).all() == [ids[1]]
    assert await audit_money(database) == []
    for pool in (database, *others):
        await pool.close()


async def test_a_partition_is_as_immutable_as_the_whole(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    event = tenant.event(tenant.request(0))
    await settle(database, PriceCatalog(database), [event])
    month = partitions.period_of_id(event.id).replace("-", "_")
    for statement in ("DELETE FROM {}", "UPDATE {} SET output = 0", "TRUNCATE {}"):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(text(statement.format(f"usage_fact_{month}")))
            await session.rollback()
    await database.close()


async def test_an_event_of_no_month_has_nowhere_to_go(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    random = tenant.event(tenant.request(0, UUID("7f6bd6f0-0d3c-4a43-9c3d-0c1d8a7e5b11")))
    assert await settle(database, PriceCatalog(database), [random]) == Settled(refused=1)
    with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
        await _insert(database, random.id)
    await database.close()


async def _insert(database: Database, identity: UUID) -> None:
    async with database.direct() as connection:
        await connection.execute("INSERT INTO usage_fact (id) VALUES ($1)", identity)

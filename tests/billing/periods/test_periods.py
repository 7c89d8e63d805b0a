"""Billing periods close when everything has arrived, and stay as they were."""

# ruff: noqa: ASYNC110 (these tests look at files and states between awaits)

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, literal, select, text, update
from sqlalchemy.exc import DBAPIError

from billing.calendar import InvalidPeriod, following_period, period_bounds, period_of
from billing.holds.records import Hold
from billing.periods.periods import PeriodOpen, Periods
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.spool.gateway_epochs import EpochAlive, EpochKeeper, UnknownEpoch, declare_dead
from billing.spool.spool import Spool
from billing.tables.books import billing_period, gateway_epoch
from billing.tables.money import ledger_txn, rollup_hour, usage_event
from billing.transaction.opening import money_transaction
from billing.verification.audit import audit_money
from storage.database.base import Count, to_instant
from storage.database.database import Database
from tests.billing.money import Tenant

NOVEMBER, DECEMBER = period_bounds("2026-11")
LATER = DECEMBER + 7200 * 1_000_000


def at(database: Database, instant: int) -> None:
    """Set the database's clock."""
    database.clock = literal(instant, Count())


async def _admit(database: Database, tenant: Tenant, instant: int) -> Hold:
    at(database, instant)
    return await HoldService(database).reserve(tenant.request(10**8, lifetime_s=86_400))


@pytest.fixture(params=["UTC", "Pacific/Auckland", "America/New_York"])
def time_zone(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


@given(st.datetimes(datetime(2020, 1, 1), datetime(2198, 12, 31), timezones=st.just(UTC)))
def test_every_instant_is_in_its_own_period(moment: datetime) -> None:
    period = period_of(to_instant(moment))
    starts_at, ends_at = period_bounds(period)
    assert starts_at <= to_instant(moment) < ends_at
    assert (period_of(starts_at), period_of(ends_at - 1), period_of(ends_at)) == (
        period,
        period,
        following_period(period),
    )


@pytest.mark.usefixtures("time_zone")
def test_where_the_clock_hangs_does_not_matter() -> None:
    day = 86_400 * 1_000_000
    for period, days in (("2028-02", 29), ("2027-02", 28), ("2026-03", 31), ("2026-11", 30), ("2100-02", 28)):
        starts_at, ends_at = period_bounds(period)
        assert ends_at - starts_at == days * day
    assert period_bounds("1970-01")[0] == 0
    assert period_of(NOVEMBER) == "2026-11"
    assert period_of(NOVEMBER - 1) == "2026-10"


@pytest.mark.parametrize("period", ["2026-13", "2026-1", "november", "2026-11-01", "9999-12", "1969-12", "0000-01"])
def test_what_is_no_period_is_refused(period: str) -> None:
    with pytest.raises(InvalidPeriod):
        period_bounds(period)


async def test_a_period_closes_after_its_end_when_nothing_is_open(database: Database) -> None:
    tenant, periods = await Tenant.rich(database, 10**12), Periods(database)
    hold = await _admit(database, tenant, DECEMBER - 1)
    assert hold.period == "2026-11"
    await periods.prepare()
    assert [(p.period, p.state) for p in await periods.list()] == [("2026-11", "open"), ("2026-12", "open")]
    with pytest.raises(PeriodOpen, match="2026-12-01T00:00:00"):
        await periods.close("2026-11")

    at(database, DECEMBER)
    await periods.prepare()
    assert (await periods.get("2026-11")).state == "closing"
    with pytest.raises(PeriodOpen, match="1 open hold of requests that have not ended"):
        await periods.close("2026-11")
    assert await periods.close_due(0) == []

    await settle(database, PriceCatalog(database), [tenant.event(hold)])
    assert await periods.close_due(60) == []
    assert (await periods.close("2026-11", dry_run=True)).state == "closing"
    assert (await periods.get("2026-11")).state == "closing"
    at(database, DECEMBER + 60 * 1_000_000)
    (closed,) = await periods.close_due(60)
    assert (closed.period, closed.state, closed.closed_at) == ("2026-11", "closed", DECEMBER + 60 * 1_000_000)
    assert await periods.close("2026-11") == closed
    assert await periods.close_due(0) == []


async def test_periods_close_in_their_order_and_none_is_forgotten(database: Database) -> None:
    tenant, periods = await Tenant.rich(database, 10**12), Periods(database)
    hold = await _admit(database, tenant, DECEMBER - 1)  # and nothing runs until spring
    at(database, period_bounds("2027-03")[0])
    with pytest.raises(PeriodOpen, match="1 open hold"):
        await periods.close("2026-11")
    with pytest.raises(PeriodOpen, match="2026-11 is not closed yet"):
        await periods.close("2027-02", dry_run=True)
    assert await periods.list() == []
    await periods.prepare()
    with pytest.raises(PeriodOpen, match="2026-11 is not closed yet"):
        await periods.close("2027-02")
    await settle(database, PriceCatalog(database), [tenant.event(hold)])
    assert [p.period for p in await periods.close_due(0)] == ["2026-11", "2026-12", "2027-01", "2027-02"]


async def test_late_usage_is_booked_in_the_open_period(database: Database) -> None:
    tenant, periods = await Tenant.rich(database, 10**12), Periods(database)
    hold = await _admit(database, tenant, DECEMBER - 1)
    at(database, DECEMBER + 86_400 * 1_000_000)
    assert await HoldService(database).sweep() == 1
    await periods.close("2026-11")
    late = tenant.event(hold)
    for _ in range(2):
        await settle(database, PriceCatalog(database), [late])
    async with database.reading() as session:
        event = (await session.execute(select(usage_event))).one()
        assert (event.period, event.admitted_at) == ("2026-12", DECEMBER - 1)
        rolled = (await session.execute(select(rollup_hour.c.period, rollup_hour.c.hour))).one()
        assert (rolled.period, period_of(rolled.hour)) == ("2026-12", "2026-11")
        assert "2026-12" in set(await session.scalars(select(ledger_txn.c.period)))
    assert await audit_money(database) == []


async def test_a_closed_period_does_not_change(database: Database) -> None:
    at(database, DECEMBER)
    periods = Periods(database)
    await periods.close("2026-11")
    for statement in (update(billing_period).values(state="open", closed_at=None), delete(billing_period)):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement.where(billing_period.c.period == "2026-11"))
            await session.rollback()


async def test_closing_waits_for_who_is_settling(fresh_postgres_url: str) -> None:
    """Whoever has asked whether a period is open can go on: closing comes after, and sees what was booked."""
    database = await Database.open(fresh_postgres_url)
    at(database, LATER)
    periods = Periods(database)
    async with money_transaction(database) as books:
        assert await books.closed_periods({"2026-11"}) == set()
        closing = asyncio.create_task(periods.close("2026-11"))
        await _waiting_locks(database, 1)
        asking = asyncio.create_task(_asks(database))
        await _waiting_locks(database, 2)  # who comes after the closing waits for it
        assert not closing.done()
    assert (await closing).state == "closed"
    assert await asking == {"2026-11"}
    await database.close()


async def _waiting_locks(database: Database, count: int) -> None:
    """Wait until so many wait for an advisory lock."""
    query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    async with asyncio.timeout(30):
        while True:
            async with database.reading() as session:
                if await session.scalar(query) == count:
                    return
            await asyncio.sleep(0.02)


async def _asks(database: Database) -> set[str]:
    async with money_transaction(database) as books:
        return await books.closed_periods({"2026-11"})


@pytest.mark.slow
async def test_settling_and_closing_at_once(database: Database) -> None:
    """However they fall, an event is in the period while it is open or in the next one, and the books agree."""
    tenant, periods, catalog = await Tenant.rich(database, 10**13), Periods(database), PriceCatalog(database)
    at(database, DECEMBER - 1)
    holds = HoldService(database)
    made = await asyncio.gather(*(holds.reserve(tenant.request(10**8, lifetime_s=1)) for _ in range(60)))
    at(database, LATER)
    await holds.sweep()

    async def close() -> None:
        await asyncio.sleep(0.01)
        await periods.close("2026-11")

    batches = [made[n : n + 3] for n in range(0, 60, 3)]
    await asyncio.gather(close(), *(settle(database, catalog, [tenant.event(h) for h in some]) for some in batches))
    async with database.reading() as session:
        booked = list(await session.scalars(select(usage_event.c.period)))
    assert len(booked) == 60
    assert set(booked) <= {"2026-11", "2026-12"}
    assert await audit_money(database) == []


# ------------------------------------------------ gateway epochs


async def _states(database: Database) -> dict[str, str]:
    async with database.reading() as session:
        return {row.epoch: row.state for row in await session.execute(select(gateway_epoch))}


async def test_a_period_waits_for_what_lies_in_a_spool(database: Database, tmp_path: Path) -> None:
    tenant, periods = await Tenant.rich(database, 10**12), Periods(database)
    hold = await _admit(database, tenant, DECEMBER - 1)
    spool = Spool(tmp_path / "spool", "g1-a")
    keeper = EpochKeeper(database, spool, "g1")
    await keeper.publish()
    await spool.append(tenant.event(hold))
    at(database, DECEMBER + 86_400 * 1_000_000)
    await HoldService(
        database
    ).sweep()  # the database was away for a day: the hold is gone, the usage is still in the spool
    for _ in range(2):
        await keeper.publish()
        with pytest.raises(PeriodOpen, match="g1-a may have usage"):
            await periods.close("2026-11")
    batch = await spool.read(10)
    assert batch is not None
    await settle(database, PriceCatalog(database), batch.records)
    spool.done(batch)
    await keeper.publish()
    assert (await periods.close("2026-11")).state == "closed"
    async with database.reading() as session:
        assert (await session.scalars(select(usage_event.c.period))).one() == "2026-11"
    await spool.close()


async def test_an_epoch_that_stops_in_order_holds_nothing_up(database: Database, tmp_path: Path) -> None:
    at(database, NOVEMBER)
    spool = Spool(tmp_path / "spool", "g1-a")
    keeper = EpochKeeper(database, spool, "g1")
    await keeper.start()
    async with asyncio.timeout(30):
        while not await _states(database):
            await asyncio.sleep(0.02)
    assert await _states(database) == {"g1-a": "live"}
    await keeper.stop()
    await spool.close()
    assert await _states(database) == {"g1-a": "ended"}
    assert list((tmp_path / "spool").iterdir()) == []


async def test_the_epoch_of_a_dead_gateway_ends_when_its_spool_is_settled(database: Database, tmp_path: Path) -> None:
    """kill -9: the lock goes, files stay. The next one here ends the epoch, and not before the last file is gone."""
    tenant = await Tenant.rich(database, 10**12)
    hold = await _admit(database, tenant, DECEMBER - 1)
    dead, heir = Spool(tmp_path / "spool", "g1-a"), Spool(tmp_path / "spool", "g2-b")
    mark, keeper = EpochKeeper(database, dead, "g1"), EpochKeeper(database, heir, "g2")
    await mark.start()
    await mark.publish()
    await keeper.publish()
    await dead.append(tenant.event(hold))
    assert await keeper.end_gone() == []  # it lives
    await dead.close()
    await mark.stop()
    (tmp_path / "spool" / "g1-a.epoch").touch()  # what a killed process leaves
    async with database.transaction() as session:
        await session.execute(update(gateway_epoch).values(state="live"))
    assert await heir.adopt_orphans() == 1
    assert await keeper.end_gone() == []  # its spool is not settled
    batch = await heir.read(10)
    assert batch is not None
    heir.done(batch)
    assert await keeper.end_gone() == ["g1-a"]
    assert await _states(database) == {"g1-a": "ended", "g2-b": "live"}
    assert list((tmp_path / "spool").iterdir()) == []
    await heir.close()


async def test_a_lost_epoch_is_declared_dead_by_a_person(database: Database, tmp_path: Path) -> None:
    periods = Periods(database)
    at(database, NOVEMBER)
    spool = Spool(tmp_path / "spool", "g1-a")
    keeper = EpochKeeper(database, spool, "g1")
    await keeper.publish()
    with pytest.raises(EpochAlive, match="heard of"):
        await declare_dead(database, "g1-a", "the disk burned")
    at(database, LATER)
    with pytest.raises(PeriodOpen, match="g1-a"):
        await periods.close("2026-11")
    with pytest.raises(UnknownEpoch):
        await declare_dead(database, "g9", "never was")
    tenant = await Tenant.rich(database, 10**12)
    await spool.append(tenant.event(await _admit(database, tenant, LATER)))
    with pytest.raises(EpochAlive, match="start a gateway"):
        await declare_dead(database, "g1-a", "the disk burned", tmp_path / "spool")
    assert (await declare_dead(database, "g1-a", "the disk burned")).reason == "the disk burned"
    assert (await periods.close("2026-11")).state == "closed"
    over: list[str] = []
    keeper.on_over = over.append
    for _ in range(2):
        await keeper.publish()  # it was not dead: but its holds may have been given back, so it stops
    assert over == ["it was declared dead: the disk burned"]
    assert await _states(database) == {"g1-a": "dead"}
    await spool.close()


async def test_the_first_period_is_that_of_the_first_request(database: Database) -> None:
    periods = Periods(database)
    at(database, LATER)
    await periods.prepare()
    assert [p.period for p in await periods.list()] == ["2026-12", "2027-01"]
    async with database.reading() as session:
        assert (await session.execute(text("SELECT count(*) FROM billing_period"))).scalar_one() == 2

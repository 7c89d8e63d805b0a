"""The settler: through outages of the database, real ones, everything arrives once."""

# ruff: noqa: ASYNC110, ASYNC240 (these tests look at files and states between awaits)

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import func, select

from billing.accounts.balances import Balances
from billing.reservation.hold_service import HoldService
from billing.settlement import settler as settler_module
from billing.settlement.settler import Settler
from billing.spool.spool import Spool
from billing.tables.money import refused_settlement, usage_event
from billing.usage import Release
from billing.verification.audit import audit_money
from storage.database import migrate
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable
from tests.billing.money import Tenant
from tests.servers import postgres_server


async def _events(database: Database) -> int:
    async with database.reading() as session:
        return (await session.execute(select(func.count()).select_from(usage_event))).scalar_one()


@pytest.mark.both_databases
async def test_what_is_appended_reaches_the_database(database: Database, tmp_path: Path) -> None:
    tenant = await Tenant.rich(database, 10**12)
    holds, spool = HoldService(database), Spool(tmp_path / "spool", "g1")
    settler = Settler(database, spool)
    await settler.start()
    made = await asyncio.gather(*(holds.reserve(tenant.request(10**8)) for _ in range(40)))
    await asyncio.gather(*(spool.append(tenant.event(hold)) for hold in made[:30]))
    await asyncio.gather(*(spool.append(Release(hold.request_id, "rejected")) for hold in made[30:]))
    assert await settler.drain(30)
    assert (settler.lag, settler.lag_s, settler.failing) == (0, 0, False)
    assert (settler.total.written, settler.total.released) == (30, 10)
    await settler.stop()
    await spool.close()
    assert await audit_money(database) == []
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert balance.held == 0


@pytest.mark.slow
async def test_a_record_that_breaks_its_batch_is_set_aside(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await Tenant.rich(database, 10**12)
    spool = Spool(tmp_path / "spool", "g1")
    settler = Settler(database, spool)
    good = [tenant.event(tenant.request(0)) for _ in range(3)]
    for record in (good[0], msgspec.structs.replace(good[0], id=new_id(), model="a\0b"), *good[1:]):
        await spool.append(record)
    real = settler_module.settle

    async def fragile(database: Database, book: object, records: list[object]) -> object:
        if any("\0" in getattr(record, "model", "") for record in records):
            raise RuntimeError("a bug")
        return await real(database, book, records)  # type: ignore[arg-type]

    monkeypatch.setattr(settler_module, "settle", fragile)
    await settler.start()
    assert await settler.drain(30)
    await settler.stop()
    await spool.close()
    assert (settler.total.written, settler.total.refused) == (3, 1)
    assert [finding.what for finding in await audit_money(database)] == [
        "a record was refused",
        "a tenant's holds did not each end once",  # the events came without any
    ]


async def test_a_record_that_is_set_aside_ends_its_hold_and_is_kept_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its file is adopted after its owner died, and settled again from its beginning."""
    tenant = await Tenant.rich(database, 10**12)
    spool = Spool(tmp_path / "spool", "g1")
    settler = Settler(database, spool)
    used, free = [await HoldService(database).reserve(tenant.request(10**8)) for _ in range(2)]
    for _ in range(2):
        await spool.append(tenant.event(used))
        await spool.append(Release(free.request_id, "rejected", free.batch))

    async def broken(*_: object) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(settler_module, "settle", broken)
    await settler.start()
    assert await settler.drain(30)
    await settler.stop()
    await spool.close()
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.held, balance.debit) == (0, 0)
    async with database.reading() as session:
        kept = (await session.execute(select(refused_settlement.c.request_id))).scalars().all()
    assert sorted(kept) == sorted([used.request_id, free.request_id])


async def test_orphans_of_a_neighbour_are_settled(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler_module, "_LOOK_FOR_ORPHANS_S", 0)
    tenant = await Tenant.rich(database, 10**12)
    neighbour, spool = Spool(tmp_path, "g1"), Spool(tmp_path, "g2")
    settler = Settler(database, spool)
    await settler.start()
    await neighbour.append(tenant.event(tenant.request(0)))
    await asyncio.sleep(0.05)
    assert settler.total.written == 0
    await neighbour.close()
    async with asyncio.timeout(30):
        while settler.total.written == 0:
            await asyncio.sleep(0.01)
    await settler.stop()
    await spool.close()
    assert list(tmp_path.glob("*.spool")) == []


@pytest.mark.slow
async def test_the_database_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Stopped in order, and crashed in the middle of settling: every event arrives, and once."""
    with postgres_server() as server:
        await migrate.upgrade(server.url)
        database = await Database.open(server.url)
        tenant = await Tenant.rich(database, 10**15)
        holds, spool = HoldService(database), Spool(tmp_path, "g1")
        settler = Settler(database, spool)
        await settler.start()
        made = await asyncio.gather(*(holds.reserve(tenant.request(10**8)) for _ in range(300)))
        waiting = iter(made)
        await asyncio.to_thread(server.stop)
        with pytest.raises(DatabaseUnavailable):
            await holds.reserve(tenant.request(1))
        await asyncio.gather(*(spool.append(tenant.event(next(waiting))) for _ in range(100)))
        assert settler.lag == 100
        assert not await settler.drain(1)
        async with asyncio.timeout(30):
            while not settler.failing:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        assert await settler.drain(30)
        assert not settler.failing
        assert await _events(database) == 100
        for _ in range(2):
            appends = [asyncio.create_task(spool.append(tenant.event(next(waiting)))) for _ in range(100)]
            await asyncio.sleep(0.005)
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            await asyncio.gather(*appends)
            await asyncio.to_thread(server.start)
        assert await settler.drain(30)
        assert await _events(database) == 300
        assert await audit_money(database) == []
        hold = await holds.reserve(tenant.request(1))  # the pool has recovered by itself
        assert hold.state == "open"
        await settler.stop()
        await spool.close()
        await database.close()
    assert list(tmp_path.iterdir()) == []


async def test_stopping_during_an_outage_leaves_the_rest_to_the_next_start(tmp_path: Path, database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    away = await Database.open("postgresql://nobody@127.0.0.1:1/nothing")
    spool = Spool(tmp_path / "spool", "g1")
    settler = Settler(away, spool)
    await settler.start()
    await spool.append(tenant.event(tenant.request(0)))
    async with asyncio.timeout(30):
        while not settler.failing:
            await asyncio.sleep(0.01)
    await settler.stop()
    await spool.close()
    await away.close()
    spool = Spool(tmp_path / "spool", "g1")
    settler = Settler(database, spool)
    await settler.start()
    assert await settler.drain(30)
    await settler.stop()
    await spool.close()
    assert await _events(database) == 1

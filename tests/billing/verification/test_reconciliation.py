"""Reconciliation: silent while everything agrees, and exact about what does not."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, literal, select, update
from sqlalchemy.exc import DBAPIError

from billing.calendar import InvalidPeriod, period_bounds
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.replica_journals.comparison import JournalReport
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.books import recon_run
from billing.tables.money import rollup_hour
from billing.usage import Usage, UsageEvent
from billing.verification.reconciliation import latest, reconcile
from storage.database.base import Count
from storage.database.database import Database
from tests.billing.money import Tenant

DECEMBER = period_bounds("2026-12")[0]
EPOCH = 7 << 32


async def _events(database: Database, tenant: Tenant, sequences: list[int]) -> list[UsageEvent]:
    holds = HoldService(database)
    requests = [await holds.reserve(tenant.request(10**8, lifetime_s=1)) for _ in sequences]
    return [
        tenant.event(hold, Usage(uncached=100), sequence=EPOCH + sequence)
        for hold, sequence in zip(requests, sequences, strict=True)
    ]


async def test_what_agrees(database: Database) -> None:
    database.clock = literal(DECEMBER - 1, Count())
    tenant = await Tenant.rich(database, 10**13)
    events = await _events(database, tenant, [3, 1, 2])
    await settle(database, PriceCatalog(database), events)
    report = await reconcile(database, "2026-11", [JournalReport("r1", 3)])
    assert report.clean
    assert (report.events, report.confirmed, report.late, report.lost, report.doubled) == (3, 3, 0, 0, 0)
    assert report.cost_pico == {"USD": sum(event.cost_pico for event in events)}
    assert [(s.epoch, s.first - EPOCH, s.last - EPOCH, s.missing) for s in report.sequences] == [(7, 1, 3, [])]
    assert await latest(database, "2026-11") == report
    assert await latest(database, "2026-12") is None
    with pytest.raises(InvalidPeriod):
        await reconcile(database, "2026-13")


async def test_gaps_are_lost_and_repeats_are_doubled(database: Database) -> None:
    database.clock = literal(DECEMBER - 1, Count())
    tenant = await Tenant.rich(database, 10**13)
    await settle(database, PriceCatalog(database), await _events(database, tenant, [2, 3, 6, 9, 9]))
    report = await reconcile(database, "2026-11")
    (found,) = report.sequences
    assert [(a - EPOCH, b - EPOCH) for a, b in found.missing] == [(1, 1), (4, 5), (7, 8)]
    assert (report.lost, report.doubled, report.clean) == (5, 1, False)


@pytest.mark.both_databases
async def test_an_epoch_goes_on_in_the_next_period(database: Database) -> None:
    """What was admitted before midnight and ends after it has numbers among those of the next month."""
    database.clock = literal(DECEMBER - 1, Count())
    tenant = await Tenant.rich(database, 10**13)
    before = await _events(database, tenant, [1, 3])
    database.clock = literal(DECEMBER + 1, Count())
    after = await _events(database, tenant, [2, 4, 6])
    await settle(database, PriceCatalog(database), [*before, *after])
    assert (await reconcile(database, "2026-11")).lost == 0
    december = await reconcile(database, "2026-12")
    assert [(a - EPOCH, b - EPOCH) for s in december.sequences for a, b in s.missing] == [(5, 5)]


async def test_a_journal_that_knows_more_or_less(database: Database) -> None:
    database.clock = literal(DECEMBER - 1, Count())
    tenant = await Tenant.rich(database, 10**13)
    await settle(database, PriceCatalog(database), await _events(database, tenant, [1, 2]))
    assert (await reconcile(database, "2026-11", [JournalReport("r1", 5)])).lost == 3
    assert (await reconcile(database, "2026-11", [JournalReport("r1", 1)])).doubled == 1
    assert (await reconcile(database, "2026-11", [JournalReport("r1", 2), JournalReport("r2", 1)])).lost == 1


async def test_late_usage_and_its_drift(database: Database) -> None:
    database.clock = literal(DECEMBER - 1, Count())
    tenant = await Tenant.rich(database, 10**13)
    events = await _events(database, tenant, [1])
    database.clock = literal(DECEMBER + 10**7, Count())
    await HoldService(database).sweep()
    await Periods(database).close("2026-11")
    await settle(database, PriceCatalog(database), events)
    assert (await reconcile(database, "2026-11")).events == 0
    december = await reconcile(database, "2026-12")
    assert (december.events, december.late, december.state, december.clean) == (1, 1, "open", True)

    async with database.transaction() as session:
        await session.execute(update(rollup_hour).values(cost_low=rollup_hour.c.cost_low + 5))
    drifted = await reconcile(database, "2026-12")
    assert drifted.drift_pico == 5
    assert [(d.tenant_id, d.rollups - d.events) for d in drifted.drifts] == [(tenant.id, 5)]
    async with database.reading() as session:
        runs = [row.drift_pico for row in await session.execute(select(recon_run).order_by(recon_run.c.id))]
    assert runs == [0, 0, 5]
    for statement in (update(recon_run).values(drift_pico=0), delete(recon_run)):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()

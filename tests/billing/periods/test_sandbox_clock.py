"""The clock of a sandbox: month ends, expiry and prices at another time, in an installation that is nothing else."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.exc import DBAPIError

from audit_log.actors import Actor, acting_as
from billing.accounts.balances import Balances
from billing.calendar import parse_instant
from billing.holds.records import Hold
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.parties.parties import InvalidParty
from billing.invoices.parties.store import Parties
from billing.periods.periods import Periods
from billing.periods.sandbox_clock import MOST_STEP_US, ClockRefused, advance_clock, begin_clock, read_clock
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.spool.gateway_epochs import EpochKeeper
from billing.spool.spool import Spool
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from storage.database.test_clock import follow_test_clock, test_clock
from tests.billing.invoices.customers import USD
from tests.billing.invoices.documents import BUYER
from tests.billing.money import PRICES, Tenant

BEGIN, DECEMBER = parse_instant("2030-11-20T10:00:00Z"), parse_instant("2030-12-01")
SECOND = 1_000_000
OURS = msgspec.structs.replace(USD, series="TEST", credit_series="TEST-CN")


async def _use(tenant: Tenant, usage: Usage) -> Hold:
    hold = await HoldService(tenant.database).reserve(tenant.request(10**9))
    assert (await settle(tenant.database, PriceCatalog(tenant.database), [tenant.event(hold, usage)])).refused == 0
    return hold


@pytest.mark.both_databases
async def test_a_month_ends_credit_expires_and_a_price_changes_in_a_moment(database: Database) -> None:
    began = await begin_clock(database, BEGIN)
    assert 0 <= began.now - BEGIN < 60 * SECOND
    tenant = await Tenant.rich(database, 0)
    await Parties(database).set_seller(OURS)
    await Parties(database).set_buyer(tenant.id, BUYER)
    balances, catalog = Balances(database), PriceCatalog(database)
    await balances.set_credit_line(tenant.id, 10**15, "USD")
    await balances.grant(tenant.id, 7, "USD", kind="promo", model="other", expires_at=DECEMBER)
    dear = dict.fromkeys(PRICES, "1000")
    await catalog.set("stdlib-qa", "USD", dear, DECEMBER)
    hold = await _use(tenant, Usage(output=1_000_000))
    assert hold.period == "2030-11"

    later = await advance_clock(database, DECEMBER + SECOND, "the month ends")

    assert later.now >= DECEMBER + SECOND
    dearer = await PriceCatalog(database).current("stdlib-qa")
    assert dearer.rows == dict.fromkeys(tenant.version.rows, 1000000000)
    assert await balances.expire() == 1
    assert (await Periods(database).close("2030-11")).state == "closed"
    await draft(database, catalog, tenant.id, "2030-11")
    sent = await finalize(database, catalog, tenant.id, "2030-11")
    assert (sent.number, sent.issued) == ("TEST-2030-000001", "2030-12-01")
    after = await _use(msgspec.structs.replace(tenant, version=dearer), Usage(output=1))
    assert (after.period, after.price_version) == ("2030-12", dearer.id)
    assert await audit_money(database) == []


@pytest.mark.both_databases
async def test_every_process_that_opens_the_database_stands_in_its_time(database: Database, database_url: str) -> None:
    await begin_clock(database, BEGIN)
    other = await Database.open(database_url)
    try:
        assert await other.now() < BEGIN - SECOND, (
            "it does not follow by itself: a present that nobody moves is the rule"
        )
        assert await follow_test_clock(other)
        await advance_clock(database, DECEMBER)
        assert 0 <= await other.now() - DECEMBER < 60 * SECOND
    finally:
        await other.close()


async def test_an_installation_in_use_never_becomes_a_sandbox(database: Database) -> None:
    await Balances(database).set_credit_line((await Tenant.rich(database, 0)).id, 1, "USD")
    with pytest.raises(ClockRefused, match="in use: only an empty one"):
        await begin_clock(database)
    with pytest.raises(ClockRefused, match="no sandbox"):
        await advance_clock(database, DECEMBER)
    assert await read_clock(database) is None
    assert not await follow_test_clock(database)


async def test_where_a_gateway_runs_no_sandbox_begins(database: Database, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", "g1-a")
    await EpochKeeper(database, spool, "g1").publish()
    with pytest.raises(ClockRefused, match="gateway g1 runs"):
        await begin_clock(database, BEGIN)
    assert await read_clock(database) is None
    await spool.close()


async def test_a_clock_begins_once_and_not_in_the_past(database: Database) -> None:
    with pytest.raises(ClockRefused, match="or later"):
        await begin_clock(database, 1)
    await begin_clock(database)
    with pytest.raises(ClockRefused, match="in use"):
        await begin_clock(database)


async def test_steps_that_are_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin_clock(database, BEGIN)
    for to in (BEGIN, BEGIN - 1, BEGIN + MOST_STEP_US + 3600 * SECOND):
        with pytest.raises(ClockRefused, match="a step goes forward"):
            await advance_clock(database, to)
    monkeypatch.setattr("billing.periods.sandbox_clock._WAIT", timedelta(milliseconds=100))
    tenant = await Tenant.rich(database, 10**12)
    await HoldService(database).reserve(tenant.request(10**9))
    with pytest.raises(ClockRefused, match="holds of 1 request are open"):
        await advance_clock(database, DECEMBER)
    clock = await read_clock(database)
    assert clock is not None
    assert clock.now < DECEMBER


async def test_a_sandbox_numbers_its_documents_as_such(database: Database) -> None:
    await begin_clock(database, BEGIN)
    with pytest.raises(InvalidParty, match="'INV' does not begin with TEST"):
        await Parties(database).set_seller(USD)
    await Parties(database).set_seller(OURS)


@pytest.mark.both_databases
async def test_the_database_lets_no_clock_go_back_or_away(database: Database) -> None:
    await begin_clock(database, BEGIN)
    for statement in (update(test_clock).values(ahead=0), delete(test_clock)):
        with pytest.raises(DBAPIError, match="a test clock stays, and goes forward"):
            async with database.transaction() as session:
                await session.execute(statement)


async def test_each_step_is_recorded(database: Database) -> None:
    with acting_as(Actor("command", "ann@here", "ann")):
        await begin_clock(database, BEGIN)
        await advance_clock(database, DECEMBER, "the month ends")
    async with database.reading() as session:
        rows = await session.execute(text("SELECT action, actor_name, reason FROM audit_entry ORDER BY number"))
        assert [tuple(row) for row in rows] == [
            ("clock.begun", "ann", "an empty installation becomes a sandbox"),
            ("clock.advanced", "ann", "the month ends"),
        ]

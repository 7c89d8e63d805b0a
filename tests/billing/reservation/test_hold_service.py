"""Reserving: whole or not at all, and never more than there is, however many ask at once."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import literal, select, update
from sqlalchemy.exc import IntegrityError

from billing.accounts.balances import Balances, CurrencyMismatch
from billing.accounts.budgets import BudgetSettings
from billing.holds.records import Hold
from billing.money import InvalidMoney
from billing.prices import PriceCatalog, UnknownPriceVersion
from billing.reservation.decisions import HoldEnded, InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import Settled, settle
from billing.tables.money import balance as balance_table
from billing.tables.money import hold_batch
from billing.usage import Release, Usage
from billing.verification.audit import audit_money
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.billing.money import Tenant, give_euros

_COST = 10**8


async def _held(database: Database, tenant: UUID) -> int:
    balance = await Balances(database).get(tenant)
    return 0 if balance is None else balance.held


async def test_a_hold_is_what_was_asked_with_the_databases_time(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    holds = HoldService(database)
    before = await database.now()
    request = tenant.request(300, lifetime_s=60)
    hold = await holds.reserve(request)
    assert await holds.get(hold.request_id) == hold
    assert (hold.amount_pico, hold.state, hold.terms, hold.gateway_epoch) == (300, "open", b"terms", "g1")
    assert before <= hold.admitted_at <= await database.now()
    assert hold.expires_at == hold.admitted_at + 60_000_000
    assert await _held(database, tenant.id) == 300
    assert await holds.get(new_id()) is None


async def test_what_does_not_fit_is_refused_with_the_numbers(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    holds = HoldService(database)
    await holds.reserve(tenant.request(400))
    with pytest.raises(InsufficientFunds) as refusal:
        await holds.reserve(tenant.request(601))
    error = refusal.value
    assert (error.scope, error.needed_pico, error.affordable_pico, error.currency) == ("tenant", 601, 600, "USD")
    await holds.reserve(tenant.request(600))
    await holds.reserve(tenant.request(0))
    assert await _held(database, tenant.id) == 1000
    nobody = await Tenant.rich(database, 0)
    with pytest.raises(InsufficientFunds):
        await holds.reserve(nobody.request(0))


@pytest.mark.both_databases
async def test_credit_that_has_expired_pays_for_nothing_new(database: Database) -> None:
    """Whether the worker, which takes it, has run since or not; what was reserved before the expiry stays reserved."""
    tenant = await Tenant.rich(database, 300)
    now = await database.now()
    await Balances(database).grant(tenant.id, 1000, "USD", kind="promo", expires_at=now + 3_600_000_000)
    holds = HoldService(database)
    before = await holds.reserve(tenant.request(200))
    database.clock = literal(now + 7_200_000_000, Count())
    with pytest.raises(InsufficientFunds) as refusal:
        await holds.reserve(tenant.request(301))
    assert refusal.value.affordable_pico == 100, "of 1300 are 200 reserved, and 1000 have expired"
    with pytest.raises(InsufficientFunds):
        await holds.top_up(before, 301)
    assert await holds.reserve_allowance(tenant.request(100), "USD", 2) is None
    await holds.reserve(tenant.request(100))
    for taken in (1, 0):
        with pytest.raises(InsufficientFunds):
            await holds.reserve(tenant.request(1))
        assert await Balances(database).expire() == taken
    assert [grant.remaining for grant in await Balances(database).grants(tenant.id)] == [200, 300]


async def test_bad_input_writes_nothing(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    holds = HoldService(database)
    hold = await holds.reserve(tenant.request(100))
    with pytest.raises(InvalidMoney):
        tenant.request(-1)
    with pytest.raises(InvalidMoney):
        tenant.request(1, lifetime_s=0)
    await holds.sweep(hold.expires_at)
    euro = await Tenant.rich(database, 0)
    await give_euros(database, euro.id, 1000)
    with pytest.raises(CurrencyMismatch):
        await holds.reserve(euro.request(1))
    with pytest.raises(CurrencyMismatch):
        await Balances(database).grant(euro.id, 1000, "USD")
    with pytest.raises(InvalidMoney):
        await Balances(database).grant(euro.id, -5, "EUR")
    tenant.version = tenant.version.__class__(999, "m", "USD", {})
    with pytest.raises(UnknownPriceVersion):
        await holds.reserve(tenant.request(1))
    assert await _held(database, tenant.id) == 0
    assert await _held(database, euro.id) == 0


@pytest.mark.both_databases
async def test_prepaid_is_never_overspent_by_a_crowd(database: Database, database_url: str) -> None:
    tenant = await Tenant.rich(database, 1000)
    other = await Tenant.rich(database, 10**6)
    pools = [await Database.open(database_url) for _ in range(4)]
    gateways = [HoldService(pool) for pool in pools]
    try:
        answers = await asyncio.gather(
            *(gateways[n % 4].reserve((tenant if n % 5 else other).request(7)) for n in range(250)),
            return_exceptions=True,
        )
    finally:
        for pool in pools:
            await pool.close()
    made = [a for a in answers if isinstance(a, Hold)]
    refused = [a for a in answers if isinstance(a, InsufficientFunds)]
    assert len(made) + len(refused) == 250
    assert sum(hold.tenant_id == tenant.id for hold in made) == 1000 // 7
    assert sum(hold.tenant_id == other.id for hold in made) == 50
    assert await _held(database, tenant.id) == 1000 // 7 * 7


async def test_an_expired_hold_is_given_back_once_by_many_sweepers(database: Database, database_url: str) -> None:
    tenant = await Tenant.rich(database, 1000)
    holds = HoldService(database)
    short = [await holds.reserve(tenant.request(10, lifetime_s=1)) for _ in range(5)]
    long = await holds.reserve(tenant.request(10, lifetime_s=1000))
    other = await Database.open(database_url)
    try:
        sweeps = await asyncio.gather(*(HoldService(db).sweep(short[-1].expires_at) for db in (database, other) * 3))
    finally:
        await other.close()
    assert sum(sweeps) == 5
    assert await _held(database, tenant.id) == 10
    assert [(await holds.get(h.request_id)).state for h in (*short, long)] == ["expired"] * 5 + ["open"]  # type: ignore[union-attr]


async def test_the_database_itself_refuses_an_uncovered_hold(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    held = update(balance_table).where(balance_table.c.tenant_id == tenant.id).values(held=1001)
    async with database.transaction() as session:
        with pytest.raises(IntegrityError):
            await session.execute(held)


async def test_a_hold_is_topped_up_whole_or_not_at_all(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    budgets = BudgetSettings(database)
    limit = await budgets.set(tenant.id, "project", str(tenant.project_id), "total", limit_pico=800, currency="USD")
    holds = HoldService(database)
    hold = await holds.reserve(tenant.request(300))
    raised = await holds.top_up(hold, 500)
    assert raised == msgspec.structs.replace(hold, amount_pico=500)
    assert await holds.top_up(hold, 500) == raised  # repeated
    assert await holds.top_up(hold, 300) == raised  # never lowered
    with pytest.raises(InsufficientFunds) as refusal:
        await holds.top_up(hold, 801)
    error = refusal.value
    assert (error.scope, error.needed_pico, error.affordable_pico, error.budget_id) == ("project", 301, 300, limit)
    assert (await holds.get(hold.request_id), await _held(database, tenant.id)) == (raised, 500)
    (window,) = await budgets.list(tenant.id)
    assert window.held == 500
    with pytest.raises(InvalidMoney):
        await holds.top_up(hold, -1)
    await holds.sweep(hold.expires_at)
    for ended in (hold, msgspec.structs.replace(hold, request_id=new_id(), batch=None)):
        with pytest.raises(HoldEnded):
            await holds.top_up(ended, 600)
    (window,) = await budgets.list(tenant.id)
    assert (await _held(database, tenant.id), window.held) == (0, 0)
    assert await audit_money(database) == []


@pytest.mark.slow
@pytest.mark.both_databases
async def test_top_ups_race_with_the_ends_of_their_holds_and_with_new_ones(database_url: str) -> None:
    databases = [await Database.open(database_url) for _ in range(2)]
    database, other = databases
    tenant = await Tenant.rich(database, 1000)
    mine, theirs = HoldService(database), HoldService(other)
    running = [await mine.reserve(tenant.request(10)) for _ in range(20)]
    events = [tenant.event(hold, Usage()) for hold in running[:10]]
    answers = await asyncio.gather(
        *(holds.top_up(hold, amount) for amount in (40, 70) for hold in running for holds in (mine, theirs)),
        *(theirs.reserve(tenant.request(30)) for _ in range(20)),
        *(settle(other, PriceCatalog(other), [event]) for event in events),
        return_exceptions=True,
    )
    assert all(isinstance(one, Hold | InsufficientFunds | HoldEnded | Settled) for one in answers), answers
    left = [found for hold in running[10:] if (found := await mine.get(hold.request_id))]
    assert len(left) == 10
    assert all(hold.amount_pico in (10, 40, 70) for hold in left)
    taken = sum(isinstance(one, Hold) for one in answers[80:100])
    assert await _held(database, tenant.id) == sum(hold.amount_pico for hold in left) + 30 * taken <= 1000
    assert await audit_money(database) == []
    for each in databases:
        await each.close()


async def test_holds_that_were_taken_together_end_one_by_one(database: Database) -> None:
    """Three rows of many: settled, released, raised and expired in any order, known by their row or by their id."""
    tenant = await Tenant.rich(database, 10**12)
    holds, catalog = HoldService(database), PriceCatalog(database)
    asked = [tenant.request(_COST, lifetime_s=60 + n % 3) for n in range(150)]
    taken = await asyncio.gather(*map(holds.reserve, asked))
    assert [hold.request_id for hold in taken] == [one.request_id for one in asked]
    async with database.reading() as session:
        rows = (await session.execute(select(hold_batch.c.open, hold_batch.c.amount_pico))).all()
    assert len(rows) <= 5  # the first was alone
    assert (sum(row.open for row in rows), sum(row.amount_pico for row in rows)) == (150, 150 * _COST)
    assert await holds.open_of("g1") == {hold.request_id: hold.batch for hold in taken}

    unknown = [msgspec.structs.replace(hold, batch=None) for hold in taken]
    events = [tenant.event(hold) for hold in (*taken[:40:2], *unknown[1:40:2])]
    releases = [Release(hold.request_id, "r", hold.batch) for hold in (*taken[40:60], *unknown[60:80])]
    raised = [await holds.top_up(hold, 2 * _COST) for hold in (taken[80], unknown[81])]
    assert [await holds.get(hold.request_id) for hold in raised] == raised
    for some in (events[:25], [*events[25:], *releases[:10]], releases, events):
        await settle(database, catalog, some)
        assert await audit_money(database) == []
    assert await _held(database, tenant.id) == 72 * _COST
    now = min(hold.expires_at for hold in taken[80:]) + 500_000
    later = {hold.request_id for hold in taken[80:] if hold.expires_at > now}
    assert 0 < len(later) < 70
    assert await holds.sweep(now) == 70 - len(later)
    assert await holds.sweep(now) == 0
    assert set(await holds.open_of("g1")) == later
    assert await audit_money(database) == []
    assert await holds.sweep(now + 600_000_000) == len(later)
    assert (await holds.open_of("g1"), await _held(database, tenant.id)) == ({}, 0)
    assert await audit_money(database) == []

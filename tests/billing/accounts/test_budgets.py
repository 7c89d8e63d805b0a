"""Budgets: reserved from with the balance, whole or not at all; counted once, whenever usage comes."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import literal, select, update
from sqlalchemy.exc import IntegrityError

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances, CurrencyMismatch
from billing.accounts.budgets import BudgetSettings, InvalidBudget, UnknownBudget
from billing.holds.records import Hold, HoldRequest
from billing.money import InvalidMoney
from billing.prices import PriceCatalog
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.money import budget_window
from billing.transaction.budget_charges import THRESHOLD
from billing.usage import Release, Usage
from billing.verification.audit import audit_money
from storage.database.base import Count, new_id
from storage.database.database import Database
from storage.database.outbox import outbox
from tests.billing.money import Tenant

TOKEN = 400_000
DAY = 86_400_000_000


def _tagged(tenant: Tenant, pico: int, tag: str) -> HoldRequest:
    request = tenant.request(pico)
    return HoldRequest(*(getattr(request, name) for name in request.__struct_fields__[:-1]), tag=tag)


async def _used(database: Database, tenant: Tenant) -> list[tuple[str, int, int]]:
    return [(w.scope, w.held, w.spent) for w in await BudgetSettings(database).list(tenant.id)]


@pytest.mark.slow
async def test_a_hold_fits_into_every_budget_or_is_not_taken(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**9)
    budgets, holds = BudgetSettings(database), HoldService(database)
    for scope, subject, span, limit in (
        ("tenant", "", "month", 900),
        ("project", str(tenant.project_id), "day", 500),
        ("key", str(tenant.key_id), "total", 700),
        ("tag", "nightly", "day", 40),
        ("project", str(new_id()), "day", 1),
    ):
        await budgets.set(tenant.id, scope, subject, span, limit_pico=limit, currency="USD")  # type: ignore[arg-type]
    first = await holds.reserve(tenant.request(450))
    with pytest.raises(InsufficientFunds) as refusal:
        await holds.reserve(tenant.request(51))
    error = refusal.value
    assert (error.scope, error.affordable_pico) == ("project", 50)
    assert str(tenant.project_id) in str(error)
    assert error.resets_at is not None
    assert 0 < error.resets_at.timestamp() - await database.now() / 10**6 <= 86_400
    with pytest.raises(InsufficientFunds, match="daily budget of the tag nightly"):
        await holds.reserve(_tagged(tenant, 41, "nightly"))
    await holds.reserve(_tagged(tenant, 40, "nightly"))
    held = [("key", 490, 0), ("project", 0, 0), ("project", 490, 0), ("tag", 40, 0), ("tenant", 490, 0)]
    assert sorted(await _used(database, tenant)) == held
    await settle(database, PriceCatalog(database), [Release(first.request_id, "rejected")])
    assert sorted(await _used(database, tenant))[0] == ("key", 40, 0)
    assert await audit_money(database) == []


async def test_usage_is_counted_once_even_after_its_hold_expired(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**9)
    budgets, holds, catalog = BudgetSettings(database), HoldService(database), PriceCatalog(database)
    await budgets.set(tenant.id, "project", str(tenant.project_id), "total", limit_pico=10 * TOKEN, currency="USD")
    one, late = [await holds.reserve(tenant.request(5 * TOKEN)) for _ in range(2)]
    event, late_event = (tenant.event(hold, Usage(uncached=5)) for hold in (one, late))
    await settle(database, catalog, [event, event])
    await holds.sweep(late.expires_at)
    assert await _used(database, tenant) == [("project", 0, 5 * TOKEN)]
    again = await holds.reserve(tenant.request(5 * TOKEN))
    await settle(database, catalog, [late_event])
    await settle(database, catalog, [late_event, event])
    (window,) = await budgets.list(tenant.id)
    assert (window.held, window.spent, window.over) == (5 * TOKEN, 10 * TOKEN, 5 * TOKEN)
    assert await audit_money(database) == []
    with pytest.raises(InsufficientFunds):
        await holds.reserve(tenant.request(1))
    await settle(database, catalog, [Release(again.request_id, "rejected")])
    (window,) = await budgets.list(tenant.id)
    assert (window.held, window.spent, window.over) == (0, 10 * TOKEN, 0)
    async with database.transaction() as session:
        with pytest.raises(IntegrityError):
            await session.execute(update(budget_window).values(held=1))


@pytest.mark.slow
async def test_thresholds_are_told_once_each(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**9)
    budgets, holds, catalog = BudgetSettings(database), HoldService(database), PriceCatalog(database)
    key = str(tenant.key_id)
    limit = {"limit_pico": 10 * TOKEN, "currency": "USD"}
    await budgets.set(tenant.id, "key", key, "month", **limit, action="notify", thresholds=(50, 80, 120))  # type: ignore[arg-type]

    async def told() -> list[int]:
        async with database.reading() as session:
            rows = await session.execute(select(outbox.c.topic, outbox.c.payload).order_by(outbox.c.id))
            return [json.loads(payload)["threshold_percent"] for topic, payload in rows if topic == "budget.threshold"]

    seen = []
    for tokens in (4, 1, 2, 2, 3, 4):
        hold = await holds.reserve(tenant.request(tokens * TOKEN))
        await settle(database, catalog, [tenant.event(hold, Usage(uncached=tokens))])
        seen.append(await told())
    assert seen == [[], [50], [50], [50, 80], [50, 80, 120], [50, 80, 120]]
    await budgets.set(tenant.id, "key", key, "month", limit_pico=20 * TOKEN, currency="USD", thresholds=(70, 90))
    hold = await holds.reserve(tenant.request(2 * TOKEN))
    await settle(database, catalog, [tenant.event(hold, Usage(uncached=2))])
    assert (await told())[3:] == [90]


@pytest.mark.slow
@pytest.mark.both_databases
async def test_budgets_hold_against_a_crowd_on_many_pools(database: Database, database_url: str) -> None:
    tenant, other = await Tenant.rich(database, 10**6), await Tenant.rich(database, 10**6)
    await BudgetSettings(database).set(tenant.id, "key", str(tenant.key_id), "day", limit_pico=1000, currency="USD")
    pools = [await Database.open(database_url) for _ in range(4)]
    gateways = [HoldService(pool) for pool in pools]
    try:
        answers = await asyncio.gather(
            *(gateways[n % 4].reserve((tenant if n % 3 else other).request(7)) for n in range(600)),
            return_exceptions=True,
        )
    finally:
        for pool in pools:
            await pool.close()
    made = [answer for answer in answers if isinstance(answer, Hold)]
    assert len(made) + sum(isinstance(answer, InsufficientFunds) for answer in answers) == 600
    assert sum(hold.tenant_id == tenant.id for hold in made) == 1000 // 7
    assert sum(hold.tenant_id == other.id for hold in made) == 200
    assert await _used(database, tenant) == [("key", 1000 // 7 * 7, 0)]
    assert await audit_money(database) == []


async def test_bad_budgets_are_refused_and_write_nothing(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    budgets = BudgetSettings(database)
    good = {"limit_pico": 1, "currency": "USD"}
    with pytest.raises(InvalidBudget, match="says which"):
        await budgets.set(tenant.id, "project", "", "day", **good)  # type: ignore[arg-type]
    with pytest.raises(InvalidBudget, match="no subject"):
        await budgets.set(tenant.id, "tenant", "x", "day", **good)  # type: ignore[arg-type]
    for thresholds in ((), (0,), (80, 50), (1001,)):
        with pytest.raises(InvalidBudget, match="rising"):
            await budgets.set(tenant.id, "tenant", "", "day", **good, thresholds=thresholds)  # type: ignore[arg-type]
    with pytest.raises(InvalidMoney):
        await budgets.set(tenant.id, "tenant", "", "day", limit_pico=0, currency="USD")
    with pytest.raises(CurrencyMismatch):
        await budgets.set(tenant.id, "tenant", "", "day", limit_pico=1, currency="EUR")
    with pytest.raises(UnknownBudget):
        await budgets.remove(tenant.id, new_id())
    await budgets.set(tenant.id, "tenant", "", "day", **good, dry_run=True)  # type: ignore[arg-type]
    assert await budgets.list(tenant.id) == []
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert balance.budgets == 0


async def test_an_adjustment_counts_where_the_request_that_it_corrects_did(database: Database) -> None:
    """Also in a window that has ended; and a budget that was set later knows nothing of either."""
    tenant, budgets = await Tenant.rich(database, 10**12), BudgetSettings(database)
    catalog, holds = PriceCatalog(database), HoldService(database)
    await budgets.set(tenant.id, "project", str(tenant.project_id), "day", limit_pico=100 * TOKEN, currency="USD")
    await budgets.set(tenant.id, "tenant", "", "total", limit_pico=200 * TOKEN, currency="USD")
    hold = await holds.reserve(tenant.request(100 * TOKEN))
    await settle(database, catalog, [tenant.event(hold, Usage(uncached=100))])
    await budgets.set(tenant.id, "key", str(tenant.key_id), "total", limit_pico=10**10, currency="USD")
    with pytest.raises(InsufficientFunds):
        await holds.reserve(tenant.request(TOKEN))
    correction = new_id()
    for _ in range(2):
        await adjust(
            database, catalog, tenant.id, hold.request_id, {"uncached": -30}, reason="r", adjustment_id=correction
        )
    assert sorted(await _used(database, tenant)) == [
        ("key", 0, 0),
        ("project", 0, 70 * TOKEN),
        ("tenant", 0, 70 * TOKEN),
    ]
    await holds.reserve(tenant.request(30 * TOKEN))
    database.clock = literal(await database.now() + DAY, Count())
    await adjust(database, catalog, tenant.id, hold.request_id, {"uncached": 100}, reason="r")
    expected = [("key", 30 * TOKEN, 0), ("project", 0, 0), ("tenant", 30 * TOKEN, 170 * TOKEN)]
    assert sorted(await _used(database, tenant)) == expected
    async with database.reading() as session:
        payloads = await session.scalars(select(outbox.c.payload).where(outbox.c.topic == THRESHOLD))
        told = sorted((json.loads(text)["scope"], json.loads(text)["threshold_percent"]) for text in payloads)
    assert told == [("project", 100), ("tenant", 50), ("tenant", 80)]
    assert await audit_money(database) == []


async def test_the_audit_finds_a_budget_that_does_not_add_up(database: Database) -> None:
    tenant = await Tenant.rich(database, 1000)
    await BudgetSettings(database).set(tenant.id, "tenant", "", "total", limit_pico=500, currency="USD")
    await HoldService(database).reserve(tenant.request(100))
    assert await audit_money(database) == []
    async with database.transaction() as session:
        await session.execute(update(budget_window).values(held=99, spent=1))
    findings = await audit_money(database)
    assert [finding.what for finding in findings] == ["a budget is not the sum of its requests"] * 2


@pytest.mark.slow
async def test_a_credit_line_is_the_bound_and_not_a_pico_more(database: Database) -> None:
    tenant = await Tenant.rich(database, 5 * TOKEN)
    balances, holds, catalog = Balances(database), HoldService(database), PriceCatalog(database)
    with pytest.raises(InsufficientFunds):
        await holds.reserve(tenant.request(5 * TOKEN + 1))
    assert (await balances.set_credit_line(tenant.id, 3 * TOKEN, "USD")).available == 8 * TOKEN
    with pytest.raises(InsufficientFunds) as refusal:
        await holds.reserve(tenant.request(8 * TOKEN + 1))
    assert refusal.value.affordable_pico == 8 * TOKEN
    hold = await holds.reserve(tenant.request(8 * TOKEN))
    await settle(database, catalog, [tenant.event(hold, Usage(uncached=8))])
    owing = await balances.set_credit_line(tenant.id, TOKEN, "USD")
    assert (owing.available, owing.receivable, owing.overdraft) == (-2 * TOKEN, 3 * TOKEN, 2 * TOKEN)
    assert await audit_money(database) == [], "it was within the line, which was lowered since"
    with pytest.raises(InsufficientFunds):
        await holds.reserve(tenant.request(1))
    await balances.grant(tenant.id, 3 * TOKEN, "USD")
    await holds.reserve(tenant.request(TOKEN))
    assert await audit_money(database) == []
    for amount in (-1, 2**63):
        with pytest.raises(InvalidMoney):
            await balances.set_credit_line(tenant.id, amount, "USD")


async def test_a_lowered_line_explains_no_debt_that_was_begun_later(database: Database) -> None:
    tenant = await Tenant.rich(database, 5 * TOKEN)
    balances, holds, catalog = Balances(database), HoldService(database), PriceCatalog(database)
    await balances.set_credit_line(tenant.id, 3 * TOKEN, "USD")
    await settle(database, catalog, [tenant.event(await holds.reserve(tenant.request(8 * TOKEN)), Usage(uncached=8))])
    running = await holds.reserve(tenant.request(0))
    await balances.set_credit_line(tenant.id, 0, "USD")
    assert await audit_money(database) == []
    await settle(database, catalog, [tenant.event(running, Usage(uncached=1))])
    (finding,) = await audit_money(database)
    assert (finding.what, finding.subject) == ("a balance is below zero", tenant.id), "more than any line covered"

    await balances.grant(tenant.id, 4 * TOKEN, "USD")
    assert await audit_money(database) == []
    database.clock = literal(await database.now() + 3 * 86_400 * 10**6, Count())
    late = await holds.reserve(tenant.request(0))
    await settle(database, catalog, [tenant.event(late, Usage(uncached=1))])
    assert [finding.what for finding in await audit_money(database)] == ["a balance is below zero"], "it owed nothing"

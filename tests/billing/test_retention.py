"""What is forgotten after its time, when it may be, and that every sum that the audit makes stays right."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import func, insert, literal, select, update

from billing import retention
from billing.accounts.adjustments import adjust
from billing.accounts.budgets import BudgetSettings
from billing.calendar import period_of
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.retention import forget_charges, forget_holds, forget_windows
from billing.settlement.settlement import settle
from billing.tables.money import balance, budget_charge, budget_window, ended_hold
from billing.usage import Release, Usage
from billing.verification.audit import audit_money
from storage.database.base import Count, new_id
from storage.database.database import Database
from storage.database.outbox import outbox
from tests.billing.money import Tenant
from webhooks import dispatch
from webhooks.addresses import AddressPolicy
from webhooks.dispatch import Dispatcher
from webhooks.sending import WebhookSender
from webhooks.signing import SecretCipher
from webhooks.tables import webhook_attempt, webhook_delivery, webhook_endpoint

DAY_S = 86_400
COST = Usage(uncached=10)


async def _count(database: Database, *tables: object) -> list[int]:
    async with database.reading() as session:
        return [await session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]  # type: ignore[arg-type]


@pytest.mark.slow
async def test_holds_and_charges_are_forgotten_once_their_period_is_closed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    one, two = await Tenant.rich(database, 10**10), await Tenant.rich(database, 10**10)
    budgets, holds, catalog = BudgetSettings(database), HoldService(database), PriceCatalog(database)
    events = []
    for tenant in (one, two):
        await budgets.set(tenant.id, "tenant", "", "total", limit_pico=10**9, currency="USD")
        await budgets.set(tenant.id, "key", str(tenant.key_id), "day", limit_pico=10**9, currency="USD")
        used, late, expired, *rejected = [await holds.reserve(tenant.request(10**7)) for _ in range(5)]
        events.append(tenant.event(used, COST))
        await settle(database, catalog, [events[-1], *(Release(hold.request_id, "rejected") for hold in rejected)])
        await holds.sweep(expired.expires_at)
        await settle(database, catalog, [tenant.event(late, COST)])
    now = await database.now()
    period = period_of(now)
    rows = await _count(database, ended_hold, budget_charge)
    assert rows == [8, 4]
    before = sorted((w.scope, w.held, w.spent) for w in await budgets.list(one.id))

    database.clock = literal(now + 500 * DAY_S * 1_000_000, Count())
    assert (await forget_holds(database, DAY_S), await forget_charges(database, DAY_S)) == (0, 0)  # it is open still
    await Periods(database).close(period)
    assert (await forget_holds(database, 600 * DAY_S), await forget_charges(database, 600 * DAY_S)) == (0, 0)
    assert await audit_money(database) == []
    assert [await forget_holds(database, 90 * DAY_S) for _ in range(4)] == [3, 3, 2, 0]
    assert await audit_money(database) == []
    assert [await forget_charges(database, 400 * DAY_S) for _ in range(3)] == [3, 1, 0]
    assert await audit_money(database) == []
    assert await _count(database, ended_hold, budget_charge) == [0, 0]
    async with database.reading() as session:
        assert list(await session.scalars(select(balance.c.holds))) == [2, 2]  # those that were used
        cost = events[0].cost_pico
        assert {int(w) for w in await session.scalars(select(budget_window.c.forgotten))} == {2 * cost}
    assert sorted((w.scope, w.held, w.spent) for w in await budgets.list(one.id) if w.scope == "tenant") == [before[1]]

    # what was settled twice, corrected, or is new counts as ever
    assert (await settle(database, catalog, [events[0]])).repeated == 1
    await adjust(database, catalog, one.id, events[0].id, {"uncached": -5}, reason="r")
    new = await holds.reserve(one.request(10**7))
    await settle(database, catalog, [one.event(new, COST)])
    assert await _count(database, budget_charge) == [1]
    assert {w.scope: w.spent for w in await budgets.list(one.id)} == {"tenant": 3 * cost, "key": cost}
    assert await audit_money(database) == []
    async with database.transaction() as session:
        await session.execute(update(budget_window).values(forgotten=budget_window.c.forgotten + 1))
    assert {finding.what for finding in await audit_money(database)} == {"a budget is not the sum of its requests"}


async def test_charges_without_an_event_keep_no_others_from_being_forgotten(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    tenant, budgets, holds = await Tenant.rich(database, 10**10), BudgetSettings(database), HoldService(database)
    await budgets.set(tenant.id, "tenant", "", "month", limit_pico=10**9, currency="USD")
    lost = [{"request_id": new_id(), "tenant_id": tenant.id, "budgets": ""} for _ in range(3)]
    async with database.transaction() as session:
        await session.execute(insert(budget_charge), lost)
    admitted = [await holds.reserve(tenant.request(10**7)) for _ in range(3)]
    await settle(database, PriceCatalog(database), [tenant.event(hold, COST) for hold in admitted])
    now = await database.now()
    database.clock = literal(now + 500 * DAY_S * 1_000_000, Count())
    await Periods(database).close(period_of(now))
    assert [await forget_charges(database, 400 * DAY_S) for _ in range(3)] == [2, 1, 0]
    assert {finding.subject for finding in await audit_money(database)} == {one["request_id"] for one in lost}


@pytest.mark.slow
async def test_windows_are_forgotten_once_nothing_can_move_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    tenant, budgets, holds = await Tenant.rich(database, 10**10), BudgetSettings(database), HoldService(database)
    for span in ("total", "month", "day"):
        await budgets.set(tenant.id, "tenant", "", span, limit_pico=10**9, currency="USD")
        await budgets.set(tenant.id, "tag", "a", span, limit_pico=10**9, currency="USD")
    request = msgspec.structs.replace(tenant.request(10**7), tag="a")
    used, late = await holds.reserve(request), await holds.reserve(tenant.request(10**7))
    await settle(database, PriceCatalog(database), [tenant.event(used, COST)])

    async def forget(days: int) -> list[int]:
        return [await forget_windows(database, days * DAY_S) for _ in range(3)]

    now = await database.now()
    await holds.sweep(late.expires_at)
    database.clock = literal(now + 500 * DAY_S * 1_000_000, Count())
    assert await forget(90) == [0, 0, 0]  # the period is open
    await Periods(database).close(period_of(now))
    assert await forget(90) == [0, 0, 0]  # what was used was counted in them, and what is late may come
    await forget_charges(database, 400 * DAY_S)
    assert await forget(90) == [0, 0, 0]
    await forget_holds(database, 400 * DAY_S)
    assert await forget(600) == [0, 0, 0]
    before = {(w.scope, w.span): w.spent for w in await budgets.list(tenant.id) if w.span == "total"}
    assert await forget(400) == [2, 2, 0]
    async with database.reading() as session:
        assert set(await session.scalars(select(budget_window.c.span))) == {"total"}
    assert await audit_money(database) == []
    assert before == {(w.scope, w.span): w.spent for w in await budgets.list(tenant.id) if w.span == "total"}
    new = await holds.reserve(msgspec.structs.replace(request, request_id=new_id()))
    await settle(database, PriceCatalog(database), [tenant.event(new, COST)])
    assert await _count(database, budget_window) == [6]
    assert await audit_money(database) == []


async def test_told_messages_are_forgotten_with_their_deliveries_and_untold_ones_are_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "REMOVAL_BATCH", 2)
    now, tenant, endpoint = await database.now(), new_id(), new_id()
    empty = {"tenant_id": tenant, "topic": "a.b", "created_at": now}
    deliveries = [
        {
            **empty, "id": new_id(), "endpoint_id": endpoint, "event_id": new_id(), "body": "{}", "state": state,
            "attempts": 1, "due_since": now, "next_at": now, "leased_until": 0, "error": "",
            "finished_at": None if state == "pending" else now,
        }
        for state in ("delivered", "pending", "failed", "delivered")
    ]  # fmt: skip
    async with database.transaction() as session:
        told = [{**empty, "id": new_id(), "payload": "{}", "sent_at": now} for _ in range(3)]
        await session.execute(insert(outbox), [*told, {**empty, "id": new_id(), "payload": "{}", "sent_at": None}])
        one = {"id": endpoint, "tenant_id": tenant, "url": "https://a.b", "topics": "*", "description": ""}
        await session.execute(insert(webhook_endpoint).values({**one, "state": "enabled", "reason": "", "secret": b"",
                                                               "created_at": now}))  # fmt: skip
        await session.execute(insert(webhook_delivery), deliveries)
        attempts = [
            {"delivery_id": d["id"], "number": 1, "at": now, "error": "", "milliseconds": 1} for d in deliveries
        ]
        await session.execute(insert(webhook_attempt), attempts)
    dispatcher = Dispatcher(database, SecretCipher(b"m" * 32), WebhookSender(AddressPolicy()))
    database.clock = literal(now + 90 * DAY_S * 1_000_000, Count())
    assert await dispatcher.remove_old(91 * DAY_S) == 0
    assert [await dispatcher.remove_old(89 * DAY_S) for _ in range(3)] == [2, 1, 0]
    assert await _count(database, outbox, webhook_delivery, webhook_attempt) == [1, 1, 1]

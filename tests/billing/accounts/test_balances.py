"""Money in and out: what is put in, paid back, expires or is corrected, each once; and the books agree."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import literal, select

from billing.accounts.adjustments import InvalidAdjustment, UnknownEvent, adjust
from billing.accounts.balances import Balances, CurrencyMismatch, InvalidGrant
from billing.accounts.grant_lists import list_grants
from billing.accounts.idempotency import IdempotencyConflict
from billing.accounts.statements import by_day, statement
from billing.calendar import period_bounds
from billing.ledger.wallet import RefundRefused
from billing.money import InvalidMoney
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.rating.usage_lines import usage_lines
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.money import ledger_entry, usage_event
from billing.usage import InvalidUsage, Release, UsageEvent
from billing.verification.audit import audit_money
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.billing.money import Tenant

COST = 100 * 400_000 + 10 * 1_600_000  # what Tenant.event costs
DAY = 86_400_000_000


async def use(database: Database, tenant: Tenant) -> UsageEvent:
    event = tenant.event(await HoldService(database).reserve(tenant.request(0)))
    await settle(database, PriceCatalog(database), [event])
    return event


async def legs(database: Database) -> list[tuple[str, str, int]]:
    async with database.reading() as session:
        rows = await session.execute(select(ledger_entry.c.debit, ledger_entry.c.credit, ledger_entry.c.amount_pico))
        return sorted((row[0], row[1], int(row[2])) for row in rows)


async def test_a_refund_is_of_paid_unused_money_and_happens_once(database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 10 * COST), Balances(database)
    await balances.grant(tenant.id, COST, "USD", kind="promo")
    await HoldService(database).reserve(tenant.request(3 * COST))
    await use(database, tenant)
    with pytest.raises(RefundRefused, match=r"only 0\.000392 USD are paid"):
        await balances.refund(tenant.id, 8 * COST, "USD")
    with pytest.raises(CurrencyMismatch):
        await balances.refund(tenant.id, COST, "EUR")
    with pytest.raises(InvalidMoney):
        await balances.refund(tenant.id, 0, "USD")
    with pytest.raises(RefundRefused):
        await balances.refund(new_id(), COST, "USD")
    await balances.refund(tenant.id, COST, "USD", dry_run=True)
    refund = new_id()
    for _ in range(2):
        assert await balances.refund(tenant.id, 7 * COST, "USD", refund_id=refund) == refund
    balance = await balances.get(tenant.id)
    assert balance is not None
    assert (balance.available, balance.prepaid, balance.promo) == (0, 3 * COST, 0)
    assert ("prepaid", "clearing", 7 * COST) in await legs(database)
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_what_expires_is_taken_once_and_holds_are_honoured(database: Database) -> None:
    tenant, balances = await Tenant.rich(database, COST), Balances(database)
    now = await database.now()
    await balances.grant(tenant.id, 4 * COST, "USD", expires_at=now + DAY)
    await balances.grant(tenant.id, 2 * COST, "USD", kind="promo", expires_at=now + DAY)
    await balances.grant(tenant.id, 2 * COST, "USD", kind="promo", expires_at=now + DAY, model="another")
    await use(database, tenant)
    hold = await HoldService(database).reserve(tenant.request(4 * COST))
    assert await balances.expire(now) == 0
    assert await balances.expire(now + DAY) == 1
    assert [grant.remaining for grant in await balances.grants(tenant.id)] == [0, COST, 4 * COST, COST]
    assert await audit_money(database) == []
    await settle(database, PriceCatalog(database), [tenant.event(hold)])
    assert await balances.expire(now + DAY) == 1
    assert await balances.expire(now + DAY) == 0
    balance = await balances.get(tenant.id)
    assert balance is not None
    assert balance.available == COST
    taken = [leg for leg in await legs(database) if leg[1] in ("breakage", "goodwill")]
    assert taken == [
        ("prepaid", "breakage", 4 * COST),
        ("restricted", "goodwill", 2 * COST),
    ]
    assert await audit_money(database) == []


@pytest.mark.both_databases
async def test_what_has_expired_is_not_shown_before_it_is_taken(database: Database) -> None:
    tenant, balances = await Tenant.rich(database, COST), Balances(database)
    other, now = await Tenant.rich(database, COST), await database.now()
    await balances.grant(tenant.id, 4 * COST, "USD", expires_at=now + DAY)
    await balances.grant(tenant.id, 2 * COST, "USD", kind="promo", expires_at=now + DAY)
    await balances.grant(tenant.id, 2 * COST, "USD", kind="promo", expires_at=now + DAY, model="another")
    hold = await HoldService(database).reserve(tenant.request(3 * COST))

    async def shown() -> tuple[int, int, int, int]:
        both = await balances.of_tenants([tenant.id, other.id])
        assert both[other.id].available == COST
        one = both[tenant.id]
        return one.available, one.prepaid, one.promo, one.restricted

    assert await shown() == (4 * COST, 5 * COST, 2 * COST, 2 * COST)
    database.clock = literal(now + DAY, Count())
    assert (await shown())[::3] == (0, 0), "what the hold counts on is neither available nor gone"
    rows = {
        (row.kind, row.model, row.expires_at is None): row for row in await list_grants(database, tenant.id, limit=9)
    }
    assert {key: (row.remaining, row.gone) for key, row in rows.items()} == {
        ("paid", None, True): (COST, 0),
        ("paid", None, False): (0, 4 * COST),
        ("promo", None, False): (0, 2 * COST),
        ("promo", "another", False): (0, 2 * COST),
    }
    await settle(database, PriceCatalog(database), [Release(hold.request_id, "no", hold.batch)])
    expected = await shown()
    assert expected == (COST, COST, 0, 0)
    assert await balances.expire(now + DAY) == 1
    assert await shown() == expected
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_restricted_money_pays_for_its_model(database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 5 * COST), Balances(database)
    await balances.grant(tenant.id, COST + 1, "USD", kind="promo", model=tenant.version.model)
    await balances.grant(tenant.id, COST, "USD", kind="promo", project_id=new_id())
    for _ in range(2):
        await use(database, tenant)
    balance = await balances.get(tenant.id)
    assert balance is not None
    assert balance.available == 4 * COST + 1
    assert [grant.remaining for grant in await balances.grants(tenant.id)] == [0, COST, 4 * COST + 1]
    assert await audit_money(database) == []


async def test_grants_that_cannot_be(database: Database) -> None:
    tenant, balances = await Tenant.rich(database, COST), Balances(database)
    wrong: list[dict[str, object]] = [{"kind": "gift"}, {"model": "m"}, {"project_id": new_id()}, {"expires_at": 1}]
    for arguments in wrong:
        with pytest.raises(InvalidGrant):
            await balances.grant(tenant.id, COST, "USD", **arguments)  # type: ignore[arg-type]
    with pytest.raises(CurrencyMismatch):
        await balances.grant(tenant.id, COST, "EUR", dry_run=True)
    assert len(await balances.grants(tenant.id)) == 1


async def test_a_correction_is_a_new_event(database: Database) -> None:
    tenant, balances, catalog = await Tenant.rich(database, 3 * COST), Balances(database), PriceCatalog(database)
    event = await use(database, tenant)
    identity = new_id()
    for _ in range(2):
        units = {"uncached": -40, "output": 5}
        made = await adjust(database, catalog, tenant.id, event.id, units, reason="twice", adjustment_id=identity)
    change = -40 * 400_000 + 5 * 1_600_000
    assert (made.corrects, made.cost_pico, made.period, made.admitted_at) == (
        event.id, change, event.period, event.admitted_at
    )  # fmt: skip
    balance = await balances.get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.available) == (COST + change, 2 * COST - change)
    for source in ("events", "rollups"):
        lines = await usage_lines(database, catalog, tenant.id, event.period, source=source)  # type: ignore[arg-type]
        assert [(line.meter, line.units, line.exact_pico) for line in lines] == [
            ("uncached", 60, 60 * 400_000), ("output", 15, 15 * 1_600_000)
        ]  # fmt: skip
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_adjustments_that_cannot_be(database: Database) -> None:
    tenant, other = await Tenant.rich(database, 3 * COST), await Tenant.rich(database, COST, "big")
    catalog, event = PriceCatalog(database), await use(database, tenant)

    async def adjusting(
        units: dict[str, int], event_id: UUID = event.id, owner: UUID = tenant.id, **more: bool
    ) -> None:
        await adjust(database, catalog, owner, event_id, units, reason="r", **more)  # type: ignore[arg-type]

    with pytest.raises(UnknownEvent):
        await adjusting({"output": 1}, new_id())
    with pytest.raises(UnknownEvent):
        await adjusting({"output": 1}, owner=other.id)
    with pytest.raises(InvalidUsage, match="unknown meter tokens"):
        await adjusting({"tokens": 1})
    for more in ({}, {"dry_run": True}):
        with pytest.raises(InvalidAdjustment, match="output: 1 unit more than there were would be taken back"):
            await adjusting({"output": -11}, **more)
    with pytest.raises(InvalidAdjustment, match="no units"):
        await adjusting({"output": 0})
    made = await adjust(database, catalog, tenant.id, event.id, {"output": -10}, reason="r")
    with pytest.raises(InvalidAdjustment, match="is an adjustment itself"):
        await adjusting({"output": 1}, made.id)
    answers = await asyncio.gather(*(adjusting({"uncached": -60}) for _ in range(3)), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["InvalidAdjustment", "InvalidAdjustment", "NoneType"]
    async with database.reading() as session:
        assert len((await session.execute(select(usage_event))).all()) == 3
    assert await audit_money(database) == []


async def test_a_correction_takes_no_money_that_is_promised(database: Database) -> None:
    """I7: nothing but usage that has arrived brings a balance below zero, and nobody would be told of this."""
    tenant, balances, catalog = await Tenant.rich(database, 2 * COST), Balances(database), PriceCatalog(database)
    event = await use(database, tenant)
    await HoldService(database).reserve(tenant.request(COST))
    for dry_run in (True, False):
        with pytest.raises(InvalidAdjustment, match=r"costs 0\.0000016 USD and 0\.00 are available"):
            await adjust(database, catalog, tenant.id, event.id, {"output": 1}, reason="r", dry_run=dry_run)
    await balances.set_credit_line(tenant.id, 1_600_000, "USD")
    await adjust(database, catalog, tenant.id, event.id, {"output": 1}, reason="r")
    found = await balances.get(tenant.id)
    assert found is not None
    assert (found.available, found.overdraft) == (0, 0)
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_a_correction_of_a_closed_period_is_booked_in_the_open_one(database: Database) -> None:
    tenant, catalog = await Tenant.rich(database, 3 * COST), PriceCatalog(database)
    event = await use(database, tenant)
    _, end = period_bounds(event.period)
    database.clock = literal(end + 40 * DAY, Count())
    assert (await Periods(database).close(event.period)).state == "closed"
    made = await adjust(database, catalog, tenant.id, event.id, {"output": -10}, reason="r")
    assert made.period > event.period
    (line,) = await usage_lines(database, catalog, tenant.id, made.period)
    assert (line.corrects_period, line.meter, line.units) == (event.period, "output", -10)
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_an_id_stands_for_one_movement_of_money(database: Database) -> None:
    tenant, balances, catalog = await Tenant.rich(database, 10 * COST), Balances(database), PriceCatalog(database)
    other = await Tenant.rich(database, 10 * COST)
    event = await use(database, tenant)
    grant, refund, correction = new_id(), new_id(), new_id()
    soon = await database.now() + 10**6

    async def correct(owner: Tenant, of: UUID, identity: UUID, **units: int) -> UsageEvent:
        return await adjust(database, catalog, owner.id, of, units, reason="r", adjustment_id=identity)

    for _ in range(2):
        await balances.grant(tenant.id, COST, "USD", kind="promo", grant_id=grant, expires_at=soon)
        await balances.refund(tenant.id, COST, "USD", refund_id=refund)
        made = await correct(tenant, event.id, correction, output=-1)
    database.clock = literal(soon + 1, Count())  # what was true when it was done is not checked again
    await balances.grant(tenant.id, COST, "USD", kind="promo", grant_id=grant, expires_at=soon)
    assert (await correct(tenant, event.id, correction, output=-1)).finished_at == made.finished_at
    theirs = await use(database, other)
    running, rejected = [(await HoldService(database).reserve(tenant.request(COST))).request_id for _ in range(2)]
    await settle(database, catalog, [Release(rejected, "rejected")])
    attempts = [
        *(balances.grant(tenant.id, COST, "USD", grant_id=one) for one in (event.id, correction, running, rejected)),
        *(balances.refund(tenant.id, COST, "USD", refund_id=one) for one in (theirs.id, correction, running, rejected)),
        *(correct(tenant, event.id, one, output=-1) for one in (event.id, refund, running, rejected)),
        balances.refund(tenant.id, COST, "EUR", refund_id=refund),
        balances.grant(tenant.id, COST + 1, "USD", kind="promo", grant_id=grant, expires_at=soon),
        balances.grant(tenant.id, COST, "USD", grant_id=grant, expires_at=soon),
        balances.grant(other.id, COST, "USD", kind="promo", grant_id=grant, expires_at=soon),
        balances.grant(tenant.id, COST, "USD", kind="promo", grant_id=grant, expires_at=soon, model="m"),
        balances.grant(tenant.id, COST, "USD", grant_id=refund),
        balances.refund(tenant.id, COST + 1, "USD", refund_id=refund),
        balances.refund(other.id, COST, "USD", refund_id=refund),
        balances.refund(tenant.id, COST, "USD", refund_id=grant),
        correct(tenant, event.id, correction, output=-2),
        correct(tenant, event.id, correction, output=-1, uncached=1),
        correct(other, theirs.id, correction, output=-1),
        correct(tenant, event.id, theirs.id, output=-1),
        correct(tenant, event.id, grant, output=-1),
    ]
    before = await legs(database)
    for attempt in attempts:
        with pytest.raises(IdempotencyConflict):
            await attempt
    assert await legs(database) == before
    assert await audit_money(database) == []


async def test_a_statement_has_a_days_usage_in_one_line(database: Database) -> None:
    tenant, day = await Tenant.rich(database, 10 * COST), 86_400_000_000
    balances, now = Balances(database), await database.now()
    for days, what in enumerate(["use", "use", "grant", "use"]):
        database.clock = literal(now - now % day + (1 + days // 2) * day + days, Count())
        if what == "grant":
            await balances.grant(tenant.id, COST, "USD")
        else:
            await use(database, tenant)
            await use(database, tenant)
    lines = await statement(database, tenant.id)
    shown = by_day(lines)
    assert [line.kind for line in lines] == ["grant", *["usage"] * 4, "grant", "usage", "usage"]
    assert [line.kind for line in shown] == ["grant", "usage", "grant", "usage"]
    assert sum(line.amount_pico for line in shown) == sum(line.amount_pico for line in lines)
    assert [line.balance_pico for line in shown] == [lines[n].balance_pico for n in (0, 4, 5, 7)]

"""What holds about invoices: they open down to the request, nothing in them is altered unseen, numbers have no gaps,
and what is billed is what was used."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Executable, delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from billing.accounts.adjustments import adjust
from billing.calendar import period_bounds
from billing.invoices import drill_down
from billing.invoices.collection import pay
from billing.invoices.composing import Funding, compose
from billing.invoices.credit_notes import credit
from billing.invoices.document import Savings
from billing.invoices.finalizing import finalize
from billing.invoices.parties.dated import DatedParty, InvoiceParties
from billing.money import minor_unit
from billing.prices import PriceCatalog
from billing.rating.lines import RatedLine
from billing.tables.invoices import einvoice, invoice, invoice_line, invoice_payment, number_series
from billing.tables.money import ledger_entry
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER

USAGE = Usage(uncached=1_000_000, read={"5m": 3_000_001}, write={"1h": 500_000}, output=7_000_003)
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def test_every_level_adds_up_to_the_one_above(database: Database) -> None:
    customer = await Customer.make(database)
    for day in (1, 7, 31):
        for moment in ("00:00:00", "00:59:59", "13:30:00", "23:59:59"):
            usages = [Usage(uncached=day * n + 1, output=n) for n in range(5)]
            events = await customer.use(f"2026-10-{day:02d}T{moment}", *usages)
    set_clock(database, "2026-10-31T23:59:59.5")
    for event in events[1:3]:  # stands at its request's hour, and is no request
        await adjust(
            database, PriceCatalog(database), customer.id, event.id, {"output": -1, "uncached": 7}, reason="why"
        )
    record = await customer.invoice("2026-10")
    document = await customer.invoices.document(record)
    assert len(document.lines) == 2
    for n, line in enumerate(document.lines, 1):
        days = await drill_down.days(database, record, n)
        assert [part.start for part in days] == [_instant(day) for day in (1, 7, 31)]
        assert sum(part.exact_pico for part in days) == int(line.exact)
        assert sum(part.units for part in days) == int(line.units)
        for day in days:
            hours = await drill_down.hours(database, record, n, day.start)
            assert len(hours) == 3
            assert _sums(hours) == _sums([day])
            for hour in hours:
                found: list[drill_down.BilledRequest] = []
                page = await drill_down.requests(database, record, n, hour.start, limit=3)
                found += page.requests
                while page.after is not None:
                    page = await drill_down.requests(database, record, n, hour.start, after=page.after, limit=3)
                    found += page.requests
                asked = {request.id for request in found if request.corrects is None}
                adjusted = [request for request in found if request.corrects is not None]
                assert len({request.id for request in found}) == len(found)
                assert (len(asked), len(adjusted)) == (hour.requests, hour.adjustments)
                assert {request.corrects for request in adjusted} <= asked
                assert sum(request.units for request in found) == hour.units
                assert sum(request.exact_pico for request in found) == hour.exact_pico
        assert sum(part.requests for part in days) == 4 * 3 * (5 if line.meter == "uncached" else 4)
        assert [part.adjustments for part in days] == [0, 0, 2]
    assert await drill_down.days(database, record, 9) == []


def _sums(parts: list[drill_down.LineSlice]) -> tuple[int, ...]:
    names = ("requests", "adjustments", "units", "exact_pico")
    return tuple(sum(getattr(part, name) for part in parts) for name in names)


def _instant(day: int) -> int:
    return period_bounds("2026-10")[0] + (day - 1) * drill_down.DAY


async def _unprotected(database: Database, *statements: Executable) -> None:
    """Change what the triggers protect, as somebody could who has the whole database."""
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            names = await session.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            connection = await session.connection()
            for name in list(names):
                await connection.exec_driver_sql(f"DROP TRIGGER {name}")
            await connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        for statement in statements:
            await session.execute(statement)


ALTERATIONS: dict[str, Any] = {
    "an amount in the content": update(invoice).values(content=func.replace(invoice.c.content, "1212", "1213")),
    "the hash": update(invoice).where(invoice.c.n == 1).values(sha256="0" * 64),
    "a column": update(invoice).where(invoice.c.n == 1).values(net=1),
    "a line's amount": update(invoice_line).values(net=invoice_line.c.net + 1),
    "a line's text": update(invoice_line).values(text="cheap"),
    "a number": update(invoice).where(invoice.c.n == 2).values(n=3),
    "the series": update(number_series).values(next=9),
    "what was paid": update(invoice).where(invoice.c.n == 1).values(paid=invoice.c.paid + 1),
    "a payment": update(invoice_payment).values(amount=invoice_payment.c.amount - 1),
    "a payment's grant": update(invoice_payment).values(usage_pico=invoice_payment.c.usage_pico + 1),
    "tax in the ledger": text("UPDATE ledger_entry SET amount_pico = amount_pico + 1 WHERE credit = 'tax'"),
}


ALTERED = (invoice, invoice_line, invoice_payment, number_series, ledger_entry)


@pytest.mark.slow
async def test_the_audit_notices_what_was_altered(database: Database) -> None:
    customer = await Customer.make(database, buyer=GERMAN)
    for month in ("2026-10", "2026-11"):
        await customer.use(f"{month}-03", USAGE)
        sent = await customer.invoice(month)
    await pay(database, sent, "bank", 100)
    await credit(database, sent, "why", request="1", amounts={1: 10})
    assert await audit_money(database) == []
    async with database.reading() as session:
        rows = {table: [dict(row._mapping) for row in await session.execute(select(table))] for table in ALTERED}
    for name, alteration in ALTERATIONS.items():
        await _unprotected(database, alteration)
        assert await audit_money(database) != [], name
        right = (insert(table).values(found) for table, found in rows.items())
        await _unprotected(database, *map(delete, ALTERED), *right)
    assert await audit_money(database) == [], "all was put back between them"


@pytest.mark.slow
async def test_the_audit_notices_a_document_that_is_gone_or_made_up_whole(database: Database) -> None:
    customer = await Customer.make(database)
    for month in ("2026-10", "2026-11"):
        await customer.use(f"{month}-03", USAGE)
        record = await customer.invoice(month)
    await _unprotected(database, update(invoice).where(invoice.c.n == 1).values(state="void"))
    assert {finding.what for finding in await audit_money(database)} == {"the ledger is not what the invoices say"}
    for part in (invoice_line, einvoice):
        await _unprotected(database, delete(part).where(part.c.invoice_id == record.id))
    await _unprotected(database, delete(invoice).where(invoice.c.id == record.id))
    assert "a number is missing or there twice" in {finding.what for finding in await audit_money(database)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        update(invoice).values(net=1),
        update(invoice).values(content="{}"),
        update(invoice).values(state="draft", number=None, sha256=None),
        delete(invoice),
        update(invoice_line).values(net=1),
        delete(invoice_line),
        insert(invoice_line).from_select(
            list(invoice_line.c),
            select(*(column + 100 if column.name == "n" else column for column in invoice_line.c)),
        ),
        update(number_series).values(next=1),
        update(number_series).values(next=number_series.c.next + 2),
        delete(number_series),
        update(invoice_payment).values(amount=1),
        delete(invoice_payment),
    ],
)  # fmt: skip
async def test_the_database_keeps_what_is_finalized(database: Database, statement: Executable) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", USAGE)
    await pay(database, await customer.invoice("2026-10"), "bank", 100)
    async with database.transaction() as session:
        with pytest.raises(DBAPIError, match="immutable"):
            await session.execute(statement)
        await session.rollback()


@pytest.mark.slow
async def test_parallel_finalizing_leaves_no_gap(database: Database, database_url: str) -> None:
    """Also where some of the transactions fail after they took a number."""
    customers = [await Customer.make(database, model=f"m{n}") for n in range(12)]
    for customer in customers:
        await customer.use("2026-10-03", USAGE)
    await customers[0].close("2026-10")
    for customer in customers:
        await customer.draft("2026-10")
    pools = [await Database.open(database_url) for _ in range(4)]
    for pool in pools:
        pool.clock = database.clock

    async def one(n: int, customer: Customer) -> str | None:
        pool = pools[n % len(pools)]
        record = await finalize(pool, PriceCatalog(pool), customer.id, "2026-10")
        return record.number

    try:
        twice = await asyncio.gather(*(one(n, customer) for n, customer in enumerate(customers * 2)))
    finally:
        for pool in pools:
            await pool.close()
    assert sorted(set(twice), key=str) == [f"INV-2026-{n:06}" for n in range(1, 13)]
    assert twice[:12] == twice[12:]
    assert await audit_money(database) == []


amounts = st.lists(st.integers(0, 3 * 10**10), min_size=1, max_size=4)
periods = st.lists(st.tuples(amounts, st.integers(0, 10**11), st.integers(0, 100)), min_size=1, max_size=24)


@given(periods, st.sampled_from(["USD", "JPY", "KWD"]))
def test_lifetime_billed_is_lifetime_exact_within_one_minor_unit(
    months: list[tuple[list[int], int, int]], currency: str
) -> None:
    """Whatever the lines, what was given and what was paid in advance."""
    unit = minor_unit(currency)
    carry = prepaid_carry = exact = billed = advance = applied = 0
    for number, (picos, given_pico, share) in enumerate(months):
        period = f"{2026 + number // 12}-{number % 12 + 1:02d}"
        start, end = period_bounds(period)
        lines = [
            RatedLine(kind="usage", description=f"{n}", exact_pico=pico, service_start=start, service_end=end)
            for n, pico in enumerate(picos)
        ]
        promo = min(given_pico, sum(picos))
        prepaid = (sum(picos) - promo) * share // 100
        document = compose(
            InvoiceParties(DatedParty(USD), DatedParty(BUYER), f"{period}-28", f"{period}-28"), UUID(int=1), period,
            currency=currency, rated=lines,
            funding=Funding(promo, prepaid, carry, prepaid_carry), savings=Savings(models=[]), projects={},
        )  # fmt: skip
        carry, prepaid_carry = int(document.carry_out), int(document.prepaid_carry_out)
        exact += sum(picos) - promo
        advance += prepaid
        billed += document.net
        applied += document.prepaid
        assert document.net == sum(line.net for line in document.lines)
        assert exact - billed * unit == carry
        assert abs(carry) <= unit
        assert advance - applied * unit == prepaid_carry
        assert 0 <= document.payable == document.gross - document.prepaid
        if prepaid == sum(picos) - promo:
            assert document.payable == document.tax

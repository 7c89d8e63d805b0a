"""Pages of statements and grants say what the whole says."""

from __future__ import annotations

from typing import Any

from billing.accounts.balances import Balances
from billing.accounts.grant_lists import find_grant, list_grants
from billing.accounts.statements import StatementLine, by_day, statement, statement_page
from billing.money import PICO
from billing.usage import Usage
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock


async def _pages(database: Database, tenant_id: Any, **options: Any) -> list[StatementLine]:
    found: list[StatementLine] = []
    after = None
    while True:
        page = await statement_page(database, tenant_id, after=after, **options)
        assert len(page.lines) <= options["limit"]
        found += page.lines
        after = page.after
        if after is None:
            return found


async def test_a_statement_in_pages_is_the_statement(database: Database) -> None:
    customer = await Customer.make(database, 20 * PICO)
    balances = Balances(database)
    for day in (1, 2, 2, 3):
        await customer.use(f"2026-10-0{day}T10:00", Usage(uncached=1_000_000), Usage(output=100_000))
    await balances.grant(customer.id, PICO, "USD", kind="promo", reason="goodwill")
    await balances.refund(customer.id, PICO // 2, "USD")
    record = await customer.invoice("2026-10")
    assert record.number is not None
    set_clock(database, "2026-11-05")
    await balances.grant(customer.id, 3 * PICO, "USD")
    lines = await statement(database, customer.id)
    assert len(lines) > 6
    for limit in (1, 2, 100):
        assert await _pages(database, customer.id, limit=limit) == lines
        assert await _pages(database, customer.id, limit=limit, days=True) == by_day(lines)
    start, end = lines[2].posted_at, lines[-1].posted_at
    of = [line for line in lines if start <= line.posted_at < end]
    assert await _pages(database, customer.id, limit=2, start_at=start, end_at=end) == of
    assert await _pages(database, new_id(), limit=2) == []


async def test_grants_are_listed_newest_first_with_what_became_of_them(database: Database) -> None:
    customer, other = await Customer.make(database), await Customer.make(database, model="big")
    balances, made = Balances(database), []
    for n in range(5):  # all at one instant
        kind = "promo" if n % 2 else "paid"
        made.append(await balances.grant(customer.id, (n + 1) * PICO, "USD", kind=kind, reason=f"number {n}"))
    theirs = await balances.grant(other.id, PICO, "USD")
    seen: list[Any] = []
    after = None
    while rows := await list_grants(database, customer.id, limit=2, after=after):
        seen += rows
        after = rows[-1].id
    assert {row.id for row in seen} == set(made)
    assert len(seen) == 5
    assert seen == sorted(seen, key=lambda row: (row.at, row.id.bytes), reverse=True)
    assert {row.kind for row in await list_grants(database, customer.id, limit=9, kind="promo")} == {"promo"}
    assert await list_grants(database, customer.id, limit=9, after=theirs) == []
    assert await find_grant(database, customer.id, theirs) is None
    found = await find_grant(database, customer.id, made[0])
    assert found is not None
    assert (found.amount_pico, found.remaining, found.used, found.reason) == (PICO, PICO, 0, "number 0")

"""What a month would have cost at other prices is what its requests cost, rated anew one by one."""

from __future__ import annotations

import pytest

from billing.calendar import InvalidPeriod
from billing.money import parse_price
from billing.prices import PriceCatalog, PriceVersion, in_every_lane
from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal
from billing.prices.version import Rows
from billing.reports.price_impact import PriceImpact, price_impact
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.money import PRICES

MODEL = "stdlib-qa"
USAGES = [Usage(uncached=n * 1_001, read={"automatic": n}, output=7 * n + 1) for n in range(9)]


def _rows(**changed: str) -> Rows:
    return in_every_lane({meter: parse_price(text) for meter, text in {**PRICES, **changed}.items()})


async def _impact(database: Database, rows: Rows, book: str = "base") -> PriceImpact:
    """That of a draft of these prices on October."""
    sheets = PriceSheets(database)
    draft = await sheets.draft(PriceProposal(model=MODEL, rows=rows, book=book), "ann", "cheaper", "on purpose")
    _, after, _ = await sheets.effect(draft)
    return await price_impact(database, PriceCatalog(database), draft, after, "2026-10")


async def test_it_is_what_each_request_would_have_cost(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-05T13:10", *USAGES[:4])
    events = await customer.use("2026-10-31T23:59", *USAGES[4:])
    await customer.use("2026-11-01T00:00", Usage(uncached=10**6))
    rows = _rows(uncached="0.37", output="1.9")
    found = await _impact(database, rows)
    new = PriceVersion(0, MODEL, "USD", rows)
    assert found.cost_pico == sum(customer.tenant.version.cost(usage, events[0].lane) for usage in USAGES)
    assert found.would_cost_pico == sum(new.cost(usage, events[0].lane) for usage in USAGES)
    assert found.would_cost_pico != found.cost_pico
    assert (found.requests, found.tenants, found.left_out, found.inexact) == (9, 1, 0, "")
    (mine,) = found.by_tenant
    assert (mine.tenant_id, mine.cost_pico, mine.would_cost_pico) == (
        customer.id,
        found.cost_pico,
        found.would_cost_pico,
    )


async def test_no_prices_changed_is_no_difference_and_another_month_is_refused(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-05T13:10", *USAGES)
    found = await _impact(database, _rows())
    assert found.would_cost_pico == found.cost_pico > 0
    sheet = (await PriceSheets(database).history())[0]
    with pytest.raises(InvalidPeriod):
        await price_impact(database, PriceCatalog(database), sheet, _rows(), "2026-13")


async def test_a_tier_inside_what_was_summed_up_has_no_exact_answer(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-05T13:10", *USAGES)
    tiers = dict(_rows()) | {(meter, lane, 5_000): 2 * micro for (meter, lane, _), micro in _rows().items()}
    found = await _impact(database, tiers)
    assert (found.would_cost_pico, found.requests) == (None, 9)
    assert "5000 tokens" in found.inexact


async def test_tenants_with_prices_of_their_own_are_left_out_and_told(database: Database) -> None:
    one, other = await Customer.make(database), await Customer.make(database)
    for customer in (one, other):
        await customer.use("2026-10-05T13:10", *USAGES)
    books = PriceBooks(database)
    await books.create_for(other.id, "other's")
    found = await _impact(database, _rows(output="1.9"))
    assert (found.tenants, found.left_out, found.requests) == (1, 1, 9)
    own = await _impact(database, _rows(output="1.9"), "other's")
    assert (own.tenants, own.left_out, own.requests) == (1, 0, 9)
    assert own.would_cost_pico == found.would_cost_pico
    nobody = await books.create("in EUR", "EUR")
    assert (await _impact(database, _rows(), nobody.name)).requests == 0

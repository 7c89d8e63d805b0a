"""Credit notes and corrections of usage take back the same money: together never more than an invoice charged."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import update

from billing.accounts.adjustments import InvalidAdjustment, adjust
from billing.accounts.balances import Balances
from billing.invoices.credit_notes import credit
from billing.invoices.errors import AmountRefused
from billing.invoices.store import InvoiceRecord
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import parse_terms
from billing.tables.invoices import invoice
from billing.usage import Usage, UsageEvent
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.invoices.documents import BUYER
from tests.billing.verification.test_alterations import unguarded

CENT = 10**10
US = msgspec.structs.replace(BUYER, country="US", vat_id="")
EIGHT_DOLLARS = Usage(output=5_000_000)


async def _october(database: Database, cents: int, basis_points: int = 0) -> tuple[Customer, UsageEvent, InvoiceRecord]:
    """A customer who has put so much in and used eight dollars, which are invoiced."""
    customer = await Customer.make(database, buyer=US)
    if basis_points:
        terms = parse_terms({"discounts": [{"basis_points": basis_points}]})
        await Contracts(database, PriceCatalog(database)).put(customer.id, terms, "2026-10", by="ann")
    if cents:
        await Balances(database).grant(customer.id, cents * CENT, "USD", grant_id=new_id())
    (event,) = await customer.use("2026-10-05", EIGHT_DOLLARS)
    return customer, event, await customer.invoice("2026-10")


async def _correct(customer: Customer, event: UsageEvent, output: int, *, dry_run: bool = False) -> None:
    catalog = PriceCatalog(customer.database)
    await adjust(
        customer.database, catalog, customer.id, event.id, {"output": output}, reason="looped", dry_run=dry_run
    )


async def _money(customer: Customer) -> int:
    """What the customer has, less what it owes, in cents."""
    balance = await Balances(customer.database).get(customer.id)
    assert balance is not None
    return (balance.prepaid - balance.receivable) // CENT


@pytest.mark.slow
@pytest.mark.parametrize(("cents", "basis_points"), [(1000, 0), (0, 0), (1000, 5000)])
async def test_what_was_credited_is_not_corrected_too(database: Database, cents: int, basis_points: int) -> None:
    customer, event, october = await _october(database, cents, basis_points)
    await credit(database, october, "An outage", request="1")
    assert await _money(customer) == cents
    for dry_run in (True, False):
        with pytest.raises(InvalidAdjustment, match=f"{october.number} charged .* were credited"):
            await _correct(customer, event, -5_000_000, dry_run=dry_run)
    assert await _money(customer) == cents
    assert await audit_money(database) == []


@pytest.mark.slow
@pytest.mark.parametrize(("cents", "basis_points"), [(1000, 0), (0, 0), (1000, 5000)])
async def test_what_was_corrected_is_not_credited_too(database: Database, cents: int, basis_points: int) -> None:
    customer, event, october = await _october(database, cents, basis_points)
    await _correct(customer, event, -5_000_000)
    assert await _money(customer) == cents
    with pytest.raises(AmountRefused, match="given back by corrections of usage"):
        await credit(database, october, "An outage", request="1")
    assert await _money(customer) == cents
    assert await audit_money(database) == []


async def test_both_take_back_their_part(database: Database) -> None:
    customer, event, october = await _october(database, 1000)
    await _correct(customer, event, -1_250_000)  # 2.00
    (line,) = [n for n, one in enumerate((await customer.invoices.document(october)).lines, 1) if one.net == 800]
    with pytest.raises(AmountRefused, match=r"2.00\d* USD of .* were given back"):
        await credit(database, october, "An outage", request="1", amounts={line: 700})
    await credit(database, october, "An outage", request="1", amounts={line: 500})
    assert await _money(customer) == 200 + 200 + 500
    with pytest.raises(InvalidAdjustment):
        await _correct(customer, event, -1_250_000)
    await _correct(customer, event, 625_000)  # the correction was too much by 1.00
    await credit(database, october, "An outage", request="2", amounts={line: 200})
    assert await _money(customer) == 1000
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_given_credit_is_given_back_beside_what_is_credited(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await Balances(database).grant(customer.id, 300 * CENT, "USD", kind="promo", grant_id=new_id())
    (event,) = await customer.use("2026-10-05", EIGHT_DOLLARS)
    october = await customer.invoice("2026-10")
    assert october.net == 500
    await _correct(customer, event, -5_000_000)
    assert await _money(customer) == 0
    with pytest.raises(AmountRefused):
        await credit(database, october, "An outage", request="1")
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_the_audit_names_what_was_taken_back_twice(database: Database) -> None:
    customer, event, october = await _october(database, 1000)
    await _correct(customer, event, -1_250_000)
    (line,) = [n for n, one in enumerate((await customer.invoices.document(october)).lines, 1) if one.net == 800]
    note, _ = await credit(database, october, "An outage", request="1", amounts={line: 600})
    assert note is not None
    async with unguarded(database) as session:
        await session.execute(update(invoice).where(invoice.c.id == note.id).values(net=700))
    details = {finding.what: finding.detail for finding in await audit_money(database)}
    assert details["more of an invoice was taken back than it charged"] == (
        f"{october.number}: 7.000000000000 were credited and 2.000000000000 corrected of 8.000000000000 USD"
    )


async def test_a_correction_gives_back_nothing_that_a_discount_gave_back(database: Database) -> None:
    """Neither from what is owed nor from what paid for another month."""
    customer, _, _ = await _october(database, 800)
    terms = parse_terms({"discounts": [{"basis_points": 5000}]})
    await Contracts(database, PriceCatalog(database)).put(customer.id, terms, "2026-11", by="ann")
    first, second = await customer.use("2026-11-05", EIGHT_DOLLARS, EIGHT_DOLLARS)
    november = await customer.invoice("2026-11")
    assert (november.net, await _money(customer)) == (800, -800)
    await _correct(customer, first, -5_000_000)
    await _correct(customer, second, -5_000_000)
    assert await _money(customer) == 0, "October stays paid"
    await customer.use("2026-12-05", EIGHT_DOLLARS)
    december = await customer.invoice("2026-12")
    assert december.net == 0
    assert await audit_money(database) == []

"""What a period's rating gives back: to the grants that paid, exactly and once, with the books and the documents
agreeing."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.accounts.statements import statement
from billing.invoices.accounting import funding
from billing.invoices.accounting.balance_returns import BalanceReturn
from billing.invoices.collection import pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.store import InvoiceRecord
from billing.ledger.wallet import OpenGrant, RefundRefused
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import parse_terms
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id, to_instant
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER

DOLLAR, CENT = 10**12, 10**10
US = msgspec.structs.replace(BUYER, country="US", vat_id="")
HALF = {"discounts": [{"basis_points": 5000}]}


async def _customer(database: Database, terms: dict[str, object]) -> Customer:
    customer = await Customer.make(database, buyer=US)
    await Contracts(database, PriceCatalog(database)).put(customer.id, parse_terms(terms), "2026-10", by="ann")
    return customer


async def _grant(customer: Customer, cents: int, kind: str = "paid", expires: str | None = None) -> UUID:
    expires_at = None if expires is None else to_instant(datetime.fromisoformat(expires).replace(tzinfo=UTC))
    return await Balances(customer.database).grant(
        customer.id, cents * CENT, "USD", kind=kind, grant_id=new_id(), expires_at=expires_at
    )


async def _grants(customer: Customer) -> dict[UUID, OpenGrant]:
    return {one.id: one for one in await Balances(customer.database).grants(customer.id)}


async def _said(customer: Customer, record: InvoiceRecord) -> tuple[int, ...]:
    document = await customer.invoices.document(record)
    assert document.returned is not msgspec.UNSET
    return tuple(int(value) for value in msgspec.structs.astuple(document.returned))


async def test_a_discount_returns_to_the_credit_that_paid(database: Database) -> None:
    customer = await _customer(database, HALF)
    paid = await _grant(customer, 1200)
    await customer.use("2026-10-03", Usage(output=7_930_000))  # 12.688
    october = await customer.invoice("2026-10")

    assert (october.net, october.prepaid, october.payable, october.state) == (634, 634, 0, "paid")
    assert await _said(customer, october) == (6344 * 10**9, 5656 * 10**9, 0)
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert (balance.prepaid, balance.receivable) == (5656 * 10**9, 0)
    assert (await _grants(customer))[paid].remaining == 5656 * 10**9
    assert abs(october.prepaid_carry_out) < CENT, "no money is where nobody can use it"
    assert "invoiced" not in await customer.accounts()
    lines = await statement(database, customer.id)
    (back,) = [line for line in lines if line.kind == "return"]
    assert (back.amount_pico, back.memo, back.period) == (6344 * 10**9, october.number, "2026-10")
    assert lines[-1].balance_pico == 5656 * 10**9
    carried = october.carry_out - october.prepaid_carry_out
    assert (lines[-1].carry_pico, carried) == (0, 0)
    assert await audit_money(database) == []

    await Balances(database).refund(customer.id, 5656 * 10**9, "USD")
    with pytest.raises(RefundRefused):
        await Balances(database).refund(customer.id, 1, "USD")
    assert await audit_money(database) == []


async def test_it_can_be_used_and_the_next_invoice_counts_it_once(database: Database) -> None:
    customer = await _customer(database, HALF)
    await _grant(customer, 1000)
    await customer.use("2026-10-03", Usage(output=5_000_000))  # 8.00
    assert (await customer.invoice("2026-10")).prepaid == 400
    await customer.use("2026-11-03", Usage(output=3_000_000))  # 4.80 of the 6.00 that are left
    november = await customer.invoice("2026-11")
    assert (november.net, november.prepaid, november.payable) == (240, 240, 0)
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert balance.prepaid == 360 * CENT
    assert await audit_money(database) == []


async def test_what_was_used_last_returns_first_with_its_expiry_and_kind(database: Database) -> None:
    customer = await _customer(database, HALF)
    given = await _grant(customer, 200, "promo")
    first = await _grant(customer, 300, expires="2027-01-01")
    last = await _grant(customer, 400, expires="2027-06-01")
    await customer.use("2026-10-03", Usage(output=5_000_000))  # 8.00: all of both, and 3.00 of the last
    october = await customer.invoice("2026-10")
    after = await _grants(customer)
    assert {one: after[one].remaining for one in (given, first, last)} == {
        given: 0,
        first: 100 * CENT,
        last: 400 * CENT,
    }
    assert await _said(customer, october) == (400 * CENT, 400 * CENT, 0)
    assert (october.net, october.prepaid, october.payable) == (200, 200, 0)
    assert await audit_money(database) == []


async def test_what_was_given_returns_as_given(database: Database) -> None:
    customer = await _customer(database, HALF)
    given = await _grant(customer, 1000, "promo")
    await customer.use("2026-10-03", Usage(output=5_000_000))
    october = await customer.invoice("2026-10")
    assert (october.net, october.carry_out) == (0, 0), "the credit line is of what it paid in the end"
    assert await _said(customer, october) == (400 * CENT, 0, 400 * CENT)
    assert (await _grants(customer))[given].remaining == 600 * CENT
    with pytest.raises(RefundRefused) as refused:
        await Balances(database).refund(customer.id, CENT, "USD")
    assert refused.value.refundable_pico == 0
    assert await audit_money(database) == []


async def test_what_returns_to_expired_credit_expires_as_if_it_had_never_been_taken(database: Database) -> None:
    customer = await _customer(database, HALF)
    await _grant(customer, 1000, expires="2026-11-01")
    await customer.use("2026-10-03", Usage(output=5_000_000))
    set_clock(database, "2026-11-01T06:00")
    await Balances(database).expire()
    await customer.invoice("2026-10")
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert balance.prepaid == 0
    kinds = [(line.kind, line.amount_pico) for line in await statement(database, customer.id)]
    assert sorted(kinds[2:]) == [("expiry", -400 * CENT), ("expiry", -200 * CENT), ("return", 400 * CENT)]
    assert await audit_money(database) == []


async def test_a_discount_frees_the_credit_line_of_who_pays_afterwards(database: Database) -> None:
    customer = await _customer(database, HALF)
    await customer.use("2026-10-03", Usage(output=5_000_000))
    october = await customer.invoice("2026-10")
    assert await _said(customer, october) == (400 * CENT, 0, 0)
    await pay(database, october, "bank 1")
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert (balance.receivable, balance.available) == (0, balance.credit_line)
    assert {"receivable", "invoiced"}.isdisjoint(await customer.accounts())
    assert await audit_money(database) == []


async def test_a_voided_invoice_leaves_the_money_and_the_next_one_says_the_same(database: Database) -> None:
    customer = await _customer(database, HALF)
    await _grant(customer, 100)
    await customer.use("2026-10-03", Usage(output=5_000_000))  # 1.00 from credit, 7.00 on the line
    before = await customer.invoice("2026-10")
    said = await _said(customer, before)
    assert (before.net, before.prepaid, before.payable) == (400, 100, 300)
    await void(database, before, "a mistake")
    await customer.use("2026-11-04", Usage(output=100_000))
    again = await customer.invoice("2026-10")
    assert (again.net, again.prepaid, again.payable) == (400, 100, 300)
    assert await _said(customer, again) == said == (400 * CENT, 0, 0)
    assert [line.kind for line in await statement(database, customer.id)].count("return") == 1
    assert await audit_money(database) == []


async def test_a_correction_after_closing_gives_back_what_was_paid_in_the_end(database: Database) -> None:
    customer = await _customer(database, HALF)
    paid = await _grant(customer, 1000)
    (event,) = await customer.use("2026-10-03", Usage(output=5_000_000))  # 8.00, of which 4.00 came back
    await customer.invoice("2026-10")
    catalog = PriceCatalog(database)
    await adjust(database, catalog, customer.id, event.id, {"output": -5_000_000}, reason="all of it")
    assert (await _grants(customer))[paid].remaining == 1000 * CENT
    assert await audit_money(database) == []
    await customer.use("2026-11-05", Usage(output=2_500_000))  # 4.00
    november = await customer.invoice("2026-11")
    assert november.payable == 0
    assert (await _grants(customer))[paid].remaining == 800 * CENT
    # of both months 2.00 were used in the end, and 4.00 are on the first invoice
    assert november.carry_out - november.prepaid_carry_out == 0
    assert await audit_money(database) == []


async def test_a_credit_note_beside_a_return_never_returns_more_than_was_paid(database: Database) -> None:
    customer = await _customer(database, HALF)
    await _grant(customer, 1000)
    await customer.use("2026-10-03", Usage(output=5_000_000))
    october = await customer.invoice("2026-10")
    await credit(database, october, "an outage", request="one")
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert balance.prepaid == 1000 * CENT
    assert await audit_money(database) == []


async def test_storage_and_a_minimum_are_set_off_before_anything_returns(database: Database) -> None:
    customer = await _customer(database, HALF | {"minimum": {"amount": "6"}})
    await _grant(customer, 1000)
    await customer.use("2026-10-03", Usage(output=5_000_000))  # 8.00 less 4.00, and 2.00 to the minimum
    october = await customer.invoice("2026-10")
    assert (october.net, october.prepaid, october.payable) == (600, 600, 0)
    assert await _said(customer, october) == (200 * CENT, 200 * CENT, 0)
    assert await audit_money(database) == []


async def test_credit_that_older_invoices_stranded_goes_back_with_the_next_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = await _customer(database, HALF)
    paid = await _grant(customer, 1200)
    await customer.use("2026-10-03", Usage(output=7_500_000))  # 12.00
    with monkeypatch.context() as before:  # as invoices were made before anything went back
        before.setattr(funding, "plan_return", lambda *_: BalanceReturn())
        october = await customer.invoice("2026-10")
    assert october.prepaid_carry_out == 600 * CENT
    assert (await _grants(customer))[paid].remaining == 0
    await customer.use("2026-11-03", Usage(output=1_250_000))  # 2.00, on the line
    november = await customer.invoice("2026-11")
    assert (november.net, november.prepaid, november.payable) == (100, 100, 0)
    assert november.prepaid_carry_out == 0
    assert (await _grants(customer))[paid].remaining == 500 * CENT
    assert await audit_money(database) == []

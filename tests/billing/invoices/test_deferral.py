"""Commitments are owed in service when they are invoiced, and earned when they pay for usage or have ended."""

from __future__ import annotations

from typing import Any

from billing.invoices.accounting.deferral import earn_lapsed_commitments
from billing.invoices.collection import pay, void
from billing.invoices.credit_notes import credit
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.invoices.test_commitments import US, committed, month, paid_outside, set_terms

DOLLAR = 10**12


async def _sums(customer: Customer) -> tuple[int, int, int]:
    """What is deferred, what was earned of usage and charges, and what of credit that was never used, in dollars."""
    assert await audit_money(customer.database) == []
    accounts = await customer.accounts()
    earned = accounts.get("revenue", 0) + accounts.get("charges", 0) + accounts.get("credited", 0)
    return accounts.get("deferred", 0) // DOLLAR, earned // DOLLAR, accounts.get("breakage", 0) // DOLLAR


async def _committed(database: Database, amount: str = "30", **more: Any) -> Customer:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed(amount, **more), "2026-09")
    return customer


async def test_a_commitment_is_deferred_earned_by_draws_and_the_rest_when_it_ends(database: Database) -> None:
    customer = await _committed(database)
    october = await month(customer, "2026-10")
    assert (october.payable, october.deferred_pico) == (3000, 25 * DOLLAR)
    await pay(database, october, "bank")
    assert await _sums(customer) == (25, 5, 0)
    await month(customer, "2026-11")
    assert await _sums(customer) == (20, 10, 0)
    assert await earn_lapsed_commitments(database) == 0, "it has not ended"
    await month(customer, "2026-12")
    assert await _sums(customer) == (15, 15, 0)
    assert [await earn_lapsed_commitments(database) for _ in range(2)] == [1, 0]
    assert await _sums(customer) == (0, 15, 15)


async def test_what_is_credited_is_owed_no_more(database: Database) -> None:
    customer = await _committed(database)
    october = await month(customer, "2026-10")
    document = await customer.invoices.document(october)
    asked = next(n for n, line in enumerate(document.lines, 1) if line.kind == "commitment" and line.net > 0)
    await credit(database, october, "a smaller commitment", request="1", amounts={asked: 1000})
    assert await _sums(customer) == (15, 5, 0)
    await credit(database, october, "the rest", request="2")
    assert await _sums(customer) == (0, 0, 0)


async def test_a_void_invoice_defers_nothing(database: Database) -> None:
    customer = await _committed(database)
    await void(database, await month(customer, "2026-10"), "wrong")
    assert (await _sums(customer))[0] == 0
    assert (await customer.invoice("2026-10")).deferred_pico == 25 * DOLLAR
    assert (await _sums(customer))[0] == 25


async def test_what_was_paid_outside_is_not_deferred(database: Database) -> None:
    customer = await _committed(database, "30", **paid_outside("30"))
    for period in ("2026-10", "2026-11", "2026-12"):
        assert (await month(customer, period)).deferred_pico == 0
    assert await earn_lapsed_commitments(database) == 0


async def test_usage_beyond_a_commitment_is_earned_as_it_is(database: Database) -> None:
    customer = await _committed(database, "7", last="2026-11")
    await month(customer, "2026-10")
    assert await _sums(customer) == (2, 5, 0)
    await month(customer, "2026-11")
    assert await _sums(customer) == (0, 10, 0)
    assert await earn_lapsed_commitments(database) == 0

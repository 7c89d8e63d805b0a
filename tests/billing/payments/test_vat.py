"""VAT on money that a provider collects: due when it is paid, where the seller takes it in advance."""

from __future__ import annotations

import msgspec
import pytest

from billing.accounts.balances import Balances
from billing.usage import Usage
from billing.verification.audit import audit_money
from fake_stripe.payments import complete_checkout
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer
from tests.billing.invoices.documents import BUYER
from tests.billing.payments.desk import PaymentDesk

DOLLAR = 10**12
ADVANCE = msgspec.structs.replace(USD, prepayment="advance")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def _paid(desk: PaymentDesk, customer: Customer, amount: int) -> tuple[int, int]:
    """A top-up that was paid on its page: what was asked for, and the credit."""
    await desk.connect(customer.id, card=None)
    made = await desk.top_ups.create(customer.id, "stripe", amount, "USD")
    await desk.work()
    sent = await desk.top_ups.get(customer.id, made.id)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    granted = await desk.top_ups.get(customer.id, made.id)
    assert granted.state == "granted"
    return granted.amount, granted.credit_pico


async def _available(desk: PaymentDesk, customer: Customer) -> int:
    balance = await Balances(desk.database).get(customer.id)
    assert balance is not None
    return balance.available - balance.credit_line


@pytest.mark.parametrize(("amount", "asked", "net"), [(11900, 11900, 10000), (100, 100, 84), (10_001, 10_001, 8404)])
async def test_a_top_up_buys_net_credit_and_pays_its_vat(
    database: Database, desk: PaymentDesk, amount: int, asked: int, net: int
) -> None:
    customer = await Customer.make(database, seller=ADVANCE, buyer=GERMAN)
    assert await _paid(desk, customer, amount) == (asked, net * DOLLAR // 100)
    assert await _available(desk, customer) == net * DOLLAR // 100
    (advance,) = [one for one in await customer.invoices.list(customer.id) if one.kind == "advance"]
    assert (advance.net, advance.gross, advance.state) == (net, asked, "paid")
    assert await audit_money(database) == []


async def test_a_refund_gives_the_vat_back_with_a_credit_note(database: Database, desk: PaymentDesk) -> None:
    customer = await Customer.make(database, seller=ADVANCE, buyer=GERMAN)
    await _paid(desk, customer, 11900)
    (top_up,) = await desk.top_ups.list(customer.id, limit=10)
    half = await desk.refunds.create(customer.id, top_up.id, 5950, "half of it")
    rest = await desk.refunds.create(customer.id, top_up.id, None, "the rest")
    assert (half.amount, rest.amount, await _available(desk, customer)) == (5950, 5950, 0)
    notes = [one for one in await customer.invoices.list(customer.id) if one.kind == "credit_note"]
    assert sorted((one.net, one.tax) for one in notes) == [(5000, 950), (5000, 950)]
    await desk.work()
    assert {one.state for one in [await desk.refunds.get(customer.id, made.id) for made in (half, rest)]} == {
        "succeeded"
    }
    assert await audit_money(database) == []


async def test_without_vat_in_advance_all_of_it_is_credit(database: Database, desk: PaymentDesk) -> None:
    later = msgspec.structs.replace(USD, prepayment="multi_purpose")
    customer = await Customer.make(database, seller=later, buyer=GERMAN)
    assert await _paid(desk, customer, 11900) == (11900, 119 * DOLLAR)


async def test_an_invoice_that_deducts_an_advance_is_pushed(database: Database, desk: PaymentDesk) -> None:
    customer = await Customer.make(database, seller=ADVANCE, buyer=GERMAN)
    await _paid(desk, customer, 1190)
    await customer.use("2026-09-21", Usage(uncached=100_000_000))  # 40 USD, of which 10 are paid
    invoice = await customer.invoice("2026-09")
    await desk.pusher.queue_finished("stripe")
    await desk.work()
    pushed = await desk.pusher.find(invoice.id)
    assert pushed is not None
    assert (pushed.state, pushed.problem) == ("pushed", "")
    (bill,) = desk.account.every("invoice")
    assert (invoice.gross, bill["total"]) == (4760, 3570)

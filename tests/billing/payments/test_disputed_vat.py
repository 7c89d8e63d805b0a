"""A dispute about credit whose VAT was due in advance: VAT of what was not used goes back with it, and comes again."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import func, select

from billing.accounts.balances import Balances
from billing.exports.account import account_statements
from billing.integrity.recorded_tables import PAYMENT_CUSTOMERS
from billing.payments.cash import CashBook
from billing.payments.customers import Customers
from billing.payments.disputes import Disputes
from billing.payments.provider import DisputeFact, MoneyIn
from billing.payments.recording import change_recorded
from billing.payments.top_ups import TopUps
from billing.tables.invoices import invoice
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER

CENT = 10**10
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")
FACT = DisputeFact(
    id="du_1", payment="pi_1", amount=11900, currency="USD", reason="fraud", withdrawn=True, outcome="open"
)


async def _paid(database: Database) -> Customer:
    """A tenant that topped up 100 and 19 of VAT by a card."""
    customer = await Customer.make(database, seller=msgspec.structs.replace(USD, prepayment="advance"), buyer=GERMAN)
    set_clock(database, "2026-10-03")
    await Customers(database).connect(customer.id, "stripe")
    made = await TopUps(database).create(customer.id, "stripe", 11900, "USD")
    async with database.transaction() as session:
        values = {"provider_id": "cus_1", "updated_at": await database.now_in(session)}
        await change_recorded(session, PAYMENT_CUSTOMERS, "payment_customer.made", customer.id, values)
    money = MoneyIn(provider="stripe", id="pi_1", amount=11900, currency="USD", at=await database.now())
    await CashBook(database).take_top_up(money, made.id, "cus_1")
    return customer


async def _vat(database: Database, customer: Customer) -> tuple[int, int]:
    """VAT of advances and of their credit notes, in minor units."""
    sums = select(invoice.c.kind, func.sum(invoice.c.tax)).where(invoice.c.tenant_id == customer.id)
    async with database.reading() as session:
        found = {kind: int(tax) for kind, tax in await session.execute(sums.group_by(invoice.c.kind))}
    return found.get("advance", 0), found.get("credit_note", 0)


@pytest.mark.both_databases
async def test_unused_credit_goes_with_its_vat_and_comes_back_with_it(database: Database) -> None:
    customer = await _paid(database)
    await Disputes(database).follow("stripe", FACT)
    (dispute,) = await Disputes(database).list(limit=1)
    assert dispute.moved == 11900, "the whole payment"
    assert await _vat(database, customer) == (1900, 1900)
    assert (await Balances(database).get_or_empty(customer.id)).prepaid == 0
    assert (await customer.accounts()).get("tax", 0) == 0
    assert await audit_money(database) == []
    won = msgspec.structs.replace(FACT, outcome="won")
    await Disputes(database).follow("stripe", won)
    await Disputes(database).follow("stripe", won)
    assert await _vat(database, customer) == (3800, 1900)
    assert (await Balances(database).get_or_empty(customer.id)).prepaid == 10000 * CENT
    assert (await customer.accounts())["tax"] == 1900 * CENT
    assert await audit_money(database) == []


@pytest.mark.both_databases
async def test_the_vat_of_what_was_used_stays_due(database: Database) -> None:
    customer = await _paid(database)
    await customer.use("2026-10-04", Usage(output=25_000_000))  # 40 of the 100
    await Disputes(database).follow("stripe", FACT)
    (dispute,) = await Disputes(database).list(limit=1)
    assert dispute.moved == 10000 + 1140, "the credit, and the VAT of the 60 that were left"
    assert await _vat(database, customer) == (1900, 1140)
    balance = await Balances(database).get_or_empty(customer.id)
    assert (balance.prepaid, balance.receivable) == (0, 4000 * CENT)
    assert await audit_money(database) == []
    sent = await customer.invoice("2026-10")
    assert await audit_money(database) == []
    assert sent.state != "draft"
    await Disputes(database).follow("stripe", msgspec.structs.replace(FACT, outcome="won"))
    assert await _vat(database, customer) == (1900 + 1140, 1140)
    assert await audit_money(database) == []
    (statement,) = await account_statements(database, customer.id, "2026-11")
    assert sum(line.amount_pico for line in statement.lines if line.kind == "dispute") >= 4000 * CENT


async def test_a_dispute_after_the_invoice_leaves_its_deductions(database: Database) -> None:
    customer = await _paid(database)
    await customer.use("2026-10-04", Usage(output=25_000_000))
    await customer.invoice("2026-10")
    await Disputes(database).follow("stripe", FACT)
    assert await _vat(database, customer) == (1900, 1140)
    assert await audit_money(database) == []

"""What is not collected is a loss in the books, and what is credited whole is not paid."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from billing.invoices.collection import mark_uncollectible, pay, relieve_vat, void
from billing.invoices.credit_notes import credit
from billing.invoices.errors import DocumentRefused, WrongState
from billing.invoices.store import InvoiceRecord
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from storage.free_text import InvalidText
from tests.billing.invoices.customers import Customer
from tests.billing.invoices.documents import BUYER

CENT = 10**10
DOMESTIC = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def _invoiced(database: Database) -> tuple[Customer, InvoiceRecord]:
    """16.01 dollars and 3.04 of VAT."""
    customer = await Customer.make(database, buyer=DOMESTIC)
    await customer.use("2026-10-03", Usage(output=10_006_250))
    return customer, await customer.invoice("2026-10")


def _vat(invoice: InvoiceRecord, left: int) -> int:
    return int(Fraction(invoice.tax * left, invoice.gross) + Fraction(1, 2))


async def _losses(customer: Customer) -> dict[str, int]:
    """Cents on the accounts of losses that are not 0: credits less debits."""
    accounts = await customer.accounts()
    return {name: accounts[name] // CENT for name in ("bad_debt", "written_off", "tax_relief") if name in accounts}


@pytest.mark.both_databases
async def test_a_loss_is_booked_and_a_later_payment_takes_it_back(database: Database) -> None:
    customer, sent = await _invoiced(database)
    assert (sent.net, sent.tax, sent.gross) == (1601, 304, 1905)
    before = await customer.accounts()
    await pay(database, sent, "bank 1", 500)
    with pytest.raises(InvalidText, match="reason"):
        await mark_uncollectible(database, sent, "")
    lost = await mark_uncollectible(database, sent, "insolvent since 3 November")
    assert (lost.state, lost.left) == ("uncollectible", 1405)
    assert await _losses(customer) == {"bad_debt": -1405, "written_off": 1405}
    assert (await customer.accounts())["tax"] == before["tax"]
    with pytest.raises(WrongState, match="already"):
        await mark_uncollectible(database, sent, "again")
    assert await audit_money(database) == []
    await relieve_vat(database, sent, "certificate of 5 December")
    relieved = _vat(sent, 1405)
    assert await _losses(customer) == {"bad_debt": relieved - 1405, "written_off": 1405, "tax_relief": -relieved}
    with pytest.raises(DocumentRefused, match="relieved"):
        await relieve_vat(database, sent, "again")
    assert await audit_money(database) == []
    partly = await pay(database, sent, "bank 2", 333)
    assert (partly.state, partly.left) == ("uncollectible", 1072)
    relieved = _vat(sent, 1072)
    assert await _losses(customer) == {"bad_debt": relieved - 1072, "written_off": 1072, "tax_relief": -relieved}
    assert await audit_money(database) == []
    assert (await pay(database, sent, "bank 3")).state == "paid"
    assert await _losses(customer) == {}
    assert await audit_money(database) == []


async def test_a_credit_note_takes_a_loss_back_too(database: Database) -> None:
    customer, sent = await _invoiced(database)
    with pytest.raises(WrongState):
        await relieve_vat(database, sent, "not lost yet")
    await mark_uncollectible(database, sent, "insolvent")
    await relieve_vat(database, sent, "certificate")
    await credit(database, sent, "an outage", request="1")
    after = await customer.invoices.of_tenant(customer.id, sent.id)
    assert (after.state, after.left) == ("credited", 0)
    assert await _losses(customer) == {}
    assert await audit_money(database) == []


async def test_an_invoice_that_is_credited_whole_is_not_paid(database: Database) -> None:
    customer, sent = await _invoiced(database)
    await credit(database, sent, "a part", request="1", amounts={1: 600})
    assert (await customer.invoices.of_tenant(customer.id, sent.id)).state == "partially_paid"
    await credit(database, sent, "the rest", request="2")
    credited = await customer.invoices.of_tenant(customer.id, sent.id)
    assert (credited.state, credited.left, credited.credited) == ("credited", 0, 1905)
    assert await customer.invoices.list(customer.id, state="credited") == [credited]
    with pytest.raises(WrongState, match="credited"):
        await pay(database, sent, "bank", 1)
    assert await audit_money(database) == []


async def test_a_paid_invoice_that_is_credited_whole_is_credited(database: Database) -> None:
    customer, sent = await _invoiced(database)
    await pay(database, sent, "bank")
    await credit(database, sent, "a part", request="1", amounts={1: 600})
    assert (await customer.invoices.of_tenant(customer.id, sent.id)).state == "paid"
    await credit(database, sent, "the rest", request="2")
    assert (await customer.invoices.of_tenant(customer.id, sent.id)).state == "credited"
    assert await audit_money(database) == []


async def test_who_voids_an_invoice_says_why(database: Database) -> None:
    _, sent = await _invoiced(database)
    with pytest.raises(InvalidText, match="reason"):
        await void(database, sent, "")
    assert (await void(database, sent, "the wrong customer")).state == "void"

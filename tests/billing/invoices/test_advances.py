"""VAT on prepaid credit: due when it is paid (advance) or when it is used (multi-purpose), and never twice."""

from __future__ import annotations

from datetime import UTC, date, datetime

import msgspec
import pytest

from billing.invoices.advances import credit_for, quote, refunded_vat, top_ups
from billing.invoices.collection import void
from billing.invoices.credit_notes import credit
from billing.invoices.document import Document, advance_tax_of, deductions_of, drawn_of
from billing.invoices.errors import DocumentRefused, WrongState
from billing.invoices.finalizing import finalize
from billing.invoices.parties.parties import InvalidParty, Seller
from billing.invoices.parties.store import Parties
from billing.invoices.registers.exchange_rates import PublishedRates, record_rates
from billing.invoices.rendering.pdf import to_pdf
from billing.invoices.rendering.presentation import shown
from billing.invoices.store import InvoiceRecord
from billing.ledger.wallet import RefundRefused
from billing.money import InvalidMoney
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import parse_terms
from billing.usage import Usage
from billing.verification.audit import audit_money
from billing.verification.one_invoice import check_invoice, predecessor
from storage.database.base import new_id, to_instant
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.invoices.test_registers import ScriptedRegister

CENT = 10**10
DOLLAR = 10**12
ADVANCE = msgspec.structs.replace(USD, prepayment="advance")
LATER = msgspec.structs.replace(USD, prepayment="multi_purpose")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")
HUNDRED = Usage(uncached=250_000_000)
"""Usage of 100 USD."""
FORTY = Usage(uncached=100_000_000)


async def _documents(customer: Customer, kind: str) -> list[tuple[InvoiceRecord, Document]]:
    records = [one for one in await customer.invoices.list(customer.id) if one.kind == kind]
    return [(one, await customer.invoices.document(one)) for one in records]


async def _is_right(customer: Customer) -> None:
    assert await audit_money(customer.database) == []
    for record in await customer.invoices.list(customer.id):
        content = await customer.invoices.content(record)
        before = await predecessor(customer.database, record)
        checks = await check_invoice(customer.database, record, content, before)
        assert [check for check in checks if check.difference] == []


async def _advance(database: Database, pico: int = 100 * DOLLAR, **buyer: str) -> Customer:
    """A customer who paid for credit on 20 September, with VAT in advance."""
    customer = await Customer.make(
        database, seller=ADVANCE, buyer=msgspec.structs.replace(GERMAN, **buyer) if buyer else GERMAN
    )
    set_clock(database, "2026-09-20")
    await top_ups(database).grant(customer.id, pico, "USD", reason="bank 1")
    return customer


async def test_a_payment_in_advance_is_invoiced_with_its_vat(database: Database) -> None:
    customer = await _advance(database)
    ((record, document),) = await _documents(customer, "advance")
    assert (record.state, record.net, record.tax, record.gross, record.paid) == ("paid", 10_000, 1900, 11_900, 11_900)
    assert (record.number, document.issued) == ("INV-2026-000001", "2026-09-20")
    assert [(line.kind, line.category, line.rate) for line in document.lines] == [("advance", "S", 1900)]
    assert await customer.accounts() == {"clearing": -119 * DOLLAR, "prepaid": 100 * DOLLAR, "tax": 19 * DOLLAR}
    await _is_right(customer)


async def test_the_invoice_deducts_net_and_vat_of_the_advance(database: Database) -> None:
    customer = await _advance(database)
    await customer.use("2026-10-03", FORTY)
    first = await customer.invoice("2026-10")
    assert (first.net, first.tax, first.prepaid, first.advance_tax, first.payable) == (4000, 760, 4000, 760, 0)
    assert first.state == "paid"
    await customer.use("2026-11-03", FORTY, FORTY)
    second = await customer.invoice("2026-11")
    assert (second.net, second.tax, second.prepaid, second.advance_tax) == (8000, 1520, 6000, 1140)
    assert second.payable == 2000 + 380
    (deduction,) = deductions_of(await customer.invoices.document(second))
    assert (deduction.number, deduction.net, deduction.tax, deduction.rate) == ("INV-2026-000001", 6000, 1140, 1900)
    accounts = await customer.accounts()
    assert accounts["tax"] == (19 + 3.8) * DOLLAR
    await _is_right(customer)


async def test_a_raised_rate_asks_for_the_difference_and_a_lowered_one_carries_it(database: Database) -> None:
    customer = await _advance(database)
    parties = Parties(database)
    await parties.set_seller(
        msgspec.structs.replace(ADVANCE, rates={"DE": 2100}), valid_from=date(2026, 10, 1), reason="raised"
    )
    await customer.use("2026-10-03", FORTY)
    raised = await customer.invoice("2026-10")
    assert (raised.tax, raised.advance_tax, drawn_of(await customer.invoices.document(raised))) == (840, 760 + 13, 67)
    assert raised.payable == 0, "the difference of 80 is paid by 67 of credit and their VAT of 13"
    await parties.set_seller(
        msgspec.structs.replace(ADVANCE, rates={"DE": 1600}), valid_from=date(2026, 11, 1), reason="lowered"
    )
    await customer.use("2026-11-03", FORTY)
    lowered = await customer.invoice("2026-11")
    assert (lowered.tax, lowered.advance_tax, lowered.payable) == (640, 640, 0)
    await customer.use("2026-12-03", FORTY)
    last = await customer.invoice("2026-12")
    assert last.prepaid == 1933
    assert lowered.advance_tax + last.advance_tax + raised.advance_tax == 1900, "all VAT of the advance is deducted"
    await _is_right(customer)


async def test_a_refund_credits_net_and_vat(database: Database) -> None:
    customer = await _advance(database)
    balances = top_ups(database)
    await customer.use("2026-10-03", FORTY)
    with pytest.raises(RefundRefused):
        await balances.refund(customer.id, 61 * DOLLAR, "USD")
    with pytest.raises(InvalidMoney):
        await balances.refund(customer.id, CENT + 1, "USD")
    identity = new_id()
    for _ in range(2):  # repeated under its id it counts once
        await balances.refund(customer.id, 30 * DOLLAR, "USD", refund_id=identity)
    ((note, document),) = await _documents(customer, "credit_note")
    assert (note.net, note.tax, document.corrects) == (3000, 570, "INV-2026-000001")
    assert await refunded_vat(database, customer.id, identity) == 570 * CENT
    await balances.refund(customer.id, 30 * DOLLAR, "USD")
    ((advance, _),) = await _documents(customer, "advance")
    assert (advance.state, advance.credited) == ("paid", 7140)
    sent = await customer.invoice("2026-10")
    assert (sent.payable, sent.advance_tax) == (0, 760)
    accounts = await customer.accounts()
    assert accounts == {"clearing": -47.6 * DOLLAR, "revenue": 40 * DOLLAR, "tax": 7.6 * DOLLAR}
    await _is_right(customer)


async def test_all_of_an_unused_advance_refunded_is_credited_whole(database: Database) -> None:
    customer = await _advance(database, 33 * CENT)
    for cents in (10, 11, 12):
        await top_ups(database).refund(customer.id, cents * CENT, "USD")
    ((advance, _),) = await _documents(customer, "advance")
    assert (advance.tax, advance.state, advance.credited) == (6, "credited", advance.gross)
    assert await customer.accounts() == {}
    await _is_right(customer)


async def test_vat_of_expired_credit_stays(database: Database) -> None:
    customer = await Customer.make(database, seller=ADVANCE, buyer=GERMAN)
    set_clock(database, "2026-09-20")
    expires = to_instant(datetime(2026, 10, 20, tzinfo=UTC))
    await top_ups(database).grant(customer.id, 100 * DOLLAR, "USD", expires_at=expires)
    await customer.use("2026-10-03", FORTY)
    set_clock(database, "2026-10-21")
    assert await top_ups(database).expire() == 1
    sent = await customer.invoice("2026-10")
    assert (sent.advance_tax, sent.payable) == (760, 0)
    accounts = await customer.accounts()
    assert (accounts["breakage"], accounts["tax"]) == (60 * DOLLAR, 19 * DOLLAR)
    await _is_right(customer)


async def test_reverse_charge_in_both_treatments(database: Database) -> None:
    customer = await _advance(database, country="FR", vat_id="FR40303265045")
    ((record, document),) = await _documents(customer, "advance")
    assert (record.tax, document.taxes[0].category) == (0, "AE")
    assert document.taxes[0].reason.startswith("Reverse charge")
    await customer.use("2026-10-03", FORTY)
    sent = await customer.invoice("2026-10")
    assert (sent.tax, sent.advance_tax, sent.payable) == (0, 0, 0)
    await Parties(database).set_seller(LATER, reason="the other treatment")
    await top_ups(database).grant(customer.id, 10 * DOLLAR, "USD")
    assert len(await _documents(customer, "advance")) == 1
    await customer.use("2026-11-03", FORTY)
    later = await customer.invoice("2026-11")
    assert (later.tax, later.payable, later.state) == (0, 0, "paid")
    await _is_right(customer)


async def test_vat_at_use_is_paid_from_the_credit(database: Database) -> None:
    customer = await Customer.make(database, seller=LATER, buyer=GERMAN)
    await top_ups(database).grant(customer.id, 100 * DOLLAR, "USD")
    assert await _documents(customer, "advance") == []
    await customer.use("2026-10-03", FORTY)
    first = await customer.invoice("2026-10")
    assert (first.tax, first.prepaid, first.drawn, first.payable, first.state) == (760, 4000, 760, 0, "paid")
    balance = await top_ups(database).get(customer.id)
    assert balance is not None
    assert balance.available - balance.credit_line == 52.4 * DOLLAR
    await customer.use("2026-11-03", FORTY, FORTY)
    second = await customer.invoice("2026-11")
    assert (second.prepaid, second.drawn, second.payable) == (5240, 0, 8000 + 1520 - 5240)
    await _is_right(customer)


async def test_credit_without_vat_and_in_advance_beside_each_other(database: Database) -> None:
    """What was paid before the seller's choice stays as it was: no money is taxed twice or not at all."""
    customer = await Customer.make(database, 40 * DOLLAR, seller=USD, buyer=GERMAN)
    await Parties(database).set_seller(ADVANCE, reason="from now on in advance")
    await top_ups(database).grant(customer.id, 100 * DOLLAR, "USD")
    await customer.use("2026-10-03", HUNDRED)
    sent = await customer.invoice("2026-10")
    assert (sent.tax, sent.prepaid) == (1900, 10_000)
    assert sent.advance_tax == 1140 + round(drawn_of(await customer.invoices.document(sent)) * 0.19)
    assert sent.payable == 0
    accounts = await customer.accounts()
    ((_, advance),) = await _documents(customer, "advance")
    undeducted = (advance.tax - sent.advance_tax) * CENT
    assert accounts["tax"] == 19 * DOLLAR + undeducted
    await _is_right(customer)


@pytest.mark.parametrize("seller", [ADVANCE, LATER])
async def test_a_minimum_is_paid_from_credit_first(database: Database, seller: Seller) -> None:
    customer = await Customer.make(database, seller=seller, buyer=GERMAN)
    await top_ups(database).grant(customer.id, 200 * DOLLAR, "USD")
    terms = parse_terms({"minimum": {"amount": "100"}})
    await Contracts(database, PriceCatalog(database)).put(customer.id, terms, "2026-10", "ann")
    await customer.use("2026-10-03", FORTY)
    sent = await customer.invoice("2026-10")
    assert (sent.net, sent.tax, sent.payable, sent.state) == (10_000, 1900, 0, "paid")
    assert sent.drawn + sent.advance_tax == 6000 + 1900
    await _is_right(customer)


async def test_a_void_invoice_gives_back_what_it_took(database: Database) -> None:
    customer = await Customer.make(database, seller=LATER, buyer=GERMAN)
    await top_ups(database).grant(customer.id, 42 * DOLLAR, "USD")
    await customer.use("2026-10-03", FORTY)
    before = await customer.accounts()
    sent = await customer.invoice("2026-10")
    assert (sent.drawn, sent.payable) == (200, 560)
    await void(database, sent, "wrong address")
    assert await customer.accounts() == before
    again = await customer.invoice("2026-10")
    assert (again.drawn, again.payable) == (200, 560)
    await _is_right(customer)


async def test_a_draft_stands_while_the_credit_changes(database: Database) -> None:
    customer = await Customer.make(database, seller=LATER, buyer=GERMAN)
    await top_ups(database).grant(customer.id, 41 * DOLLAR, "USD")
    await customer.use("2026-10-03", FORTY)
    await customer.close("2026-10")
    assert (await customer.draft("2026-10")).drawn == 100
    await top_ups(database).grant(customer.id, 10 * DOLLAR, "USD")
    sent = await finalize(database, PriceCatalog(database), customer.id, "2026-10")
    assert (sent.drawn, sent.payable) == (760, 0)
    await _is_right(customer)


async def test_an_advance_is_neither_voided_nor_credited_by_hand(database: Database) -> None:
    customer = await _advance(database)
    ((record, _),) = await _documents(customer, "advance")
    with pytest.raises(DocumentRefused):
        await void(database, record, "no")
    with pytest.raises(WrongState):
        await credit(database, record, "no", request="1")


async def test_a_credit_note_for_an_invoice_that_an_advance_paid(database: Database) -> None:
    """What it gives back is credit without VAT, which is taxed when it is used."""
    customer = await _advance(database)
    await customer.use("2026-10-03", HUNDRED)
    sent = await customer.invoice("2026-10")
    await credit(database, sent, "an outage", request="1")
    accounts = await customer.accounts()
    assert accounts.get("tax", 0) == 0
    assert accounts["prepaid"] == 119 * DOLLAR
    await customer.use("2026-11-03", HUNDRED)
    again = await customer.invoice("2026-11")
    assert (again.tax, again.advance_tax, again.drawn, again.payable) == (1900, 0, 1900, 0)
    assert (await customer.accounts())["tax"] == 19 * DOLLAR
    await _is_right(customer)


async def test_another_seller_cannot_take_over_credit_with_vat(database: Database) -> None:
    """It did not take the VAT, and could not deduct it."""
    customer = await _advance(database)
    parties = Parties(database)
    await parties.set_seller(msgspec.structs.replace(ADVANCE, id="other"))
    moved = msgspec.structs.replace(GERMAN, seller="other")
    with pytest.raises(InvalidParty, match="refund it first"):
        await parties.set_buyer(customer.id, moved)
    await top_ups(database).refund(customer.id, 100 * DOLLAR, "USD")
    await parties.set_buyer(customer.id, moved)
    await _is_right(customer)


async def test_documents_of_advances_as_pdf(database: Database) -> None:
    customer = await _advance(database)
    await record_rates(database, ScriptedRegister(PublishedRates("2026-10-30", {"USD": "1.25"})))
    await customer.use("2026-10-03", FORTY)
    await customer.invoice("2026-10")
    await top_ups(database).refund(customer.id, 10 * DOLLAR, "USD")
    words = {}
    for record in await customer.invoices.list(customer.id):
        document, settled = await customer.invoices.document(record), await customer.invoices.settlements(record)
        assert to_pdf(document, record.state, "", settled).startswith(b"%PDF")
        words[record.kind] = str(shown(document, record.state, "", settled))
    assert "Advance-payment invoice" in words["advance"]
    assert "VAT 19 % of advance-payment invoice INV-2026-000001 of 20 September 2026" in words["invoice"]
    assert "VAT in EUR, at 0.8 EUR for 1 USD" in words["invoice"]


async def test_what_credit_costs(database: Database) -> None:
    customer = await _advance(database)
    asked = await quote(database, customer.id, 10_000, "USD")
    assert (asked.net, asked.tax, asked.gross, asked.tax_in_advance) == (10_000, 1900, 11_900, True)
    for gross in range(1, 400):
        bought = await credit_for(database, customer.id, gross, "USD")
        assert gross - 1 <= bought.gross <= gross
    with pytest.raises(InvalidMoney):
        await top_ups(database).grant(customer.id, CENT // 2, "USD")
    assert advance_tax_of((await _documents(customer, "advance"))[0][1]) == 0

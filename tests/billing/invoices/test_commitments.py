"""Commitments on real invoices: what pays was paid for, whatever becomes of the invoice that asked for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, update

from billing.accounts.balances import Balances
from billing.integrity.row_seals import seal_rows
from billing.invoices.collection import mark_uncollectible, pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.errors import AmountRefused, PeriodNotClosed
from billing.invoices.store import InvoiceRecord
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import ContractTerms, Discount, InvalidTerms, parse_terms
from billing.tables.invoices import invoice_line
from billing.tables.prices import contract_terms
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.verification.test_alterations import unguarded

US = msgspec.structs.replace(BUYER, country="US", vat_id="")
FIVE_DOLLARS = Usage(output=3_125_000)


def committed(amount: str, first: str = "2026-10", last: str = "2026-12", **more: Any) -> dict[str, Any]:
    """Terms with a commitment alone."""
    return {"commitment": {"amount": amount, "first": first, "last": last, **more}}


def paid_outside(amount: str, reference: str = "bank 4711") -> dict[str, Any]:
    """What a commitment says of money that came in another way than by an invoice."""
    return {
        "invoiced": False,
        "payments": [{"amount": amount, "reference": reference, "reason": "before the contract"}],
    }


async def set_terms(customer: Customer, terms: dict[str, Any], period: str) -> None:
    contracts = Contracts(customer.database, PriceCatalog(customer.database))
    await contracts.put(customer.id, parse_terms(terms), period, by="ann")


async def month(customer: Customer, period: str, usage: Usage | None = FIVE_DOLLARS) -> InvoiceRecord:
    """Use something in a month, and send its invoice."""
    if usage is not None:
        await customer.use(f"{period}-05", usage)
    return await customer.invoice(period)


async def commitment_lines(customer: Customer, record: InvoiceRecord) -> list[int]:
    """What an invoice asks for a commitment, and what that pays, in minor units."""
    document = await customer.invoices.document(record)
    return [line.net for line in document.lines if line.kind == "commitment"]


async def unfunded(database: Database) -> list[str]:
    """What the audit says of commitments that pay without being funded; nothing else is wrong."""
    findings = await audit_money(database)
    assert {finding.what for finding in findings} <= {"a commitment pays without being funded"}, findings
    return [finding.detail for finding in findings]


@pytest.mark.slow
async def test_a_commitment_begins_with_the_terms_that_set_it(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    set_clock(database, "2026-11-01")
    with pytest.raises(InvalidTerms, match=r"commitment.first: 2026-10"):
        await set_terms(customer, committed("30"), "2026-11")
    set_clock(database, "2026-09-15")
    await set_terms(customer, committed("30"), "2026-09")  # it may begin later than the terms
    assert await commitment_lines(customer, await month(customer, "2026-09")) == []
    assert await commitment_lines(customer, await month(customer, "2026-10")) == [3000, -500]
    assert await unfunded(database) == []


async def test_what_is_credited_pays_no_longer(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("30"), "2026-10")
    october = await month(customer, "2026-10")
    assert await commitment_lines(customer, october) == [3000, -500]
    await credit(database, october, "The contract ends", request="1")
    assert await commitment_lines(customer, await month(customer, "2026-11")) == []
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_what_is_written_off_pays_no_longer(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("30"), "2026-10")
    october = await month(customer, "2026-10")
    await mark_uncollectible(database, october, "insolvent")
    assert await commitment_lines(customer, await month(customer, "2026-11")) == []
    assert await unfunded(database) == [], "what it paid before was asked for"


@pytest.mark.slow
async def test_raising_it_invoices_the_difference(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("8"), "2026-10")
    assert await commitment_lines(customer, await month(customer, "2026-10")) == [800, -500]
    with pytest.raises(InvalidTerms, match=r"commitment.amount: .*8"):
        await set_terms(customer, committed("7"), "2026-11")
    await set_terms(customer, committed("12", last="2027-01"), "2026-11")
    assert await commitment_lines(customer, await month(customer, "2026-11")) == [400, -500]
    assert await commitment_lines(customer, await month(customer, "2026-12")) == [-200]
    assert await commitment_lines(customer, await month(customer, "2027-01")) == []
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_months_in_which_it_is_not_in_force_draw_nothing(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("30"), "2026-10")
    await set_terms(customer, {}, "2026-11")
    assert await commitment_lines(customer, await month(customer, "2026-10")) == [3000, -500]
    assert await commitment_lines(customer, await month(customer, "2026-11")) == []
    with pytest.raises(InvalidTerms, match=r"commitment.first"):
        await set_terms(customer, committed("30"), "2026-12")
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_a_payment_in_another_way_funds_it_and_stays(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("30", invoiced=False), "2026-10")
    assert await commitment_lines(customer, await month(customer, "2026-10")) == [], "nobody has paid anything"
    await set_terms(customer, committed("30", **paid_outside("7")), "2026-11")
    assert await commitment_lines(customer, await month(customer, "2026-11")) == [-500]
    for missing in (committed("30", invoiced=False), committed("30", **paid_outside("8")), committed("30")):
        with pytest.raises(InvalidTerms, match=r"commitment.payments: the payment 'bank 4711' was recorded"):
            await set_terms(customer, missing, "2026-12")
    await set_terms(customer, committed("30", **paid_outside("7") | {"invoiced": True}), "2026-12")
    assert await commitment_lines(customer, await month(customer, "2026-12")) == [2300, -500]
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_it_is_not_paid_twice(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("30"), "2026-10")
    await month(customer, "2026-10")
    for amount, problem in (("30", "30.00 of 30.00 is invoiced"), ("0.01", "30.00 of 30.00 is invoiced")):
        with pytest.raises(InvalidTerms, match=f"commitment.payments: .*{problem}"):
            await set_terms(customer, committed("30", **paid_outside(amount)), "2026-11")
    await set_terms(customer, committed("40", **paid_outside("10")), "2026-11")
    assert await commitment_lines(customer, await month(customer, "2026-11", Usage(output=25_000_000))) == [-3500]
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_a_credit_note_gives_back_nothing_that_was_drawn(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("30"), "2026-10")
    october = await month(customer, "2026-10")
    await month(customer, "2026-11")
    (asked,) = [n for n, line in enumerate((await customer.invoices.document(october)).lines, 1) if line.net == 3000]
    for amounts in ({asked: 2001}, {asked: None}, None):  # the whole invoice gives back 25.00, and 20.00 is left
        with pytest.raises(AmountRefused, match=r"only 20.00 USD of the commitment for 2026-10 to 2026-12"):
            await credit(database, october, "Too much", request=str(amounts), amounts=amounts)
    await credit(database, october, "What is left", request="rest", amounts={asked: 2000})
    assert await commitment_lines(customer, await month(customer, "2026-12")) == []
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_what_a_credit_note_takes_back_of_its_payments_can_be_drawn_again(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("8"), "2026-10")
    await month(customer, "2026-10", None)
    november = await month(customer, "2026-11")
    assert await commitment_lines(customer, november) == [-500]
    await credit(database, november, "An outage: the whole month", request="1")
    assert await commitment_lines(customer, await month(customer, "2026-12", Usage(output=6_250_000))) == [-800]
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_a_void_invoice_funds_nothing_until_it_is_sent_again(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("8"), "2026-10")
    october = await month(customer, "2026-10", None)
    await set_terms(customer, committed("12"), "2026-11")
    november = await month(customer, "2026-11", Usage(output=6_250_000))
    assert await commitment_lines(customer, november) == [400, -1000]
    await void(database, october, "by mistake")
    assert await unfunded(database) == [f"{november.number}: 6.000000000000 USD by the commitment of 2026-10"]
    await customer.use("2026-12-05", FIVE_DOLLARS)
    with pytest.raises(PeriodNotClosed, match="the commitment of 2026-10 is not invoiced yet"):
        await customer.invoice("2026-12")
    assert await commitment_lines(customer, await customer.invoice("2026-10")) == [800]
    assert await commitment_lines(customer, await customer.invoice("2026-12")) == [-200]
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_what_is_written_off_funds_it_again_once_it_is_paid(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("12"), "2026-10")
    october = await month(customer, "2026-10")
    await mark_uncollectible(database, october, "insolvent")
    assert await commitment_lines(customer, await month(customer, "2026-11")) == []
    await pay(database, october, "bank 1")
    assert await commitment_lines(customer, await month(customer, "2026-12", Usage(output=6_250_000))) == [-700]
    assert await unfunded(database) == []


@pytest.mark.slow
async def test_the_audit_names_what_terms_alone_paid(database: Database) -> None:
    """As it was before what a commitment pays followed from what was funded."""
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, committed("8"), "2026-10")
    october = await month(customer, "2026-10")
    async with unguarded(database) as session:
        asked = (invoice_line.c.kind == "commitment") & (invoice_line.c.exact_pico > 0)
        await session.execute(update(invoice_line).where(asked).values(exact_pico=3 * 10**12))
    details = {finding.what: finding.detail for finding in await audit_money(database)}
    assert details["a commitment pays without being funded"] == (
        f"{october.number}: 2.000000000000 USD by the commitment of 2026-10"
    )
    async with unguarded(database) as session:
        await session.execute(update(contract_terms).values(body="{}"))
    details = {finding.what: finding.detail for finding in await audit_money(database)}
    assert details["a commitment pays without being funded"] == (
        f"{october.number}: no terms of 2026-10 have a commitment"
    )


async def test_discounts_take_all_and_no_more(database: Database) -> None:
    customer = await Customer.make(database, 10**13, buyer=US)
    both = ContractTerms(discounts=(Discount(basis_points=6000), Discount(basis_points=7000)))
    contracts = Contracts(database, PriceCatalog(database))
    with pytest.raises(InvalidTerms, match=r"discounts\[1\].basis_points: .* add up to 13000"):
        await contracts.put(customer.id, both, "2026-10", by="ann")
    async with unguarded(database) as session:  # as they could be set before that was refused
        body = msgspec.json.encode(both).decode()
        row = {"tenant_id": customer.id, "from_period": "2026-10", "author": "ann", "reason": "", "created_at": 1}
        await session.execute(insert(contract_terms).values(row | {"body": body}))
        await seal_rows(session, contract_terms, contract_terms.c.tenant_id == customer.id)
    await customer.use("2026-10-05", Usage(output=550_000))  # 0.88
    october = await customer.invoice("2026-10")
    assert (october.net, october.carry_out, october.returned_pico) == (0, 0, 88 * 10**10)
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert balance.prepaid == 10**13, "not more than was put in"
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_the_audit_names_discounts_of_more_than_there_was(database: Database) -> None:
    customer = await Customer.make(database, buyer=US)
    await set_terms(customer, {"discounts": [{"basis_points": 6000}, {"basis_points": 4000}]}, "2026-10")
    october = await month(customer, "2026-10")
    assert await audit_money(database) == []
    async with unguarded(database) as session:
        second = (invoice_line.c.kind == "discount") & (invoice_line.c.exact_pico == -2 * 10**12)
        await session.execute(update(invoice_line).where(second).values(exact_pico=-3 * 10**12))
    details = {finding.what: finding.detail for finding in await audit_money(database)}
    assert details["discounts took more than there was"] == (
        f"{october.number}: 6.000000000000 of all models, which used 5.000000000000"
    )

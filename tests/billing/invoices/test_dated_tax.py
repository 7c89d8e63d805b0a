"""The tax of a document is that of its chargeable event; names and addresses are those of its issue date."""

from __future__ import annotations

from datetime import date
from fractions import Fraction
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.accounts.balances import Balances
from billing.calendar import period_bounds
from billing.invoices.composing import Funding, compose
from billing.invoices.credit_notes import credit
from billing.invoices.document import Savings
from billing.invoices.parties.dated import DatedParty, FactChange, InvoiceParties, changed_facts, facts_of
from billing.invoices.parties.parties import InvalidParty
from billing.invoices.parties.store import Parties
from billing.rating.lines import RatedLine
from billing.reservation.hold_service import HoldService
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.fast import examples

DOMESTIC = msgspec.structs.replace(BUYER, country="DE", vat_id="")
USAGE = Usage(output=10_000_000)
"""16 dollars."""


def _vat(cents: int, rate: int) -> int:
    """Half-up, by fractions."""
    return int(Fraction(cents * rate, 10_000) + Fraction(1, 2))


def _seller(**changes: Any) -> Any:
    return msgspec.structs.replace(USD, **changes)


@pytest.mark.both_databases
async def test_a_rate_that_changed_since_is_not_charged_for_the_month_before(database: Database) -> None:
    customer = await Customer.make(database, buyer=DOMESTIC)
    await customer.use("2026-11-03", USAGE)
    set_clock(database, "2026-12-01")
    await Parties(database).set_seller(_seller(name="Renamed GmbH", rates={"DE": 2100}), reason="the rate was raised")
    november = await customer.invoice("2026-11")
    document = await customer.invoices.document(november)
    assert (november.net, november.tax) == (1600, _vat(1600, 1900))
    assert (document.seller.name, document.seller.rates) == ("Renamed GmbH", USD.rates)
    note, credited = await credit(database, november, "an outage", request="1", amounts={1: 100})
    assert note is not None
    assert (credited.taxes[0].rate, credited.tax) == (1900, 19)
    await customer.use("2026-12-03", USAGE)
    december = await customer.invoice("2026-12")
    assert (december.net, december.tax) == (1600, _vat(1600, 2100))
    assert await audit_money(database) == []


async def test_a_treatment_is_that_of_the_period_whatever_the_buyer_is_since(database: Database) -> None:
    customer, parties = await Customer.make(database), Parties(database)
    await customer.use("2026-11-03", USAGE)
    set_clock(database, "2026-12-01")
    moved = msgspec.structs.replace(BUYER, name="Moved GmbH", country="DE", vat_id="")
    await parties.set_buyer(customer.id, moved)
    november = await customer.invoices.document(await customer.invoice("2026-11"))
    assert [(tax.category, tax.tax) for tax in november.taxes] == [("AE", 0)]
    assert (november.buyer.name, november.buyer.country, november.buyer.vat_id) == ("Moved GmbH", "DE", BUYER.vat_id)
    await customer.use("2026-12-03", USAGE)
    december = await customer.invoices.document(await customer.invoice("2026-12"))
    assert [(tax.category, tax.tax) for tax in december.taxes] == [("S", _vat(1600, 1900))]
    assert december.buyer == moved


async def test_a_fact_can_be_said_afterwards_and_beforehand(database: Database) -> None:
    """Changes hold from their own days, in whatever order they are made."""
    parties = Parties(database)
    set_clock(database, "2026-11-20")
    await parties.set_seller(USD)
    await parties.set_seller(_seller(rates={"DE": 2100, "ES": 2100}), valid_from=date(2027, 1, 1), reason="a law")
    await parties.set_seller(_seller(rates={"DE": 1600, "ES": 2100}), valid_from=date(2026, 7, 1), reason="forgotten")
    await parties.set_seller(_seller(rates={"DE": 1600, "ES": 2100, "AT": 2000}, city="Bonn"), reason="registered")
    dated = await parties.dated_seller(USD.id)
    assert {day: dated.on(day).rates for day in ("2026-06-30", "2026-11-19", "2026-11-20", "2027-01-01")} == {
        "2026-06-30": USD.rates,
        "2026-11-19": {"DE": 1600, "ES": 2100},
        "2026-11-20": {"DE": 1600, "ES": 2100, "AT": 2000},
        "2027-01-01": {"DE": 2100, "ES": 2100, "AT": 2000},
    }
    assert {dated.on(day).city for day in ("2026-06-30", "2027-01-01")} == {"Bonn"}
    set_clock(database, "2027-01-01")
    assert (await parties.seller(USD.id)).rates["DE"] == 2100
    with pytest.raises(InvalidParty, match="reason"):
        await parties.set_seller(USD)
    assert await audit_money(database) == []


async def test_a_late_correction_has_the_rate_of_its_own_month_and_lowers_in_proportion(database: Database) -> None:
    customer, parties = await Customer.make(database, buyer=DOMESTIC), Parties(database)
    late = await customer.requests("2026-11-03", USAGE)
    await HoldService(database).sweep(late[0].admitted_at + 3_600_000_000)
    await customer.use("2026-11-04", Usage(output=1_000_000))
    await customer.invoice("2026-11")
    await parties.set_seller(_seller(rates={"DE": 2100}), valid_from=date(2026, 12, 1), reason="a law")
    await Balances(database).grant(customer.id, 8 * 10**12, "USD", kind="promo")
    await customer.use("2026-12-03", USAGE)
    await customer.settle(late)
    december = await customer.invoices.document(await customer.invoice("2026-12"))
    promo = [(line.rate, line.net) for line in december.lines if line.kind == "credit"]
    assert promo == [(2100, -400), (1900, -400)]
    assert {tax.rate: (tax.net, tax.tax) for tax in december.taxes} == {
        1900: (1200, _vat(1200, 1900)),
        2100: (1200, _vat(1200, 2100)),
    }
    assert await audit_money(database) == []


@given(
    st.lists(st.tuples(st.integers(-(10**13), 10**13), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 10**13),
    st.integers(0, 100),
    st.sampled_from([(1900, 2100), (2100, 1900), (1900, 0)]),
)
@settings(max_examples=examples(60))
def test_two_rates_on_an_invoice_conserve_its_sums(
    amounts: list[tuple[int, bool]], given_pico: int, share: int, rates: tuple[int, int]
) -> None:
    before, after = (_seller(rates={"DE": rate} if rate else {"ES": 2100}) for rate in rates)
    seller = DatedParty(
        after, [FactChange("", facts_of(before)), FactChange("2026-12-01", changed_facts(before, after))]
    )
    buyer = DOMESTIC if rates[1] else msgspec.structs.replace(DOMESTIC, country="US")
    lines = []
    for n, (pico, is_late) in enumerate(amounts):
        start, end = period_bounds("2026-11" if is_late else "2026-12")
        corrects = "2026-11" if is_late else None
        lines.append(RatedLine(kind="usage", description=str(n), exact_pico=pico, service_start=start,
                               service_end=end, corrects_period=corrects))  # fmt: skip
    total = sum(pico for pico, _ in amounts)
    promo = max(0, min(given_pico, total))
    prepaid = max(0, total - promo) * share // 100
    document = compose(
        InvoiceParties(seller, DatedParty(buyer), "2026-12-31", "2027-01-02"), UUID(int=1), "2026-12", currency="USD",
        rated=lines, funding=Funding(promo, prepaid), savings=Savings(models=[]), projects={},
    )  # fmt: skip
    cent = 10**10
    exact = Fraction(sum(int(line.exact) for line in document.lines))
    assert exact == total - promo
    assert document.net == sum(line.net for line in document.lines)
    assert document.net * cent + int(document.carry_out) == exact
    assert document.prepaid * cent + int(document.prepaid_carry_out) == prepaid
    assert document.payable == document.gross - document.prepaid >= 0
    assert document.tax == sum(tax.tax for tax in document.taxes)
    for tax in document.taxes:
        assert tax.net == sum(line.net for line in document.lines if line.rate == tax.rate)
        assert abs(tax.tax - Fraction(tax.net * tax.rate, 10_000)) <= Fraction(1, 2)

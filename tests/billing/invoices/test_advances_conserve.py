"""Random months of top-ups in both treatments of VAT, changes of the rate, usage, a minimum or a commitment, expiry,
refunds, void and credited invoices: money that came is money that is left, owed in service, earned or due to the state.

`ADVANCE_PLANS`: how many plans a database; 1000 in `make test-long`.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from billing.accounts.balances import CurrencyMismatch
from billing.invoices.accounting.deferral import earn_lapsed_commitments
from billing.invoices.advances import quote, top_ups
from billing.invoices.collection import pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.document import deductions_of
from billing.invoices.errors import AmountRefused
from billing.invoices.parties.parties import Prepayment
from billing.invoices.parties.store import Parties
from billing.invoices.store import InvoiceRecord
from billing.ledger.wallet import RefundRefused
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import parse_terms
from billing.usage import Usage
from billing.verification.audit import Finding, audit_money
from storage.database.base import new_id, to_instant
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.fast import examples

CENT = 10**10
PLANS = int(os.environ.get("ADVANCE_PLANS", "10"))
MONTHS = ("2026-10", "2026-11", "2026-12")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")
FRENCH = BUYER
"""Reverse charge."""


class Month(msgspec.Struct, frozen=True):
    """A month: the seller's treatment and rate from its first day on, cents of credit that are bought (and whether it
    expires within the month after), output tokens that are used, and what becomes of its invoice."""

    prepayment: Prepayment
    rate: int
    top_ups: list[tuple[int, bool]]
    uses: list[int]
    refunds: bool
    voids: bool
    credits: bool


class Plan(msgspec.Struct, frozen=True):
    """A contract and three months. `pays`: what an invoice asks for is paid at once."""

    reverse_charge: bool
    contract: dict[str, object]
    months: list[Month]
    pays: bool


months = st.builds(
    Month,
    st.sampled_from(["advance", "advance", "multi_purpose"]),
    st.sampled_from([700, 1600, 1900, 2100]),
    st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=3),
    st.lists(st.integers(1, 8_000_001), min_size=1, max_size=2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
commitment = {"amount": "7", "first": "2026-10", "last": "2026-11"}
contracts = st.fixed_dictionaries(
    {}, optional={"minimum": st.just({"amount": "3.1"}), "commitment": st.just(commitment)}
)
plans = st.builds(Plan, st.booleans(), contracts, st.lists(months, min_size=3, max_size=3), st.booleans())

LOWERED = Plan(
    False,
    {},
    [
        Month("advance", 2100, [(2000, False)], [1_000_000], False, False, False),
        Month("multi_purpose", 700, [(333, False)], [6_000_000], False, True, False),
        Month("advance", 1900, [(1, False)], [8_000_000], True, False, True),
    ],
    pays=True,
)
"""The rate falls below that of the advance, whose VAT is then deducted from more invoices than its net."""


class _Story:
    """One tenant's three months, and what they come to by themselves: money that came, and what usage costs."""

    def __init__(self, customer: Customer) -> None:
        self.customer = customer
        self.database = customer.database
        self.balances = top_ups(customer.database)
        self.cash = 0
        self.used = 0

    async def month(self, number: int, month: Month, *, pays: bool) -> None:
        period = MONTHS[number]
        set_clock(self.database, f"{period}-02T12:00")
        await self.balances.expire()
        await earn_lapsed_commitments(self.database)
        rates = {"DE": month.rate, "FR": month.rate}
        seller = msgspec.structs.replace(USD, prepayment=month.prepayment, rates=rates)
        await Parties(self.database).set_seller(seller, valid_from=date.fromisoformat(f"{period}-01"), reason="a law")
        for cents, expires in month.top_ups:
            end = to_instant(datetime(2026, 10 + number, 20, tzinfo=UTC)) if expires else None
            asked = await quote(self.database, self.customer.id, cents, "USD")
            await self.balances.grant(self.customer.id, cents * CENT, "USD", expires_at=end, grant_id=new_id())
            self.cash += asked.gross * CENT
        for day, output in enumerate(month.uses, 3):
            (event,) = await self.customer.use(f"{period}-{day:02}", Usage(output=output))
            self.used += event.cost_pico
        record = await self.customer.invoice(period)
        if month.voids and record.state == "finalized":
            await void(self.database, record, "a mistake")
            again = await self.customer.invoice(period)
            assert (again.net, again.tax, again.drawn, again.payable) == (
                record.net, record.tax, record.drawn, record.payable,
            )  # fmt: skip
            record = again
        if pays and record.left:
            self.cash += record.left * CENT
            record = await pay(self.database, record, "bank")
        if month.credits and record.gross:
            with suppress(AmountRefused):  # a commitment has paid some of it already
                await credit(self.database, record, "goodwill", request="all")
        if month.refunds:
            await self.refund()

    async def refund(self) -> None:
        """Pay back everything that can be, with the VAT that was paid on it."""
        before = await self._documents("credit_note")
        refundable = 0
        try:
            await self.balances.refund(self.customer.id, 10**18, "USD")
        except RefundRefused as refused:
            refundable = refused.refundable_pico
        except CurrencyMismatch:
            return
        if refundable:
            await self.balances.refund(self.customer.id, refundable, "USD")
            made = [note for note in await self._documents("credit_note") if note not in before]
            self.cash -= refundable + sum(note.tax for note in made) * CENT

    async def _documents(self, kind: str) -> list[InvoiceRecord]:
        return [one for one in await self.customer.invoices.list(self.customer.id) if one.kind == kind]

    async def assert_conserved(self) -> None:
        accounts = defaultdict(int, await self.customer.accounts())
        assert accounts["clearing"] == -self.cash
        assert accounts["revenue"] == self.used
        left = sum(one.remaining for one in await self.balances.grants(self.customer.id))
        assert accounts["prepaid"] == left
        owed = -accounts["receivable"] - accounts["invoiced"]
        income = sum(accounts[name] for name in ("revenue", "charges", "credited", "breakage"))
        carry, deferred, tax = accounts["rounding_carry"], accounts["deferred"], accounts["tax"]
        assert self.cash == left - owed + income + carry + deferred + tax
        assert deferred >= 0
        await self._assert_vat(tax)

    async def _assert_vat(self, posted: int) -> None:
        """What is due to the state is the VAT of invoices and of advances that no invoice has deducted."""
        advances = await self._documents("advance")
        by_advance = {one.id: one.tax for one in advances}
        supplied = 0
        for one in await self.customer.invoices.list(self.customer.id):
            if one.kind == "credit_note" and one.corrects in by_advance:
                by_advance[one.corrects] -= one.tax
            elif one.kind != "advance" and one.state not in ("void", "draft"):
                supplied += one.tax if one.kind == "invoice" else -one.tax
                document = await self.customer.invoices.document(one)
                for deduction in deductions_of(document):
                    (advance,) = [each for each in advances if str(each.id) == deduction.advance]
                    by_advance[advance.id] -= deduction.tax
        assert all(tax >= 0 for tax in by_advance.values()), "no VAT is deducted or credited twice"
        assert posted == (supplied + sum(by_advance.values())) * CENT


async def _faults_after(url: str, plan: Plan) -> list[Finding]:
    """What the audit finds after this story, whose money is conserved."""
    database = await Database.open(url)
    try:
        customer = await Customer.make(database, buyer=FRENCH if plan.reverse_charge else GERMAN)
        await Contracts(database, PriceCatalog(database)).put(
            customer.id, parse_terms(plan.contract), MONTHS[0], by="ann"
        )
        story = _Story(customer)
        for number, month in enumerate(plan.months):
            await story.month(number, month, pays=plan.pays)
            await story.assert_conserved()
        set_clock(database, "2027-02-01")
        await story.balances.expire()
        await earn_lapsed_commitments(database)
        await story.assert_conserved()
        return await audit_money(database)
    finally:
        await database.close()


@pytest.mark.slow
def test_what_was_paid_is_left_owed_earned_or_due_to_the_state(empty_again: Callable[[], str]) -> None:
    @settings(max_examples=examples(PLANS), deadline=None)
    @example(plan=LOWERED)
    @given(plan=plans)
    def conserve(plan: Plan) -> None:
        assert asyncio.run(_faults_after(empty_again(), plan)) == []

    conserve()

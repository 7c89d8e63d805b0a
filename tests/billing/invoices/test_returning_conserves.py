"""Random grants, terms and usage over three months: what was put in is left, billed, carried, refunded or lost, to the
pico-unit.

`RETURNING_PLANS`: how many plans a database; 100 in `make test-long`.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from billing.accounts.adjustments import InvalidAdjustment, adjust
from billing.accounts.balances import Balances
from billing.invoices.collection import pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.errors import AmountRefused
from billing.invoices.store import InvoiceRecord
from billing.ledger.wallet import RefundRefused
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import parse_terms
from billing.usage import Usage
from billing.verification.audit import Finding, audit_money
from storage.database.base import new_id, to_instant
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.fast import examples

CENT = 10**10
PLANS = int(os.environ.get("RETURNING_PLANS", "10"))
US = msgspec.structs.replace(BUYER, country="US", vat_id="")
MONTHS = ("2026-10", "2026-11", "2026-12")


class Put(msgspec.Struct, frozen=True):
    """Money put in before a month's usage."""

    pico: int
    kind: str
    restricted: bool
    expires: str | None


class Month(msgspec.Struct, frozen=True):
    """What happens in a month, and to its invoice. `wrong`: its first request is taken back once it is closed.
    `credits`: all of the invoice, paid or not, is credited before, where that gives nothing back twice."""

    puts: list[Put]
    uses: list[int]
    wrong: bool
    voids: bool
    refunds: bool
    credits: bool = False


class Plan(msgspec.Struct, frozen=True):
    """A contract and three months. `pays`: what an invoice asks for is paid at once."""

    contract: dict[str, object]
    months: list[Month]
    pays: bool


expiries = st.sampled_from([None, None, "2026-11-01", "2026-12-15"])
puts = st.builds(Put, st.integers(1, 20 * 10**12), st.sampled_from(["paid", "paid", "promo"]), st.booleans(), expiries)
uses = st.lists(st.integers(1, 8_000_001), min_size=1, max_size=3)
months = st.builds(
    Month,
    st.lists(puts, max_size=3),
    uses,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
discounts = st.lists(st.builds(lambda points: {"basis_points": points}, st.integers(1, 5000)), max_size=2)
commitment = {"amount": "7", "first": "2026-10", "last": "2026-11"}
paid = {"invoiced": False, "payments": [{"amount": "6", "reference": "bank 1", "reason": "before the contract"}]}
contracts = st.fixed_dictionaries(
    {"discounts": discounts},
    optional={"minimum": st.just({"amount": "3.1"}), "commitment": st.sampled_from([commitment, commitment | paid])},
)
plans = st.builds(Plan, contracts, st.lists(months, min_size=3, max_size=3), st.booleans())


MORE_GIVEN_BACK_THAN_OWED = Plan(
    {"discounts": [{"basis_points": 450}], "minimum": {"amount": "3.1"}},
    [
        Month([], [2_555_018, 4896], wrong=True, voids=True, refunds=False),
        Month([Put(3_116_241_284, "paid", restricted=False, expires=None)], [10_910], False, False, False),
        Month([], [1], wrong=False, voids=False, refunds=False),
    ],
    pays=True,
)
"""The second month's usage is less than what the correction takes off it: the minimum alone is paid then."""


CREDITED_UNPAID = Plan(
    {"discounts": [{"basis_points": 1754}, {"basis_points": 1754}]},
    [
        Month([], [452, 157_416, 524_287], wrong=False, voids=False, refunds=False, credits=True),
        Month(
            [Put(6734, "promo", restricted=False, expires=None), Put(12_071_389, "paid", False, None)],
            [1_344_225, 524],
            wrong=True,
            voids=False,
            refunds=True,
        ),
        Month([Put(3_535_073, "paid", restricted=False, expires=None)], [5_569_402], False, False, refunds=True),
    ],
    pays=False,
)
"""The first month is owed, and a credit note settles that. In the second promotional credit paid for the usage that is
corrected: none of it becomes money that is paid back."""


class _Story:
    """One tenant's three months."""

    def __init__(self, customer: Customer) -> None:
        self.customer = customer
        self.database = customer.database
        self.balances = Balances(customer.database)
        self.invoices: list[InvoiceRecord] = []
        self.paid = 0
        self.given = 0
        self.credited = 0

    async def put(self, put: Put, now: str) -> None:
        lasts = put.expires is not None and put.expires > now
        expires = to_instant(datetime.fromisoformat(put.expires or "").replace(tzinfo=UTC)) if lasts else None
        model = "stdlib-qa" if put.restricted and put.kind == "promo" else None
        await self.balances.grant(
            self.customer.id, put.pico, "USD", kind=put.kind, model=model, expires_at=expires, grant_id=new_id()
        )
        if put.kind == "paid":
            self.paid += put.pico
        else:
            self.given += put.pico

    async def month(self, period: str, month: Month, *, pays: bool) -> None:
        now = f"{period}-02"
        set_clock(self.database, f"{now}T12:00")
        await self.balances.expire()
        for put in month.puts:
            await self.put(put, now)
        events = [
            (await self.customer.use(f"{period}-{day:02}", Usage(output=output)))[0]
            for day, output in enumerate(month.uses, 3)
        ]
        record = await self.customer.invoice(period)
        if month.voids and record.state == "finalized":
            said = await self.customer.invoices.document(record)
            await void(self.database, record, "a mistake")
            record = await self.customer.invoice(period)
            again = await self.customer.invoices.document(record)
            assert (again.lines, again.payable, again.returned) == (said.lines, said.payable, said.returned)
        if pays and record.left:
            self.paid += record.left * CENT
            record = await pay(self.database, record, "bank")
        self.invoices.append(record)
        if month.credits and record.gross:
            with suppress(AmountRefused):  # a commitment has paid some of it already
                note, _ = await credit(self.database, record, "goodwill", request="all")
                assert note is not None
                self.credited += note.gross * CENT
        if month.wrong and period != MONTHS[-1]:
            units = {"output": -events[0].usage.output}
            catalog = PriceCatalog(self.database)
            with suppress(InvalidAdjustment):  # it was credited
                await adjust(self.database, catalog, self.customer.id, events[0].id, units, reason="wrong")
        if month.refunds:
            await self.refund()

    async def refund(self) -> None:
        """Pay back everything that can be."""
        try:
            await self.balances.refund(self.customer.id, 10**18, "USD")
        except RefundRefused as refused:
            if refused.refundable_pico:
                await self.balances.refund(self.customer.id, refused.refundable_pico, "USD")
                self.paid -= refused.refundable_pico
        assert self.paid >= 0

    async def assert_conserved(self, plan: Plan) -> None:
        """What was put in is what is left, expired, billed and carried; what was given likewise, apart from it."""
        grants = await self.balances.grants(self.customer.id)
        accounts = defaultdict(int, await self.customer.accounts())
        left = {kind: sum(one.remaining for one in grants if one.kind == kind) for kind in ("paid", "promo")}
        owed = -accounts["receivable"] - accounts["invoiced"]
        billed = sum(one.gross for one in self.invoices) * CENT
        carry = sum(one.carry_out - one.carry_in for one in self.invoices)
        prepaid_carry = sum(one.prepaid_carry_out - one.prepaid_carry_in for one in self.invoices)
        given = sum(one.promo_pico for one in self.invoices)
        rated = sum(one.usage_pico + one.charges_pico for one in self.invoices)
        expired = self.given + accounts["goodwill"]
        assert self.given == left["promo"] + expired + given
        kept = billed - self.credited
        assert self.paid == left["paid"] - owed + accounts["breakage"] + kept + prepaid_carry
        assert billed + carry == rated - given
        if plan.pays and not any(month.wrong or month.credits for month in plan.months):
            assert abs(prepaid_carry) < CENT, "no money is where nobody can use it"
            assert abs(carry) < CENT
            assert abs(owed) < CENT


async def _faults_after(url: str, plan: Plan) -> list[Finding]:
    """What the audit finds after this story, whose money is conserved."""
    database = await Database.open(url)
    try:
        customer = await Customer.make(database, buyer=US)
        await Contracts(database, PriceCatalog(database)).put(
            customer.id, parse_terms(plan.contract), MONTHS[0], by="ann"
        )
        story = _Story(customer)
        for period, month in zip(MONTHS, plan.months, strict=True):
            await story.month(period, month, pays=plan.pays)
        await story.assert_conserved(plan)
        return await audit_money(database)
    finally:
        await database.close()


@pytest.mark.slow
def test_what_was_put_in_is_left_billed_or_carried(empty_again: Callable[[], str]) -> None:
    @settings(max_examples=examples(PLANS), deadline=None)
    @example(plan=MORE_GIVEN_BACK_THAN_OWED)
    @example(plan=CREDITED_UNPAID)
    @given(plan=plans)
    def conserve(plan: Plan) -> None:
        assert asyncio.run(_faults_after(empty_again(), plan)) == []

    conserve()

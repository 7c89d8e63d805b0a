"""What the operators and the customers' people do in the demonstration's months, each act as who does it."""

from __future__ import annotations

from collections.abc import Awaitable
from fractions import Fraction
from typing import Literal, TypeAlias

from billing.accounts.adjustments import adjust
from billing.approvals.approvals import Approvals
from billing.calendar import period_of
from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.parties.store import Parties
from billing.invoices.store import Invoices, read_document
from billing.money import PICO
from billing.pending_changes import ChangePending
from billing.periods.periods import Periods
from billing.platform_settings import APPROVALS, GRANT_OVER
from billing.prices.approval import PriceSheets, via_of_sheets
from billing.prices.grid import times
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal, PriceSheet
from billing.prices.version import EVERY_LANE, Cell
from billing.rating.terms import ContractTerms, Discount, Minimum, Step, Tiers
from billing.usage import LEASE_CLASSES, UsageEvent
from tenancy.administration.suspension import Suspensions
from tenancy.rate_limits import Limits, LimitSubject
from tenancy.users.members import Scope
from turnpike.admin_services import AdminServices
from turnpike.demonstration.cast import (
    CUSTOMERS,
    LARGE,
    NORDLICHT,
    OPERATORS,
    PRICES,
    QUILLSTONE,
    SELLER,
    SMALL,
    TIDEWATER,
    VISITOR,
    Prices,
)
from turnpike.demonstration.past import DAY, Past
from turnpike.demonstration.people import Population, payer_name

OWNER, ANN, BEN = (person.email for person in OPERATORS)
CLARA, JONAS, MIA, TOM, _ = (person.email for person in NORDLICHT.people)
GRACE, OMAR, _ = (person.email for person in QUILLSTONE.people)
EURO_BOOK = "euro"
OwnPrices: TypeAlias = tuple[str, str, dict[Cell, int]]
"""Name, currency and prices of the model that is served."""


class Office:
    """The acts. Each runs at the instant at which the process stands."""

    def __init__(
        self, admin: AdminServices, past: Past, population: Population, own_prices: OwnPrices, pause: int
    ) -> None:
        """`pause`: how long one waits for another."""
        self._own_prices = own_prices
        self._admin = admin
        self._past = past
        self._pause = pause
        self._all = population
        self._parties = Parties(admin.database)

    # ------------------------------------------------ before the first request

    async def open_shop(self) -> None:
        """Seller, prices that one operator drafts and another approves, money, terms; then approvals are on."""
        admin, made = self._admin, self._all
        with made.acting(ANN):
            await self._parties.set_seller(SELLER)
            for customer in CUSTOMERS:
                await self._parties.set_buyer(made.tenants[customer.name], customer.buyer)
            await PriceBooks(admin.database).create(EURO_BOOK, "EUR")
            await PriceBooks(admin.database).create_for(made.tenants[NORDLICHT.name], NORDLICHT.name, EURO_BOOK)
        await self._price(*self._own_prices, reason="the model folder's own prices")
        for model, prices in PRICES.items():
            await self._price(model, "USD", _rows(prices.uncached, prices.output), reason="list prices")
            rows = _rows(prices.euro_uncached, prices.euro_output)
            await self._price(model, "EUR", rows, book=EURO_BOOK, reason="list prices")
        await self._fund()
        with made.acting(ANN) as ann:
            via = via_of_sheets(ann)
            await admin.platform.set(GRANT_OVER, "500", by=ANN, via=via, reason="small grants need one person")
            await admin.platform.set(APPROVALS, "on", by=ANN, via=via, reason="four eyes from now on")

    async def _price(
        self,
        model: str,
        currency: str,
        rows: dict[Cell, int],
        *,
        book: str = "base",
        reason: str,
        kind: Literal["whole", "overrides"] = "whole",
    ) -> None:
        proposal = PriceProposal(model=model, rows=rows, book=book, currency=currency, kind=kind)
        drafted = await self._draft(ANN, proposal, reason)
        self._past.move_to(self._past.now + self._pause // 8)
        with self._all.acting(BEN) as ben:
            sheets = PriceSheets(self._admin.database, via=via_of_sheets(ben))
            await sheets.approve(drafted.id, BEN, "compared with the contract")
        self._admin.prices.forget()

    async def _draft(self, who: str, proposal: PriceProposal, reason: str) -> PriceSheet:
        with self._all.acting(who) as actor:
            sheets = PriceSheets(self._admin.database, via=via_of_sheets(actor))
            return await sheets.draft(proposal, who, reason, force="the demonstration's prices")

    async def _fund(self) -> None:
        admin, made = self._admin, self._all
        with made.acting(BEN):
            for customer in CUSTOMERS:
                tenant = made.tenants[customer.name]
                if customer.credit_line:
                    await admin.balances.set_credit_line(tenant, customer.credit_line * PICO, customer.currency)
                if customer.paid_in:
                    amount = customer.paid_in * PICO
                    await admin.balances.grant(tenant, amount, customer.currency, reason="bank transfer 2044-17")
            nordlicht, quillstone = made.tenants[NORDLICHT.name], made.tenants[QUILLSTONE.name]
            until = self._past.now + 80 * DAY
            await admin.balances.grant(
                quillstone, 25 * PICO, "USD", kind="promo", reason="welcome", expires_at=until,
                project_id=made.projects[QUILLSTONE.name, "code-review"],
            )  # fmt: skip
            await admin.balances.grant(nordlicht, 20 * PICO, "EUR", kind="promo", reason="welcome", model=SMALL)
            terms = ContractTerms(
                discounts=(Discount(basis_points=800, models=(LARGE,)),),
                tiers=(
                    Tiers(
                        kind="graduated",
                        model=SMALL,
                        meter="output",
                        steps=(Step(1_440_000, 100_000), Step(1_200_000)),
                    ),
                ),
            )
            period = self._period(self._past.now + 5 * DAY)
            await admin.contracts.put(nordlicht, terms, period, by=BEN, reason="frame contract 2026-31")
            least = ContractTerms(minimum=Minimum(amount_pico=49 * PICO))
            await admin.contracts.put(
                made.tenants[TIDEWATER.name], least, period, by=BEN, reason="the smallest contract"
            )

    async def set_bounds(self) -> None:
        """Limits and budgets, as the customers' own people set them."""
        admin, made = self._admin, self._all
        nordlicht, quillstone = made.tenants[NORDLICHT.name], made.tenants[QUILLSTONE.name]
        with made.acting(JONAS):
            editorial = made.projects[NORDLICHT.name, "editorial"]
            search = made.payers[payer_name(NORDLICHT, "archive-search", "search front end")]
            limits = Limits(requests_per_minute=120, input_tokens_per_minute=400_000, concurrent_requests=20)
            await admin.rate_limits.set(LimitSubject(nordlicht, editorial), limits, "as agreed with the editors")
            subject = LimitSubject(nordlicht, search.project_id, search.key_id)
            await admin.rate_limits.set(subject, Limits(requests_per_minute=60), "one page, one request")
        with made.acting(MIA):
            budgets = admin.budgets
            await budgets.set(nordlicht, "tenant", "", "month", limit_pico=60 * PICO, currency="EUR", action="notify")
            await budgets.set(nordlicht, "project", str(editorial), "month", limit_pico=45 * PICO, currency="EUR")
            await budgets.set(
                nordlicht, "tag", "lectorate", "day", limit_pico=3 * PICO, currency="EUR", action="notify"
            )
        with made.acting(OMAR):
            support = made.projects[QUILLSTONE.name, "support-agent"]
            await budgets.set(quillstone, "project", str(support), "day", limit_pico=15 * PICO, currency="USD")
            await budgets.set(quillstone, "tenant", "", "month", limit_pico=200 * PICO, currency="USD", action="notify")

    # ------------------------------------------------ while requests come

    async def change_keys(self) -> None:
        """A key that is rotated, one that is revoked, one that nobody ever uses, an admin key."""
        tenancy, made, now = self._admin.tenancy, self._all, self._past.now
        nordlicht = made.tenants[NORDLICHT.name]
        editorial = made.projects[NORDLICHT.name, "editorial"]
        with made.acting(JONAS):
            await tenancy.create_key(nordlicht, editorial, "never used")
            gone = await tenancy.create_key(nordlicht, editorial, "laptop of an intern")
            await tenancy.create_key(nordlicht, None, "reports", role="finance")
            await tenancy.revoke(gone.public_id, nordlicht, "the laptop was lost")
            rotated = payer_name(NORDLICHT, "editorial", "style checker")
            issued, _ = await tenancy.rotate_key(
                made.payers[rotated].key, nordlicht, until=now + DAY, reason="half a year old"
            )
            made.keys[rotated] = issued.key
        with made.acting(GRACE):
            await tenancy.create_key(
                made.tenants[QUILLSTONE.name], made.projects[QUILLSTONE.name, "code-review"], "conference talk",
                expires_at=now + 45 * DAY,
            )  # fmt: skip

    async def invite(self) -> None:
        """Two invitations that nobody has accepted yet."""
        links, made, now = self._admin.users.links, self._all, self._admin.users.clock()
        with made.acting(CLARA):
            scope = Scope(made.tenants[NORDLICHT.name])
            await links.invite(made.principal(CLARA), "nils.holt@nordlicht.example", "viewer", scope, now)
        with made.acting(GRACE):
            scope = Scope(made.tenants[QUILLSTONE.name], made.projects[QUILLSTONE.name, "support-agent"])
            await links.invite(made.principal(GRACE), "sam.park@quillstone.example", "developer", scope, now)

    async def suspend_prototype(self) -> None:
        """A project that is suspended."""
        made = self._all
        with made.acting(CLARA):
            project = made.projects[NORDLICHT.name, "prototype"]
            suspensions = Suspensions(self._admin.database, self._admin.bus)
            await suspensions.suspend(made.tenants[NORDLICHT.name], project, reason="the experiment is over")

    async def top_up(self) -> None:
        """A customer pays in advance again, and gets a little back later."""
        with self._all.acting(BEN):
            tenant = self._all.tenants[QUILLSTONE.name]
            await self._admin.balances.grant(tenant, 150 * PICO, "USD", reason="bank transfer 2101-03")
            await self._admin.balances.refund(tenant, 5 * PICO, "USD", reason="paid twice by mistake")

    async def lower_prices(self) -> None:
        """Cheaper answers of the small model from now on, in both books."""
        old = PRICES[SMALL]
        new = Prices(old.uncached, 1_500_000, old.euro_uncached, 1_350_000)
        await self._price(SMALL, "USD", _rows(new.uncached, new.output), reason="the new hardware is cheaper")
        await self._price(
            SMALL,
            "EUR",
            _rows(new.euro_uncached, new.euro_output),
            book=EURO_BOOK,
            reason="the new hardware is cheaper",
        )

    async def wait_for_approval(self) -> None:
        """Changes that wait for a second person: a price sheet, a grant, terms."""
        admin, made = self._admin, self._all
        old = PRICES[LARGE]
        cheaper = PriceProposal(model=LARGE, rows=_rows(2_700_000, old.output), currency="USD")
        await self._draft(ANN, cheaper, "cheaper prompts, to keep a large customer")
        with made.acting(ANN):
            await _pending(
                admin.balances.grant(made.tenants[QUILLSTONE.name], 800 * PICO, "USD", reason="wire 2188-40")
            )
            terms = ContractTerms(discounts=(Discount(basis_points=1_200, models=(LARGE,)),))
            period = self._period(self._past.now + 31 * DAY)
            await _pending(
                admin.contracts.put(made.tenants[NORDLICHT.name], terms, period, by=ANN, reason="renewal for 2027")
            )

    # ------------------------------------------------ money

    async def correct(self, event: UsageEvent) -> None:
        """Take back output that was counted wrongly."""
        units = {"output": -(event.usage.output // 2)}
        with self._all.acting(BEN):
            await adjust(
                self._admin.database, self._admin.prices, event.tenant_id, event.id, units, reason="an answer was cut"
            )

    async def bill(self, period: str) -> None:
        """Close the month, draft, look, finalize."""
        admin, made = self._admin, self._all
        names = (await admin.display_names()).projects
        with made.acting(BEN):
            await Periods(admin.database).close(period)
            for customer in CUSTOMERS:
                await draft(admin.database, admin.prices, made.tenants[customer.name], period, names)
            self._past.move_to(self._past.now + self._pause)
            for customer in CUSTOMERS:
                tenant = made.tenants[customer.name]
                if await Invoices(admin.database).of_period(tenant, period) is not None:
                    await finalize(admin.database, admin.prices, tenant, period)

    async def credit_some(self, period: str) -> None:
        """One credit note: proposed by one operator, approved by the other."""
        admin, made = self._admin, self._all
        record = await Invoices(admin.database).of_period(made.tenants[NORDLICHT.name], period)
        if record is None:
            return
        async with admin.database.reading() as session:
            lines = (await read_document(session, record.tenant_id, record.id)).lines
        if record.gross == 0:
            return
        largest = max(range(len(lines)), key=lambda number: lines[number].net)
        amounts = {largest + 1: max(1, lines[largest].net // 4)}
        proposed = None
        with made.acting(ANN):
            try:
                await credit(admin.database, record, "Slow answers on the 9th", request="ticket-3391", amounts=amounts)
            except ChangePending as pending:
                proposed = pending.change
        self._past.move_to(self._past.now + self._pause)
        if proposed is not None:
            with made.acting(BEN):
                await Approvals(admin.database, admin.prices).approve(proposed.id, lambda *_: True, "seen in the logs")

    async def be_paid(self, period: str) -> None:
        """A part of an invoice is paid."""
        with self._all.acting(BEN):
            record = await Invoices(self._admin.database).of_period(self._all.tenants[NORDLICHT.name], period)
            if record is not None and record.payable > 1:
                await pay(self._admin.database, record, "bank 2026-4711", record.payable // 2)

    async def greet_visitor(self) -> None:
        """The visitor's tenant gets a budget, so that its pages show one."""
        with self._all.acting(BEN):
            tenant = self._all.tenants[VISITOR.name]
            await self._admin.budgets.set(tenant, "tenant", "", "month", limit_pico=20 * PICO, currency="USD")

    def _period(self, instant: int) -> str:
        return period_of(instant)


async def _pending(change: Awaitable[object]) -> None:
    """Make a change that is to wait for another person."""
    try:
        await change
    except ChangePending:
        return
    raise RuntimeError("a change of the demonstration was to wait for a second person, and did not")


def _rows(uncached: int, output: int) -> dict[Cell, int]:
    """A grid of prices, as vendors' price lists have them: multiples of two prices, in three lanes."""
    every = {
        "uncached": Fraction(1),
        "read_automatic": Fraction(1, 10),
        **{f"read_{name}": Fraction(1, 10) for name in LEASE_CLASSES},
        "write_5m": Fraction(5, 4),
        "write_30m": Fraction(3, 2),
        "write_1h": Fraction(2),
        "write_12h": Fraction(3),
        "write_24h": Fraction(4),
    }
    rows: dict[Cell, int] = {}
    for lane, factor in ((EVERY_LANE, Fraction(1)), ("batch", Fraction(1, 2)), ("interactive", Fraction(3, 2))):
        rows |= {(meter, lane, 0): times(uncached, share * factor, meter) for meter, share in every.items()}
        rows["output", lane, 0] = times(output, factor, "output")
    return rows

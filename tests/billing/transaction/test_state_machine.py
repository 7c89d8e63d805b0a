"""Money, holds, budgets, settlement and periods against a model so simple that it is plainly right, under any order of
events, crashes between them, over the ends of months and where clocks are changed.

`make test-long` is the run of 100,000 steps: half of them on each database.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from types import ModuleType
from typing import Any, ClassVar, TypeVar, cast
from unittest.mock import patch
from uuid import UUID

import aiosqlite
import msgspec
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import case, func, literal, select

from billing.accounts import adjustments, balances
from billing.accounts.adjustments import InvalidAdjustment, adjust
from billing.accounts.balances import settle_payment
from billing.accounts.budgets import BudgetSettings
from billing.budgets.windows import Span
from billing.calendar import following_period, period_bounds, period_of
from billing.holds.records import Hold, HoldRequest
from billing.invoices.advances import top_ups
from billing.invoices.parties.parties import Prepayment
from billing.invoices.parties.store import Parties
from billing.ledger.wallet import PAID_PRIORITY, PROMO_PRIORITY, RefundRefused
from billing.payments.credit import TakenByBank, take_for_bank
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.reservation import hold_service
from billing.reservation.allowances import Allowance
from billing.reservation.decisions import HoldEnded, InsufficientFunds
from billing.reservation.hold_service import ALLOWANCE_OPEN_US, HoldService
from billing.settlement import settlement
from billing.settlement.settlement import settle
from billing.tables.invoices import invoice
from billing.tables.money import ledger_entry, usage_event
from billing.transaction.money_transaction import Grant
from billing.transaction.opening import money_transaction, recorded_money_transaction
from billing.usage import Release, SpoolRecord, Usage, UsageEvent
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.billing.invoices.documents import BUYER, SELLER
from tests.billing.machine_parts import ACTIONS, Crash, Fragile, Tally, action
from tests.billing.money import PRICES, Tenant
from tests.billing.money_model import Aside, Money, Pot, Request, Window

T = TypeVar("T")

TOKEN = 10**10  # pico-units of one uncached token: a cent, so that credit can have VAT in advance
DEAR = dict.fromkeys(PRICES, "10000") | {"read_automatic": "1", "read_5m": "1", "read_1h": "1"}
"""Prices per million tokens."""
NEW_YEAR = 1_798_761_600_000_000  # 2027-01-01; the machine starts an hour before

DAY = 86_400_000_000
HOUR = 3_600_000_000
STARTS = {
    "the year ends": NEW_YEAR - HOUR,
    "clocks go forward in Europe": 1_806_195_600_000_000 - HOUR,
    "clocks go back in America": 1_825_567_200_000_000 - HOUR,
    "a leap day begins": 1_835_395_200_000_000 - HOUR,
}
"""UTC knows of none of these but the first and the last."""
STEPS = int(os.environ.get("TURNPIKE_MACHINE_STEPS", "300"))
FEW = 1000
"""Steps in which not everything need have happened."""
LIFE = 50
"""Steps of one tenant."""
ROUND = 30
"""Tenants who share a database: an audit looks at all of them."""
AUDIT = 6
"""After so many tenants each."""

MODELS = ("stdlib-qa", "other")
CENT = TOKEN
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")

amounts = st.integers(0, 12).map(lambda tokens: tokens * TOKEN)
models = st.sampled_from(MODELS)
crashes = st.none() | st.integers(0, 12)
"""At which of the books' calls the process ends first, if it does."""


class MoneyMachine(RuleBasedStateMachine):
    database: ClassVar[Database]
    loop: ClassVar[asyncio.AbstractEventLoop]
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.now = NEW_YEAR - HOUR
        self.tick(0)
        self.tenant = self.run(Tenant.rich(self.database, 0, MODELS[0], DEAR))
        other = self.run(Tenant.rich(self.database, 0, MODELS[1], DEAR))
        self.of = {MODELS[0]: self.tenant, MODELS[1]: msgspec.structs.replace(self.tenant, version=other.version)}
        """The tenant with the prices of each model."""
        self.holds = HoldService(self.database)
        self.catalog = PriceCatalog(self.database)
        self.balances = top_ups(self.database)
        self.parties = Parties(self.database)
        self.seller = msgspec.structs.replace(
            SELLER, id=f"s-{self.tenant.id.hex}", currency="USD", prepayment="advance"
        )
        """Its own: numbers of documents go on, and the clocks of tenants do not."""
        self.budgets = BudgetSettings(self.database)
        self.periods = Periods(self.database)
        self.money = Money(lambda: self.now)
        self.records: list[SpoolRecord] = []
        self.limits: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        """Limits, those that were taken away too: they bind what was admitted under them."""
        self.closed: set[str] = set()
        self.allowances: dict[UUID, Allowance] = {}
        self.adjusted: dict[UUID, str] = {}
        """Corrections, and the periods that they were booked in."""
        self.bounded = True
        """Nothing has happened yet after which less than nothing may be available."""
        self.highest_line = 0
        self.disputed = 0
        """What the bank has taken and not given back."""
        self.was_disputed = False

    @initialize(start=st.sampled_from(sorted(STARTS)))
    def begin(self, start: str) -> None:
        """Where others have been before: what they closed, perhaps later than this, stays closed."""
        self.now = STARTS[start]
        self.tick(0)
        self.run(self.parties.set_seller(self.seller))
        self.run(self.parties.set_buyer(self.tenant.id, msgspec.structs.replace(GERMAN, seller=self.seller.id)))
        self.closed = {p.period for p in self.run(self.periods.list()) if p.state == "closed"}
        self.put_in(20 * TOKEN, "paid", None)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.data = data
        chosen = data.draw(st.sampled_from([one for one in ACTIONS if one.when(self)]))
        self.tally.done[chosen.name] += 1
        getattr(self, chosen.name)(**{name: data.draw(drawn, name) for name, drawn in chosen.arguments.items()})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def tick(self, seconds: int) -> None:
        self.now += seconds * 1_000_000
        self.database.clock = literal(self.now, Count())

    @property
    def windows(self) -> list[Window]:
        """The windows that are in force now."""
        starts = {"day": self.now - self.now % DAY, "month": period_bounds(period_of(self.now))[0], "total": 0}
        return [(name, starts[name]) for name in self.limits]

    @property
    def all(self) -> list[Request]:
        return list(self.money.requests.values())

    # ------------------------------------------------------------ money in and out

    def put_in(
        self, amount: int, kind: str, expires_at: int | None, calls: int | None = None, model: str | None = None
    ) -> None:
        identity = new_id()

        async def grant() -> None:
            await self.balances.grant(
                self.tenant.id, amount, "USD", kind=kind, grant_id=identity, expires_at=expires_at, model=model
            )

        self.crashing_first(balances, grant, calls)
        priority = PAID_PRIORITY if kind == "paid" else PROMO_PRIORITY
        unit = CENT if kind == "paid" and self.seller.prepayment == "advance" else 1
        self.money.put_in(Pot(identity, kind, priority, expires_at, amount, model=model, unit=unit))

    @action(
        1,
        amount=amounts.filter(bool),
        kind=st.sampled_from(["paid", "promo"]),
        days=st.none() | st.integers(1, 60),
        calls=crashes,
    )
    def put_money_in(self, amount: int, kind: str, days: int | None, calls: int | None) -> None:
        self.put_in(amount, kind, None if days is None else self.now + days * DAY, calls)

    @action(1, rate=st.sampled_from([700, 1600, 1900, 2100]), prepayment=st.sampled_from(["advance", "multi_purpose"]))
    def change_the_tax(self, rate: int, prepayment: Prepayment) -> None:
        """Of what is paid from now on."""
        self.seller = msgspec.structs.replace(self.seller, rates={"DE": rate}, prepayment=prepayment)
        self.run(self.parties.set_seller(self.seller, reason="a law"))

    @action(1, amount=amounts.filter(bool), model=models, calls=crashes)
    def give_for_a_model(self, amount: int, model: str, calls: int | None) -> None:
        self.put_in(amount, "promo", None, calls, model)

    @action(1, amount=amounts.filter(bool), calls=crashes)
    def pay_back(self, amount: int, calls: int | None) -> None:
        identity = new_id()

        async def refund() -> None:
            await self.balances.refund(self.tenant.id, amount, "USD", refund_id=identity)

        if amount > self.money.refundable:
            with pytest.raises(RefundRefused) as refused:
                self.run(refund())
            assert refused.value.refundable_pico == self.money.refundable
        else:
            self.crashing_first(balances, refund, calls)
            self.money.refund(amount)

    @action(1, lambda self: self.paid_pots(), cents=st.integers(1, 15))
    def take_back_what_was_paid(self, cents: int) -> None:
        """A dispute: the payer's bank takes money with its VAT, told twice."""
        pot, identity = self.data.draw(st.sampled_from(self.paid_pots())), new_id()

        async def take() -> TakenByBank:
            async with self.database.transaction() as session:
                return await take_for_bank(
                    self.database, session, identity, self.tenant.id, pot.id, cents, "USD", "a dispute"
                )

        taken = self.run(take())
        assert taken.left // CENT + taken.used // CENT + taken.vat <= cents
        assert (taken.left, taken.used) == self.money.charge_back(pot, taken.left + taken.used)
        assert taken.left + taken.used or not pot.left // pot.unit + pot.used or pot.unit > 1
        assert self.run(take()) == TakenByBank() or not (taken.left or taken.used)
        self.disputed += taken.used
        self.bounded = self.bounded and not (taken.left or taken.used)
        self.was_disputed = self.was_disputed or not self.bounded

    @action(1, lambda self: self.disputed)
    def win_the_dispute(self) -> None:
        """What had been used pays what is owed again, told twice."""
        identity, pico = new_id(), self.disputed

        async def put_back() -> None:
            async with self.database.transaction() as session:
                won = Grant(identity, self.tenant.id, pico, "USD", "paid", "a dispute that was won")
                await settle_payment(self.database, session, won)

        self.run(put_back())
        self.run(put_back())
        self.money.put_in(Pot(identity, "paid", PAID_PRIORITY, None, pico))
        self.disputed = 0

    def paid_pots(self) -> list[Pot]:
        """Pots of which a payer's bank may take something."""
        return [pot for pot in self.money.pots if pot.kind == "paid" and pot.left + pot.used]

    @action(1)
    def take_what_has_expired(self) -> None:
        """Others' money too, who were here before."""
        taken = self.money.expire()
        assert self.run(self.balances.expire(self.now)) >= (taken > 0)

    @action(1, line=amounts)
    def set_a_credit_line(self, line: int) -> None:
        self.run(self.balances.set_credit_line(self.tenant.id, line, "USD"))
        self.bounded &= line >= self.money.line
        self.money.line = line
        self.highest_line = max(self.highest_line, line)

    # ------------------------------------------------------------ budgets

    @action(
        1, span=st.sampled_from(["day", "month", "total"]), limit=st.integers(1, 30).map(lambda tokens: tokens * TOKEN)
    )
    def limit_the_project(self, span: Span, limit: int) -> None:
        project, set_ = str(self.tenant.project_id), self.budgets.set
        self.run(set_(self.tenant.id, "project", project, span, limit_pico=limit, currency="USD"))
        self.run(set_(self.tenant.id, "key", str(self.tenant.key_id), "total", limit_pico=1, currency="USD",
                      action="notify"))  # fmt: skip
        self.limits[span] = self.latest[span] = limit

    @action(1, lambda self: self.limits)
    def take_a_limit_away(self) -> None:
        span = self.data.draw(st.sampled_from(list(self.limits)))
        found = self.run(self.budgets.list(self.tenant.id))
        (one,) = [w for w in found if w.span == span and w.scope == "project"]
        self.run(self.budgets.remove(self.tenant.id, one.budget_id))
        del self.limits[span]

    # ------------------------------------------------------------ requests

    @action(5, asked=st.lists(st.tuples(amounts, models), min_size=1, max_size=6), lifetime=st.integers(1, 100))
    def reserve(self, asked: list[tuple[int, str]], lifetime: int) -> None:
        async def together() -> list[Hold | BaseException]:
            requests = [self.of[model].request(amount, lifetime_s=lifetime) for amount, model in asked]
            return await asyncio.gather(*map(self.holds.reserve, requests), return_exceptions=True)

        for (amount, model), answer in zip(asked, self.run(together()), strict=True):
            money, budgets = self.money.for_model(model), self.money.left_in(self.windows, self.limits)
            fits = max(0, min(money, budgets))
            if isinstance(answer, Hold):
                assert amount <= fits
                assert (answer.amount_pico, answer.admitted_at) == (amount, self.now)
                assert answer.period == period_of(self.now)
                granted = min(amount, self.money.free(model))
                assert sum(answer.grants.values()) == granted
                self.money.requests[answer.request_id] = Request(answer, self.windows, granted=granted)
            else:
                assert isinstance(answer, InsufficientFunds)
                assert amount > fits
                assert answer.affordable_pico == fits
                assert (answer.budget_id is None) == (money <= budgets)
                elsewhere = sum(self.money.free(other) for other in MODELS if other != model)
                assert answer.elsewhere_pico == (elsewhere if money <= budgets else 0)

    @action(2, tokens=st.integers(1, 12), least=st.integers(1, 6), calls=crashes)
    def reserve_allowance(self, tokens: int, least: int, calls: int | None) -> None:
        """For requests to come, unless what they may cost depends on what they are for."""
        money, lifetime = self.money, self.data.draw(st.integers(1, 100))
        asked = HoldRequest.for_many(new_id(), self.tenant.id, tokens * TOKEN, lifetime, "g1")
        fits = min(tokens * TOKEN, max(0, money.spendable) // 2)
        soon = self.now + ALLOWANCE_OPEN_US
        expiring = any(pot.left and pot.expired(soon) and not pot.expired(self.now) for pot in money.pots)
        found: list[Hold | None] = []

        async def aside() -> None:
            found.append(await self.holds.reserve_allowance(asked, "USD", least * TOKEN))

        if calls is not None:
            self.crash(hold_service, aside, calls)
        if not found:
            self.run(aside())
        (hold,) = found
        if self.latest or money.restricted or expiring or fits < least * TOKEN:  # the key's budget stays
            assert hold is None
        else:
            assert hold is not None
            assert (hold.amount_pico, hold.admitted_at) == (fits, self.now)
            money.asides[hold.request_id] = Aside(hold, fits)
            self.allowances[hold.request_id] = Allowance(hold, "USD", self.now * 1000)

    @action(3, lambda self: self.allowances, amount=amounts, model=models, milliseconds=st.integers(0, 1500))
    def take_from_what_is_aside(self, amount: int, model: str, milliseconds: int) -> None:
        self.now += milliseconds * 1000
        self.tick(0)
        one = self.allowances[self.data.draw(st.sampled_from(list(self.allowances)))]
        before, request = one.free, self.of[model].request(amount)
        hold = one.take(request, self.now * 1000)
        if hold is not None:
            assert amount <= before
            assert (hold.admitted_at, hold.period) == (self.now, period_of(self.now))
            assert Hold.claimed(hold.claim) == hold
            self.money.requests[hold.request_id] = Request(hold, [], state="drawn")

    @action(1, lambda self: self.allowances)
    def take_some_of_it_back(self) -> None:
        one = self.allowances[self.data.draw(st.sampled_from(list(self.allowances)))]
        pico = self.data.draw(st.integers(0, one.free))
        one.free -= pico
        self.run(self.holds.return_allowance(self.tenant.id, one.id, pico))
        aside = self.money.asides[one.id]
        if aside.state == "open":
            aside.left -= pico

    @action(2, lambda self: [request for request in self.all if request.state != "drawn"])
    def top_up_some(self) -> None:
        """Open holds and ended ones, some twice, to more than they are and to less."""
        ordinary = [request for request in self.all if request.state != "drawn"]
        some = self.data.draw(st.lists(st.sampled_from(ordinary), min_size=1, max_size=4))
        asked = [(request, self.data.draw(amounts)) for request in some]

        async def together() -> list[Hold | BaseException]:
            wanted = (self.holds.top_up(request.hold, amount) for request, amount in asked)
            return await asyncio.gather(*wanted, return_exceptions=True)

        for (request, amount), answer in zip(asked, self.run(together()), strict=True):
            model = request.hold.model
            room = max(0, min(self.money.for_model(model), self.money.left_in(request.windows, self.latest)))
            more = amount - request.hold.amount_pico
            if request.state != "open":
                assert isinstance(answer, HoldEnded)
            elif more <= 0:
                assert answer.amount_pico == request.hold.amount_pico  # type: ignore[union-attr]
            elif more > room:
                assert isinstance(answer, InsufficientFunds)
                assert answer.affordable_pico == room
            else:
                assert isinstance(answer, Hold)
                request.granted += min(more, self.money.free(model))
                assert sum(answer.grants.values()) == request.granted
                request.hold = msgspec.structs.replace(request.hold, amount_pico=amount)
                assert answer.amount_pico == amount

    @action(5, lambda self: self.all, seconds=st.integers(0, 60), calls=crashes)
    def finish_some(self, seconds: int, calls: int | None) -> None:
        """A batch of new, repeated and contradicting records, in any order."""
        self.tick(seconds)
        batch: list[SpoolRecord] = (
            self.data.draw(st.lists(st.sampled_from(self.records), max_size=3)) if self.records else []
        )
        for request in self.data.draw(st.lists(st.sampled_from(self.all), max_size=4)):
            limit = request.hold.amount_pico // TOKEN
            if self.data.draw(st.booleans()):
                tokens = self.data.draw(st.integers(0, limit))
                batch.append(self.of[request.hold.model].event(request.hold, Usage(uncached=tokens)))
            else:
                batch.append(Release(request.hold.request_id, "rejected"))
        if self.allowances and self.data.draw(st.booleans()):
            aside = self.data.draw(st.sampled_from(list(self.allowances)))
            batch.append(Release(aside, "not needed any more", aside))
        batch = self.data.draw(st.permutations(batch))

        async def finish() -> None:
            await settle(self.database, self.catalog, batch)

        self.crashing_first(settlement, finish, calls)
        self.records += batch
        costs: dict[tuple[str, int, str], int] = defaultdict(int)
        for record in batch:
            if isinstance(record, UsageEvent):
                request = self.money.requests[record.id]
                if request.cost is None:
                    request.cost = record.cost_pico
                    request.tokens = record.usage.uncached
                    request.booked = self.booked_in(request.hold.period)
                    costs[request.booked, -record.admitted_at, record.model] += record.cost_pico
                    if request.state == "drawn":
                        self.spend(request)
                    elif request.state == "open":
                        request.state = "settled"
                    else:
                        request.late = True
                    self.bounded &= not request.late
        for record in batch:  # an event outweighs a release in the same batch
            if isinstance(record, Release):
                ended = (self.money.requests | self.money.asides)[record.request_id]
                if ended.state == "open":
                    ended.state = "released"
        for (period, earlier, model), cost in sorted(costs.items()):
            self.money.pay(model, cost, period, -earlier)

    def spend(self, request: Request) -> None:
        """Of what was set aside, as far as it is there."""
        cost, one = request.cost or 0, cast(UUID, request.hold.allowance)
        self.allowances[one].end(request.hold.request_id, cost)
        aside = self.money.asides[one]
        if aside.state == "open":
            assert cost <= aside.left
            aside.left -= cost
        else:
            request.late = True

    @action(1, seconds=st.integers(0, 100))
    def expire(self, seconds: int) -> None:
        self.tick(seconds)
        everyone = [*self.all, *self.money.asides.values()]
        due = [one for one in everyone if one.state == "open" and one.hold.expires_at <= self.now]
        assert self.run(self.holds.sweep()) == len(due)
        for request in due:
            request.state = "expired"

    @action(2, lambda self: self.money.events(), tokens=st.integers(-6, 6).filter(bool), calls=crashes)
    def correct_one(self, tokens: int, calls: int | None) -> None:
        request = self.data.draw(st.sampled_from(list(self.money.events())))
        identity = new_id()

        async def correct() -> None:
            await adjust(self.database, self.catalog, self.tenant.id, request.hold.request_id, {"uncached": tokens},
                         reason="r", adjustment_id=identity)  # fmt: skip

        paid = copy.deepcopy(self.money)
        if tokens > 0:
            paid.pay(request.hold.model, tokens * TOKEN, request.booked, self.now)
        if request.tokens + tokens < 0 or (tokens > 0 and paid.spendable < min(0, self.money.spendable)):
            with pytest.raises(InvalidAdjustment):
                self.run(correct())
            return
        self.crashing_first(adjustments, correct, calls)
        self.run(correct())  # told again, it counts once
        self.adjusted[identity] = self.booked_in(request.booked)
        request.tokens += tokens
        request.cost = (request.cost or 0) + tokens * TOKEN
        if tokens > 0:
            self.money.pay(request.hold.model, tokens * TOKEN, request.booked, self.now)
        else:
            self.money.give_back(request.hold.model, -tokens * TOKEN, request.booked)

    def crashing_first(
        self, module: ModuleType, work: Callable[[], Coroutine[Any, Any, None]], calls: int | None
    ) -> None:
        """Do it; unless `calls` is None, fail before that at one of the books' calls, after which nothing is written
        of what came before it; if there are fewer, it is done twice."""

        if calls is not None:
            self.crash(module, work, calls)
        self.run(work())

    def crash(self, module: ModuleType, work: Callable[[], Coroutine[Any, Any, None]], calls: int) -> None:
        """Do it until so many calls of the books were made, if there are more."""
        left = iter(range(calls))

        @asynccontextmanager
        async def fragile(database: Database) -> AsyncIterator[Any]:
            async with money_transaction(database) as books:
                yield Fragile(books, left)

        @asynccontextmanager
        async def fragile_recorded(database: Database) -> AsyncIterator[Any]:
            async with recorded_money_transaction(database) as (session, books):
                yield session, Fragile(books, left)

        with ExitStack() as patches, suppress(Crash):
            for name, failing in (("money_transaction", fragile), ("recorded_money_transaction", fragile_recorded)):
                if hasattr(module, name):
                    patches.enter_context(patch.object(module, name, failing))
            self.run(work())

    # ------------------------------------------------------------ periods

    def booked_in(self, period: str) -> str:
        """The period that usage of this one is booked in now."""
        if period not in self.closed:
            return period
        period = period_of(self.now)
        while period in self.closed:
            period = following_period(period)
        return period

    @action(1)
    def close_what_is_over(self) -> None:
        """Everything that is over closes, in its order, up to the first period with a request that runs."""
        running = {r.hold.period for r in (*self.all, *self.money.asides.values()) if r.state == "open"}
        for period in self.run(self.periods.close_due(0)):
            assert period.ends_at <= self.now
            assert period.period not in running | self.closed
            self.closed.add(period.period)
        waiting = [p for p in self.run(self.periods.list()) if p.state == "closing" and p.ends_at <= self.now]
        assert not waiting or waiting[0].period in running

    @action(1, days=st.integers(1, 40))
    def much_later(self, days: int) -> None:
        self.tick(days * 86_400)

    # ------------------------------------------------------------ what always holds

    @invariant()
    def the_balance_is_the_models(self) -> None:
        self.tally.steps += 1
        if self.tally.steps % 3:
            return  # nothing is forgotten: what is wrong now is wrong two steps later
        self.compare()

    def compare(self) -> None:
        balance = self.run(self.balances.get(self.tenant.id))
        if balance is None:  # nothing was begun
            return
        money = self.money
        assert (balance.available, balance.held, balance.credit_line) == (money.available, money.held, money.line)
        assert (balance.promo, balance.prepaid) == (money.of_kind("promo"), money.of_kind("paid"))
        assert (balance.receivable, balance.overdraft) == (money.owed, max(0, -money.available))
        assert balance.restricted == money.restricted
        assert balance.available >= 0 or not self.bounded
        if not self.latest:
            return
        found = {w.span: w for w in self.run(self.budgets.list(self.tenant.id)) if w.scope == "project"}
        assert {span: w.limit_pico for span, w in found.items()} == self.limits
        for window in self.windows:
            there = found[cast(Span, window[0])]
            assert there.held + there.spent == money.counted(window)
            assert there.over == max(0, there.held + there.spent - there.limit_pico)

    async def the_vat(self) -> tuple[int, int]:
        """What the ledger owes to the state, and what the documents of payments and refunds say, in pico-units."""
        entry, tenant = ledger_entry.c, self.tenant.id
        sums = case((entry.credit == "tax", entry.amount_pico), (entry.debit == "tax", -entry.amount_pico), else_=0)
        signed = case((invoice.c.kind == "advance", invoice.c.tax), else_=-invoice.c.tax)
        async with self.database.reading() as session:
            posted = await session.scalar(select(func.coalesce(func.sum(sums), 0)).where(entry.tenant_id == tenant))
            said = await session.scalar(select(func.coalesce(func.sum(signed), 0)).where(invoice.c.tenant_id == tenant))
        return int(posted or 0), int(said or 0) * CENT

    def teardown(self) -> None:
        self.compare()
        posted, said = self.run(self.the_vat())
        assert posted == said
        assert posted >= 0
        grants = self.run(self.balances.grants(self.tenant.id))
        left = {one.id: (one.remaining, one.used) for one in grants if one.model is None}
        assert left == {pot.id: (pot.left, pot.used) for pot in self.money.pots if pot.model is None}
        for model in MODELS:
            assert sum(one.free for one in grants if one.model == model) == self.money.free(model)
        for one in (*self.all, *self.money.asides.values()):
            hold = self.run(self.holds.get(one.hold.request_id))
            assert (hold.state if hold else "settled") == one.state.replace("drawn", "settled")
        booked = {r.hold.request_id: r.booked for r in self.money.events()}
        assert self.run(self.booked()) == booked | self.adjusted
        self.tick(10**6)
        self.run(self.holds.sweep())
        self.tally.tenants += 1
        if self.money.available + self.money.held < 0:  # all holds have ended
            assert not self.bounded
            self.tally.overdrawn.add(self.tenant.id)
            unexplained = self.money.available + self.money.held + self.highest_line < self.money.line
            if unexplained and not self.was_disputed:
                self.tally.unexplained.add(self.tenant.id)
        if self.tally.tenants % AUDIT == 0:
            self.run(self.tally.check_books(self.database))

    async def booked(self) -> dict[UUID, str]:
        """The period of each event there is."""
        async with self.database.reading() as session:
            rows = await session.execute(
                select(usage_event.c.id, usage_event.c.period).where(usage_event.c.tenant_id == self.tenant.id)
            )
            return {row.id: row.period for row in rows}


@pytest.fixture
def large_allowances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is available may be set aside, so that it matters here."""
    monkeypatch.setattr(hold_service, "_ALLOWANCE_PART", 2)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite in the thread of the loop: a step calls it a hundred times, and handing that over takes longer."""

    async def at_once(_connection: object, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return call(*arguments, **named)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", at_once)


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads", "large_allowances")
def test_money_behaves_like_its_model(empty_again: Callable[[], str], capsys: pytest.CaptureFixture[str]) -> None:
    """In rounds, each on a database without rows."""
    loop, tally = uvloop.new_event_loop(), Tally()
    begun = time.monotonic()
    try:
        while tally.steps < STEPS:
            database = loop.run_until_complete(Database.open(empty_again()))
            try:
                machine = type("Here", (MoneyMachine,), {"database": database, "loop": loop, "tally": tally})
                few = min(ROUND, -(-(STEPS - tally.steps) // LIFE))
                calm = settings(
                    max_examples=few,
                    stateful_step_count=LIFE,
                    phases=[Phase.generate],  # shrinking would outlast the test's time
                    database=None,
                    deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
                )
                run_state_machine_as_test(machine, settings=calm)
                loop.run_until_complete(tally.check_books(database))
                tally.overdrawn.clear()
                tally.unexplained.clear()
            finally:
                loop.run_until_complete(database.close())
            if STEPS >= FEW:
                with capsys.disabled():
                    said = f"{tally.steps} steps, {tally.tenants} tenants, {time.monotonic() - begun:.0f} s"
                    print(said, dict(tally.done), flush=True)  # noqa: T201  # a run of minutes
        assert STEPS < FEW or all(tally.done[one.name] for one in ACTIONS)
    finally:
        loop.close()

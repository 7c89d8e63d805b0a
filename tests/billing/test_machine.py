"""Holds, settlement and periods against a model so simple that it is plainly right, under any order of events, crashes
between them, over the ends of months and where clocks are changed. `make test-long` takes 100,000 steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, TypeVar, cast
from unittest.mock import patch
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import literal, select

from billing import settlement
from billing.audit.checks import check
from billing.balances import Balances
from billing.budgets.setting import Budgets
from billing.budgets.windows import Span
from billing.holds.decisions import HoldEnded, InsufficientFunds
from billing.holds.records import Hold
from billing.holds.reserving import Holds
from billing.open_books import opened
from billing.periods import Periods, following
from billing.prices import PriceBook
from billing.settlement import settle
from billing.tables.money import usage_event
from billing.usage import Release, Settlement, Usage, UsageEvent, period_of
from storage.base import Count
from storage.database import Database
from tests.billing.money import Tenant

T = TypeVar("T")

TOKEN = 400_000  # pico-units of one uncached token
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

amounts = st.integers(0, 12).map(lambda tokens: tokens * TOKEN)


class Crash(Exception):
    """The end of the process, as far as its transaction is concerned."""


class Fragile:
    """Books that work for so many calls."""

    def __init__(self, books: Any, left: Iterator[int]) -> None:
        self._books = books
        self._left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._books, name)
        if not callable(found):
            return Fragile(found, self._left)

        async def call(*arguments: Any) -> Any:
            if next(self._left, None) is None:
                raise Crash
            return await found(*arguments)

        return call


class Request(msgspec.Struct):
    """What the model knows of one request."""

    hold: Hold
    windows: list[tuple[str, int]]
    """The budgets that it was admitted under, each with the window's first instant."""
    state: str = "open"
    cost: int | None = None
    booked: str = ""
    """The billing period of its event."""


class Money(RuleBasedStateMachine):
    url: ClassVar[str]
    loop: ClassVar[asyncio.AbstractEventLoop]

    def __init__(self) -> None:
        super().__init__()
        self.now = NEW_YEAR - 3_600_000_000
        self.database = self.run(Database.open(self.url))
        self.tick(0)
        self.tenant = self.run(Tenant.rich(self.database, 20 * TOKEN))
        self.holds = Holds(self.database)
        self.book = PriceBook(self.database)
        self.credit = 20 * TOKEN
        self.requests: dict[UUID, Request] = {}
        self.records: list[Settlement] = []
        self.limits: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        """Limits, those that were taken away too: they bind what was admitted under them."""
        self.periods = Periods(self.database)
        self.closed: set[str] = set()

    @initialize(start=st.sampled_from(sorted(STARTS)))
    def begin(self, start: str) -> None:
        """Where others have been before: what they closed, perhaps later than this, stays closed."""
        self.now = STARTS[start]
        self.tick(0)
        self.closed = {p.period for p in self.run(self.periods.known()) if p.state == "closed"}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def tick(self, seconds: int) -> None:
        self.now += seconds * 1_000_000
        self.database.clock = literal(self.now, Count())

    def used(self, window: tuple[str, int] | None = None) -> int:
        """What was spent and is held, in all or in one window of a budget."""
        some = [request for request in self.requests.values() if window is None or window in request.windows]
        return sum((r.cost or 0) + (r.hold.amount_pico if r.state == "open" else 0) for r in some)

    @property
    def available(self) -> int:
        return self.credit - self.used()

    @property
    def windows(self) -> list[tuple[str, int]]:
        """The windows that are in force now."""
        day = self.now - self.now % DAY
        return [(name, day if name == "day" else 0) for name in self.limits]

    @property
    def affordable(self) -> int:
        """What fits into the balance and every budget."""
        return min([self.available, *(self.limits[name] - self.used((name, at)) for name, at in self.windows)])

    @rule(span=st.sampled_from(["day", "total"]), limit=st.integers(1, 30).map(lambda tokens: tokens * TOKEN))
    def limit_the_project(self, span: Span, limit: int) -> None:
        project = str(self.tenant.project_id)
        budgets = Budgets(self.database)
        self.run(budgets.set(self.tenant.id, "project", project, span, limit_pico=limit, currency="USD"))
        self.run(budgets.set(self.tenant.id, "key", str(self.tenant.key_id), "total", limit_pico=1, currency="USD",
                             action="notify"))  # fmt: skip
        self.limits[span] = self.latest[span] = limit

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def take_a_limit_away(self, data: st.DataObject) -> None:
        span = data.draw(st.sampled_from(list(self.limits)))
        budgets = Budgets(self.database)
        (found,) = [w for w in self.run(budgets.list(self.tenant.id)) if w.span == span and w.scope == "project"]
        self.run(budgets.remove(self.tenant.id, found.budget_id))
        del self.limits[span]

    @rule(amount=amounts.filter(bool), kind=st.sampled_from(["paid", "promo"]))
    def put_money_in(self, amount: int, kind: str) -> None:
        self.run(Balances(self.database).grant(self.tenant.id, amount, "USD", kind=kind))
        self.credit += amount

    @rule(asked=st.lists(amounts, min_size=1, max_size=6), lifetime=st.integers(1, 100))
    def reserve(self, asked: list[int], lifetime: int) -> None:
        async def together() -> list[Hold | BaseException]:
            requests = [self.tenant.request(amount, lifetime_s=lifetime) for amount in asked]
            return await asyncio.gather(*map(self.holds.reserve, requests), return_exceptions=True)

        for amount, answer in zip(asked, self.run(together()), strict=True):
            if isinstance(answer, Hold):
                assert amount <= self.affordable
                assert (answer.amount_pico, answer.admitted_at, answer.period) == (
                    amount,
                    self.now,
                    period_of(self.now),
                )
                self.requests[answer.request_id] = Request(answer, self.windows)
            else:
                assert isinstance(answer, InsufficientFunds)
                assert amount > self.affordable
                assert answer.affordable_pico == max(0, self.affordable)
                assert (answer.budget_id is None) == (self.affordable == self.available)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def top_up_some(self, data: st.DataObject) -> None:
        """Open holds and ended ones, some twice, to more than they are and to less."""
        some = data.draw(st.lists(st.sampled_from(list(self.requests.values())), min_size=1, max_size=4))
        asked = [(request, data.draw(amounts)) for request in some]

        async def together() -> list[Hold | BaseException]:
            wanted = (self.holds.top_up(request.hold.request_id, amount) for request, amount in asked)
            return await asyncio.gather(*wanted, return_exceptions=True)

        for (request, amount), answer in zip(asked, self.run(together()), strict=True):
            left = [self.latest[name] - self.used((name, at)) for name, at in request.windows]
            room = min([self.available, *left])
            more = amount - request.hold.amount_pico
            if request.state != "open":
                assert isinstance(answer, HoldEnded)
            elif more <= 0:
                assert answer.amount_pico == request.hold.amount_pico  # type: ignore[union-attr]
            elif more > room:
                assert isinstance(answer, InsufficientFunds)
                assert answer.affordable_pico == max(0, room)
            else:
                assert isinstance(answer, Hold)
                request.hold = msgspec.structs.replace(request.hold, amount_pico=amount)
                assert answer.amount_pico == amount

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), seconds=st.integers(0, 60))
    def finish_some(self, data: st.DataObject, seconds: int) -> None:
        """A batch of new, repeated and contradicting records, in any order."""
        self.tick(seconds)
        batch: list[Settlement] = data.draw(st.lists(st.sampled_from(self.records), max_size=3)) if self.records else []
        for request in data.draw(st.lists(st.sampled_from(list(self.requests.values())), max_size=4)):
            limit = request.hold.amount_pico // TOKEN
            if data.draw(st.booleans()):
                tokens = data.draw(st.integers(0, limit))
                batch.append(self.tenant.event(request.hold, Usage(uncached=tokens)))
            else:
                batch.append(Release(request.hold.request_id, "rejected"))
        batch = data.draw(st.permutations(batch))
        if data.draw(st.booleans()):
            self.run(self.crash_while_settling(batch, data.draw(st.integers(0, 12))))
        self.run(settle(self.database, self.book, batch))
        self.records += batch
        for record in batch:
            if isinstance(record, UsageEvent):
                request = self.requests[record.id]
                if request.cost is None:
                    request.cost = record.cost_pico
                    request.booked = self.booked_in(request.hold.period)
                    if request.state == "open":
                        request.state = "settled"
        for record in batch:  # an event outweighs a release in the same batch
            if isinstance(record, Release) and self.requests[record.request_id].state == "open":
                self.requests[record.request_id].state = "released"

    @rule(seconds=st.integers(0, 100))
    def expire(self, seconds: int) -> None:
        self.tick(seconds)
        due = [r for r in self.requests.values() if r.state == "open" and r.hold.expires_at <= self.now]
        assert self.run(self.holds.sweep()) == len(due)
        for request in due:
            request.state = "expired"

    def booked_in(self, period: str) -> str:
        """The period that usage of this one is booked in now."""
        if period not in self.closed:
            return period
        period = period_of(self.now)
        while period in self.closed:
            period = following(period)
        return period

    async def crash_while_settling(self, batch: list[Settlement], calls: int) -> None:
        """Fail at one of the books' calls: nothing is written of what came before it."""
        left = iter(range(calls))

        @asynccontextmanager
        async def fragile(database: Database) -> AsyncIterator[Any]:
            async with opened(database) as books:
                yield Fragile(books, left)

        with patch.object(settlement, "opened", fragile), suppress(Crash):
            await settle(self.database, self.book, batch)

    @rule()
    def close_what_is_over(self) -> None:
        """Everything that is over closes, in its order, up to the first period with a request that runs."""
        running = {r.hold.period for r in self.requests.values() if r.state == "open"}
        for period in self.run(self.periods.close_due(0)):
            assert period.ends_at <= self.now
            assert period.period not in running | self.closed
            self.closed.add(period.period)
        waiting = [p for p in self.run(self.periods.known()) if p.state == "closing" and p.ends_at <= self.now]
        assert not waiting or waiting[0].period in running

    @rule(days=st.integers(1, 40))
    def much_later(self, days: int) -> None:
        self.tick(days * 86_400)

    @invariant()
    def balance_is_grants_less_costs_less_open_holds(self) -> None:
        balance = self.run(Balances(self.database).get(self.tenant.id))
        assert balance is not None
        assert (balance.credit, balance.available) == (self.credit, self.available)
        assert balance.overdraft == max(0, -self.available)
        late = any(r.state in ("expired", "released") and r.cost for r in self.requests.values())
        assert balance.available >= 0 or late

    @invariant()
    def budgets_are_what_their_requests_add_up_to(self) -> None:
        found = {w.span: w for w in self.run(Budgets(self.database).list(self.tenant.id)) if w.scope == "project"}
        assert {span: w.limit_pico for span, w in found.items()} == self.limits
        for window in self.windows:
            there = found[cast(Span, window[0])]
            assert there.held + there.spent == self.used(window)
            assert there.over == max(0, there.held + there.spent - there.limit_pico)

    def teardown(self) -> None:
        try:
            for request in self.requests.values():
                hold = self.run(self.holds.get(request.hold.request_id))
                assert (hold.state if hold else "settled") == request.state
            assert self.run(self.booked()) == {i: r.booked for i, r in self.requests.items() if r.cost is not None}
            self.tick(10**6)
            self.run(self.holds.sweep())
            assert self.run(check(self.database)) == []
        finally:
            self.run(self.database.close())

    async def booked(self) -> dict[UUID, str]:
        """The period of each event there is."""
        async with self.database.reading() as session:
            rows = await session.execute(
                select(usage_event.c.id, usage_event.c.period).where(usage_event.c.tenant_id == self.tenant.id)
            )
            return {row.id: row.period for row in rows}


@pytest.mark.slow
def test_money_behaves_like_its_model(database_url: str) -> None:
    machine = type("MoneyHere", (Money,), {"url": database_url, "loop": asyncio.new_event_loop()})
    calm = settings(
        max_examples=max(1, STEPS // 25),
        stateful_step_count=25,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would outlast the test's time
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    try:
        run_state_machine_as_test(machine, settings=calm)
    finally:
        machine.loop.close()  # type: ignore[attr-defined]

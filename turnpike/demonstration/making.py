"""Makes a demonstration: the acts and the requests of the last whole month and of this one, in the order of time."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from audit_log.actors import Actor, acting_as
from audit_log.anchors import anchor_chains
from billing.calendar import period_bounds, period_of
from prompt_cache.history.store import History
from prompt_cache.promise.lease_store import LeaseStore
from turnpike.admin_services import AdminServices, open_admin_services
from turnpike.demonstration.cast import NORDLICHT, VISITOR
from turnpike.demonstration.deliveries import add_endpoints, order_exports, past_dispatcher
from turnpike.demonstration.office import Office, OwnPrices
from turnpike.demonstration.past import DAY, HOUR, SECOND, Past, in_the_past
from turnpike.demonstration.payments import PastPayments, open_past_payments
from turnpike.demonstration.people import Population, set_up
from turnpike.demonstration.requests import Done, PastRequests, PayerName, open_past_requests
from turnpike.demonstration.traffic import Ask, asked_in, asked_lately
from turnpike.settings.settings import Settings

_TOGETHER = 15 * SECOND
"""Requests that come within so long are admitted together."""
_UPKEEP = 6 * HOUR
Progress: TypeAlias = Callable[[int, int, int], None]
"""Told the requests so far, and of how many seconds of the past how many are made."""
Act: TypeAlias = Callable[[], Awaitable[None]]


class Months(Struct, frozen=True):
    """What is made, in microseconds since the Unix epoch: the last whole month from `first` to `this`, and this month
    until `now`; requests come in the last `days` days of each."""

    first: int
    this: int
    now: int
    days: int

    @classmethod
    def until(cls, now: int, days: int) -> Months:
        """The last whole month and this one."""
        this = period_bounds(period_of(now))[0]
        return cls(period_bounds(period_of(this - 1))[0], this, now, days)

    @property
    def billed(self) -> str:
        """The month that is billed."""
        return period_of(self.first)

    @property
    def pause(self) -> int:
        """How long one person waits for another."""
        return min(HOUR, (self.now - self.this) // 60)

    def spans(self) -> tuple[tuple[int, int], ...]:
        """When requests come: from, until."""
        return tuple((max(start, end - self.days * DAY), end) for start, end in self._months())

    def part(self, hundredths: int, most: int) -> int:
        """An instant of this month: so many hundredths of what is over of it, but at most `most` after its begin."""
        return self.this + min(most, (self.now - self.this) * hundredths // 100)

    def _months(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.first, self.this), (self.this, self.now)


async def make(
    settings: Settings, seed: int, months: Months, own_prices: OwnPrices, progress: Progress
) -> tuple[Done, str]:
    """Make the demonstration in an empty data folder; how many requests ran, and the visitor's key."""
    async with open_admin_services(settings, "always") as admin:
        await admin.authenticator.start()  # it hears of the key that is rotated, which is used at once
        with in_the_past(admin) as past, acting_as(Actor("command", "turnpike demo", "turnpike demo")):
            past.move_to(months.first - 4 * DAY)
            population = await set_up(admin, past)
            timed_from = months.now - int(settings.waterfall_keep_days * DAY)
            async with (
                open_past_requests(admin, timed_from) as requests,
                open_past_payments(admin, past, population) as payments,
            ):
                office = Office(admin, past, population, own_prices, months.pause)
                making = _Making(
                    admin, past, population, requests=requests, months=months, office=office, payments=payments
                )
                done = await making.run(seed, progress)
            visitor = next(key for (customer, _, _), key in population.keys.items() if customer == VISITOR.name)
            return done, visitor


class _Making:
    def __init__(
        self,
        admin: AdminServices,
        past: Past,
        population: Population,
        *,
        requests: PastRequests,
        months: Months,
        office: Office,
        payments: PastPayments,
    ) -> None:
        self._admin = admin
        self._past = past
        self._all = population
        self._requests = requests
        self._months = months
        self._office = office
        self._payments = payments
        self._dispatcher = past_dispatcher(admin)
        self._leases = LeaseStore(admin.database)
        self._used: set[PayerName] = set()
        self._suspended_from = months.first + 20 * DAY

    async def run(self, seed: int, progress: Progress) -> Done:
        """All of it."""
        asks = [ask for start, end in self._months.spans() for ask in asked_in(seed, start, end)]
        asks += asked_lately(seed, self._months.now)
        asks = sorted((ask for ask in asks if not self._is_suspended(ask)), key=lambda ask: ask.at)
        acts = sorted(self._acts(), key=lambda act: act[0])
        done, last_upkeep = Done(), 0
        for batch in _batches(asks):
            while acts and acts[0][0] <= batch[0].at:
                await self._act(*acts.pop(0))
            self._past.move_to(batch[0].at)
            self._used |= {(ask.program.customer, ask.program.project, ask.program.key) for ask in batch}
            done += await self._requests.run(self._all.payers, batch)
            if self._past.now - last_upkeep > _UPKEEP:
                await self._keep_up()
                last_upkeep = self._past.now
                progress(done.ran, (last_upkeep - self._months.first) // SECOND, self._seconds)
        for act in acts:
            await self._act(*act)
        self._past.move_to(self._months.now)
        await self._keep_up()
        await anchor_chains(self._admin.database)
        while await History(self._admin.database).forget_old():
            pass
        return done

    @property
    def _seconds(self) -> int:
        return (self._months.now - self._months.first) // SECOND

    def _is_suspended(self, ask: Ask) -> bool:
        prototype = (ask.program.customer, ask.program.project) == (NORDLICHT.name, "prototype")
        return prototype and ask.at >= self._suspended_from

    def _acts(self) -> Iterator[tuple[int, Act]]:
        """What people do, and when."""
        office, months, first, payments = self._office, self._months, self._months.first, self._payments
        yield first - 3 * DAY, office.open_shop
        yield first - 2 * DAY, office.set_bounds
        yield first - 2 * DAY + HOUR, office.greet_visitor
        yield first - DAY, lambda: add_endpoints(self._admin, self._all)
        yield first - 20 * HOUR, payments.connect
        yield first + 8 * DAY + 9 * HOUR, office.change_keys
        yield first + 12 * DAY + 10 * HOUR, office.top_up
        yield first + 14 * DAY, payments.top_up
        yield first + 15 * DAY, office.lower_prices
        yield self._suspended_from, office.suspend_prototype
        yield months.part(20, 27 * HOUR), lambda: office.bill(months.billed)
        yield months.part(30, 2 * DAY), payments.charge_by_itself
        yield months.part(45, 4 * DAY), lambda: office.credit_some(months.billed)
        yield months.part(60, 9 * DAY), lambda: office.be_paid(months.billed)
        yield months.part(65, 10 * DAY), lambda: payments.import_bank(months.billed)
        yield months.part(70, 11 * DAY), payments.dispute
        yield months.now - 6 * months.pause, payments.be_declined
        yield months.now - 5 * months.pause, office.invite
        yield months.now - 4 * months.pause, office.wait_for_approval
        yield months.now - 3 * months.pause, self._order_exports
        yield months.now - 2 * months.pause, payments.remind
        yield months.now - months.pause, payments.compare

    async def _order_exports(self) -> None:
        await order_exports(self._admin, self._all, self._past, self._months.billed)

    async def _act(self, at: int, act: Act) -> None:
        await self._requests.record()
        self._past.move_to(at)
        await act()
        await self._payments.work()
        await self._deliver()

    async def _keep_up(self) -> None:
        """What a worker does, and the times at which keys were used."""
        for name in sorted(self._used):
            await self._admin.authenticator.authenticate(self._all.keys[name])
        self._used.clear()
        await self._admin.authenticator.close()
        with acting_as(Actor("system", "worker/sweep", "turnpike worker")):
            await self._admin.holds.sweep()
            await self._admin.balances.expire()
            while await self._leases.reclaim():
                pass
            await self._leases.forget(self._past.now - DAY)  # as the worker does; none of its storage has a price
        self._requests.forget(self._past.now)
        await self._deliver()

    async def _deliver(self) -> None:
        with acting_as(Actor("system", "worker/webhooks", "turnpike worker")):
            for _ in range(20):
                if not await self._dispatcher.run():
                    return


def _batches(asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Requests that come nearly together, each program's one after another."""
    for _, close in itertools.groupby(asks, key=lambda ask: ask.at // _TOGETHER):
        batch: list[Ask] = []
        for ask in close:
            if any(other.program == ask.program for other in batch):
                yield batch
                batch = []
            batch.append(ask)
        yield batch

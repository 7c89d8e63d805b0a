"""Money that is set aside for a busy tenant: requests are admitted out of it at once, and nothing is spent twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import literal

from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.calendar import period_bounds
from billing.holds.records import Hold, HoldRequest
from billing.ledger.entries import Balance
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.reservation.allowances import Allowance, Allowances
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.settlement.settler import Settler
from billing.spool.spool import Spool
from billing.usage import Release, Usage
from billing.verification.audit import audit_money
from storage.database.base import Count, new_id
from storage.database.database import Database, DatabaseUnavailable
from tests.awake import Awake
from tests.billing.money import Tenant
from tests.fast import only_fast

TOKEN = 400_000
"""Pico-units of one uncached token."""
BOUND = 10 * TOKEN
SECOND_NS = 1_000_000_000


class Worker:
    """The part of a gateway worker that deals with money, on a clock that can be put forward, and to which a pause of
    the machine is short: an allowance is for two seconds."""

    def __init__(self, database: Database, spool: Spool, busy: int, awake: Awake) -> None:
        self.ahead_ns = 0
        self.stands = False
        """Whether the clock goes on only where it is put forward."""
        self.awake = awake
        self.holds = HoldService(database)
        self.spool = spool
        self.settler = Settler(database, spool)
        self.allowances = Allowances(
            self.holds,
            spool,
            "g1",
            busy=busy,
            settle=self.settler.settle_first,
            clock=lambda: self.ahead_ns + (0 if self.stands else self._awake_ns),
        )

    @property
    def _awake_ns(self) -> int:
        return int(self.awake.seconds * SECOND_NS)

    async def run(self, tenant: Tenant, tokens: int = 5) -> Hold:
        """A request whose usage is this, from its hold to its record."""
        hold = await self.allowances.reserve(tenant.request(BOUND))
        await self.record(tenant, hold, tokens)
        return hold

    async def record(self, tenant: Tenant, hold: Hold, tokens: int) -> None:
        event = tenant.event(hold, Usage(uncached=tokens))
        await self.spool.append(event)
        self.allowances.ended(hold, event.cost_pico)

    async def crowd(self, tenant: Tenant, count: int = 16) -> list[Hold]:
        """So many requests at once, none of which ends."""
        requests = (self.allowances.reserve(tenant.request(BOUND)) for _ in range(count))
        return await asyncio.gather(*requests)

    async def busy(self, tenant: Tenant) -> None:
        """Let there be an allowance for the tenant, and no request."""
        for hold in await self.crowd(tenant):
            await self.record(tenant, hold, 0)
        async with asyncio.timeout(30):
            while not len(self.allowances):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def worker(database: Database, folder: Path, *, busy: int = 4) -> AsyncIterator[Worker]:
    spool = Spool(folder, f"g1-{time.monotonic_ns()}")
    with Awake() as awake:
        one = Worker(database, spool, busy, awake)
        await one.settler.start()
        yield one
        await one.allowances.close()
    assert await one.settler.drain(30)
    await one.settler.stop()
    await spool.close()


def _asked(tenant: Tenant, lifetime_s: int = 600) -> HoldRequest:
    return HoldRequest.for_many(new_id(), tenant.id, 100 * BOUND, lifetime_s, "g1")


async def balance_of(database: Database, tenant: Tenant) -> Balance:
    found = await Balances(database).get(tenant.id)
    assert found is not None
    return found


async def test_a_tenant_whose_requests_come_fast_is_busy_though_they_do_not_wait_for_each_other(
    database: Database, tmp_path: Path
) -> None:
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    async with worker(database, tmp_path, busy=2) as one:
        one.stands, one.ahead_ns = True, SECOND_NS
        for _ in range(20):
            one.ahead_ns += SECOND_NS // 5
            assert (await one.run(tenant)).allowance is None
        assert not len(one.allowances), "five in a second are few"
        one.ahead_ns += SECOND_NS
        for _ in range(8):
            assert (await one.run(tenant)).allowance is None
        async with asyncio.timeout(30):
            while not len(one.allowances):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await one.settler.drain(30)
        assert (await balance_of(database, tenant)).held == 4 * BOUND, "as much as comes in half a second"
        assert (await one.run(tenant)).allowance is not None
    assert (await balance_of(database, tenant)).held == 0


@pytest.mark.both_databases
async def test_a_busy_tenants_requests_take_from_what_is_set_aside(database: Database, tmp_path: Path) -> None:
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    async with worker(database, tmp_path) as one:
        assert (await one.run(tenant)).allowance is None, "one request at a time needs none"
        await one.busy(tenant)
        before = await database.now()
        hold = await one.run(tenant)
        assert hold.allowance is not None
        assert hold.batch is None
        assert abs(hold.admitted_at - before) < (5 + one.awake.paused) * 1_000_000
        assert hold.expires_at == hold.admitted_at + 600_000_000
        assert Hold.claimed(hold.claim) == hold
        assert await one.holds.get(hold.request_id) is None, "the database does not know it"
        assert (await balance_of(database, tenant)).held >= 4 * BOUND
        holds = [hold for _ in range(20) for hold in await asyncio.gather(*(one.run(tenant) for _ in range(10)))]
        assert sum(hold.allowance is not None for hold in holds) > 100
    found = await balance_of(database, tenant)
    assert (found.debit, found.held) == (202 * 5 * TOKEN, 0)
    assert await audit_money(database) == []


@pytest.mark.parametrize("clients", only_fast(40, of=[8, 40]))
async def test_exactly_what_is_affordable_is_admitted(database: Database, tmp_path: Path, clients: int) -> None:
    """By two workers, until the last pico: what lies in one's allowance is missed by the other for a moment only."""
    affordable = 600
    tenant = await Tenant.rich(database, affordable * BOUND)
    admitted: list[Hold] = []
    async with worker(database, tmp_path / "a", busy=2) as a, worker(database, tmp_path / "b", busy=2) as b:

        async def client(one: Worker) -> None:
            refused = 0
            while refused < 3:
                try:
                    admitted.append(await one.run(tenant, 10))
                except InsufficientFunds:
                    refused += 1
                    await asyncio.sleep(0.7)

        await asyncio.gather(*(client(one) for _ in range(clients) for one in (a, b)))
    assert len(admitted) == affordable
    assert any(hold.allowance for hold in admitted)
    found = await balance_of(database, tenant)
    assert (found.available, found.overdraft) == (0, 0)
    assert await audit_money(database) == []


async def test_money_of_requests_that_have_ended_is_not_missed_by_the_next(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long their records wait for others to be settled with."""
    monkeypatch.setattr("billing.settlement.settler._GATHER", timedelta(hours=1))
    monkeypatch.setattr("billing.reservation.allowances._SETTLE_S", 30)
    tenant = await Tenant.rich(database, BOUND + 20 * TOKEN)
    async with worker(database, tmp_path) as one:
        for _ in range(5):
            await one.run(tenant)
        with pytest.raises(InsufficientFunds) as refused:
            await one.run(tenant)
        assert refused.value.affordable_pico == 5 * TOKEN
    assert await audit_money(database) == []


async def _with_all_money_set_aside(database: Database, one: Worker) -> tuple[Tenant, int]:
    """A tenant without any money but that of its allowance, which is so much."""
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    one.stands, one.ahead_ns = True, SECOND_NS
    await one.busy(tenant)
    assert await one.settler.drain(30)
    found = await balance_of(database, tenant)
    await Balances(database).refund(tenant.id, found.available, "USD")
    return tenant, found.held


async def test_all_requests_that_are_refused_at_once_get_what_was_set_aside(database: Database, tmp_path: Path) -> None:
    async with worker(database, tmp_path) as one:
        tenant, pico = await _with_all_money_set_aside(database, one)
        reserve = [partial(one.holds.reserve, tenant.request(pico // 3)) for _ in range(3)]
        holds = await asyncio.gather(*(one.allowances.reserve_beside(tenant.id, each) for each in reserve))
        assert [hold.allowance for hold in holds] == [None] * 3
        for hold in holds:
            await one.record(tenant, hold, 1)
    assert await audit_money(database) == []


async def test_an_allowance_in_which_a_request_still_runs_gives_back_the_last_of_it(
    database: Database, tmp_path: Path
) -> None:
    async with worker(database, tmp_path) as one:
        tenant, pico = await _with_all_money_set_aside(database, one)
        long = await one.allowances.reserve(tenant.request(pico - TOKEN))
        assert long.allowance is not None
        one.ahead_ns += 10 * SECOND_NS
        await asyncio.sleep(0.6)  # it is closed now; what is left of it is not worth a transaction
        hold = await one.allowances.reserve(tenant.request(TOKEN))
        assert hold.allowance is None
        await one.record(tenant, hold, 1)
        await one.record(tenant, long, 1)
    assert await audit_money(database) == []


async def test_an_allowance_that_a_silent_database_makes_late_is_released(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made when whatever was recorded meanwhile is settled."""
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    async with worker(database, tmp_path) as one:
        one.stands, one.ahead_ns = True, SECOND_NS
        silent, reserve, ping = asyncio.Event(), one.holds.reserve_allowance, one.holds.ping
        late: list[HoldRequest] = []

        async def unanswered(*_: object) -> None:
            silent.set()
            raise DatabaseUnavailable("silent")

        async def unheard(request: HoldRequest, currency: str, least_pico: int) -> None:
            late.append(request)
            await unanswered()

        monkeypatch.setattr(one.holds, "ping", unanswered)
        monkeypatch.setattr(one.holds, "reserve_allowance", unheard)
        for hold in await one.crowd(tenant):
            await one.record(tenant, hold, 0)
        await silent.wait()
        assert await one.settler.drain(30)
        (asked,) = late
        made = await reserve(asked, "USD", BOUND)
        assert made is not None
        assert (await balance_of(database, tenant)).held == made.amount_pico
        monkeypatch.setattr(one.holds, "ping", ping)
        async with asyncio.timeout(30):
            while (await balance_of(database, tenant)).held:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_where_more_than_the_balance_counts_nothing_is_set_aside(database: Database, tmp_path: Path) -> None:
    limited, restricted = [await Tenant.rich(database, 10**6 * BOUND) for _ in range(2)]
    poor = await Tenant.rich(database, 100 * BOUND)
    key = str(limited.key_id)
    await BudgetSettings(database).set(limited.id, "key", key, "total", limit_pico=10**6 * BOUND, currency="USD")
    await Balances(database).grant(restricted.id, BOUND, "USD", kind="promo", model="stdlib-qa")
    async with worker(database, tmp_path) as one:
        for tenant in (limited, restricted, poor):
            for _ in range(3):
                for hold in await one.crowd(tenant):
                    assert hold.allowance is None
                    await one.record(tenant, hold, 1)
        assert not len(one.allowances)
    async with worker(database, tmp_path, busy=0) as never:
        for _ in range(3):
            assert not any(hold.allowance for hold in await never.crowd(await Tenant.rich(database, 10**6 * BOUND)))


@pytest.mark.slow
async def test_nothing_is_taken_after_its_time_and_all_of_it_comes_back(database: Database, tmp_path: Path) -> None:
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    async with worker(database, tmp_path) as one:
        await one.busy(tenant)
        long = await one.run(tenant, 0), await one.allowances.reserve(tenant.request(BOUND))
        assert all(hold.allowance for hold in long)
        one.ahead_ns = 10 * SECOND_NS
        assert (await one.run(tenant)).allowance is None, "a budget of meanwhile would count for it"
        async with asyncio.timeout(30):
            while (await balance_of(database, tenant)).held > BOUND * 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert len(one.allowances) == 1, "one of its requests still runs"
        await one.record(tenant, long[1], 7)
        async with asyncio.timeout(30):
            while len(one.allowances):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    found = await balance_of(database, tenant)
    assert (found.debit, found.held) == ((5 + 7) * TOKEN, 0)
    assert await audit_money(database) == []


async def test_none_reaches_into_another_month(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    ends = period_bounds("2026-10")[1]
    database.clock = literal(ends - 500_000, Count())  # half a second before
    held = await HoldService(database).reserve_allowance(_asked(tenant), "USD", BOUND)
    assert held is not None
    allowance = Allowance(held, "USD", 0)
    last = allowance.take(tenant.request(BOUND), SECOND_NS // 2 - 1000)
    assert last is not None
    assert (last.admitted_at, last.period) == (ends - 1, "2026-10")
    assert allowance.take(tenant.request(BOUND), SECOND_NS // 2) is None
    database.clock = literal(ends + 1, Count())
    periods = Periods(database)
    assert await periods.close_due(0) == [], "its requests may still run"
    event = tenant.event(last, Usage(uncached=3))
    await settle(database, PriceCatalog(database), [event, Release(held.request_id, "done", held.request_id)])
    assert [one.period for one in await periods.close_due(0)] == ["2026-10"]


@pytest.mark.slow
async def test_usage_counts_once_and_also_after_its_allowance_has_ended(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**6 * BOUND)
    holds, catalog = HoldService(database), PriceCatalog(database)
    held = await holds.reserve_allowance(_asked(tenant, lifetime_s=5), "USD", BOUND)
    assert held is not None
    allowance = Allowance(held, "USD", 0)
    first, second = (allowance.take(tenant.request(BOUND), 1) for _ in range(2))
    assert first is not None
    assert second is not None
    used = tenant.event(first, Usage(uncached=4))
    for _ in range(2):
        await settle(database, catalog, [used, used])
    found = await balance_of(database, tenant)
    assert (found.debit, found.held) == (4 * TOKEN, 100 * BOUND - 4 * TOKEN)
    await holds.return_allowance(tenant.id, held.request_id, 50 * BOUND)
    assert (await balance_of(database, tenant)).held == 50 * BOUND - 4 * TOKEN
    other = await Tenant.rich(database, 10**6 * BOUND)
    await holds.return_allowance(other.id, held.request_id, 50 * BOUND)
    assert (await balance_of(database, tenant)).held == 50 * BOUND - 4 * TOKEN, "it is not the other's"
    assert await holds.sweep(held.expires_at) == 1
    assert (await balance_of(database, tenant)).held == 0
    await settle(database, catalog, [tenant.event(second, Usage(uncached=6))])
    found = await balance_of(database, tenant)
    assert (found.debit, found.held) == (10 * TOKEN, 0)
    assert await audit_money(database) == []

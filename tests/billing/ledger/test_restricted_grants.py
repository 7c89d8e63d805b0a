"""Money for one model or project only: it admits what it is for, pays for nothing else, and is never promised twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.holds.records import Hold, HoldSources, TopUp
from billing.holds.store import EndedHolds, release_holds
from billing.ledger.entries import Balance
from billing.ledger.wallet import ModelCost, OpenGrant, Wallet
from billing.prices import PriceCatalog, PriceVersion, in_every_lane
from billing.reservation.decisions import HoldDecider, InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.money import budget_charge, grant_balance
from billing.usage import Release, Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import Tenant, event, loose_request

TOKEN = 400_000


async def _two_models(database: Database) -> tuple[Tenant, Tenant]:
    """A tenant without money, with the prices of one model and of another."""
    mine, other = await Tenant.rich(database, 0, "mine"), await Tenant.rich(database, 0, "other")
    return mine, msgspec.structs.replace(mine, version=other.version)


async def _given(database: Database, tenant: Tenant, tokens: int, **scope: object) -> UUID:
    return await Balances(database).grant(tenant.id, tokens * TOKEN, "USD", kind="promo", **scope)  # type: ignore[arg-type]


async def _left(database: Database, tenant: Tenant) -> tuple[list[tuple[int, int]], int]:
    """What is left and free of each grant, and available beside those for one model or project, in tokens."""
    grants = await Balances(database).grants(tenant.id)
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    return [(one.remaining // TOKEN, one.free // TOKEN) for one in grants], balance.available // TOKEN


async def test_a_grant_for_a_model_admits_it_and_nothing_else(database: Database) -> None:
    mine, other = await _two_models(database)
    holds, catalog = HoldService(database), PriceCatalog(database)
    await _given(database, mine, 10, model="mine")
    with pytest.raises(InsufficientFunds) as refused:
        await holds.reserve(other.request(TOKEN))
    assert (refused.value.affordable_pico, refused.value.elsewhere_pico) == (0, 10 * TOKEN)
    first = await holds.reserve(mine.request(7 * TOKEN))
    with pytest.raises(InsufficientFunds) as refused:
        await holds.reserve(mine.request(4 * TOKEN))
    assert (refused.value.affordable_pico, refused.value.elsewhere_pico) == (3 * TOKEN, 0)
    second = await holds.reserve(mine.request(3 * TOKEN))
    assert await _left(database, mine) == ([(10, 0)], 0)
    assert await audit_money(database) == []
    await settle(database, catalog, [mine.event(first, Usage(uncached=5)), Release(second.request_id, "rejected")])
    assert await _left(database, mine) == ([(5, 5)], 0)
    await holds.reserve(other.request(0))  # what may cost nothing needs no money
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_a_hold_counts_on_the_grant_first_and_on_the_balance_for_the_rest(database: Database) -> None:
    mine, other = await _two_models(database)
    holds, catalog = HoldService(database), PriceCatalog(database)
    await BudgetSettings(database).set(mine.id, "tenant", "", "total", limit_pico=100 * TOKEN, currency="USD")
    await Balances(database).grant(mine.id, 10 * TOKEN, "USD")
    await _given(database, mine, 6, project_id=mine.project_id)
    hold = await holds.reserve(mine.request(8 * TOKEN))
    assert await _left(database, mine) == ([(6, 0), (10, 10)], 8)
    elsewhere = msgspec.structs.replace(other.request(9 * TOKEN), project_id=new_id())
    with pytest.raises(InsufficientFunds) as refused:
        await holds.reserve(elsewhere)
    assert refused.value.affordable_pico == 8 * TOKEN
    await holds.top_up(hold, 11 * TOKEN)
    expiring = await holds.reserve(mine.request(5 * TOKEN, lifetime_s=1))
    assert await _left(database, mine) == ([(6, 0), (10, 10)], 0)
    assert await holds.sweep(expiring.expires_at) == 1
    await settle(database, catalog, [mine.event(hold, Usage(uncached=11))])
    assert await _left(database, mine) == ([(0, 0), (5, 5)], 5)
    await settle(database, catalog, [mine.event(expiring, Usage(uncached=2))])  # late
    await adjust(database, catalog, mine.id, hold.request_id, {"uncached": -8}, reason="r")
    assert await _left(database, mine) == ([(6, 6), (5, 5)], 5)
    async with database.reading() as session:
        charged = list(await session.scalars(select(budget_charge.c.budgets)))
    assert not any("=" in windows for windows in charged)
    (window,) = await BudgetSettings(database).list(mine.id)
    assert (window.held, window.spent) == (0, 5 * TOKEN)
    assert await audit_money(database) == []


async def test_what_has_expired_admits_nothing_and_goes_when_no_hold_counts_on_it(database: Database) -> None:
    mine, _ = await _two_models(database)
    holds, balances = HoldService(database), Balances(database)
    now = await database.now()
    await _given(database, mine, 10, model="mine", expires_at=now + 60_000_000)
    hold = await holds.reserve(mine.request(4 * TOKEN))
    assert await balances.expire(now + 61_000_000) == 1
    assert await _left(database, mine) == ([(4, 0)], 0)
    await settle(database, PriceCatalog(database), [mine.event(hold, Usage(uncached=1))])
    assert await balances.expire(now + 61_000_000) == 1
    assert await _left(database, mine) == ([(0, 0)], 0)
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_a_crowd_gets_what_is_there_and_no_more(database: Database, database_url: str) -> None:
    mine, other = await _two_models(database)
    await Balances(database).grant(mine.id, 20 * TOKEN, "USD")
    await _given(database, mine, 30, model="mine")
    databases = [await Database.open(database_url) for _ in range(3)]
    try:
        gateways = [HoldService(one) for one in databases]
        asked = [(mine, other)[n % 2].request(TOKEN) for n in range(120)]
        asking = (gateways[n % 3].reserve(one) for n, one in enumerate(asked))
        answers = await asyncio.gather(*asking, return_exceptions=True)
        taken = [answer for answer in answers if isinstance(answer, Hold)]
        assert len(taken) == 50
        assert sum(hold.model == "mine" for hold in taken) >= 30
        assert await audit_money(database) == []
        events = [(mine if hold.model == "mine" else other).event(hold, Usage(uncached=1)) for hold in taken]
        parts = [events[n::3] for n in range(3)]
        await asyncio.gather(
            *(settle(one, PriceCatalog(one), part) for one, part in zip(databases, parts, strict=True))
        )
    finally:
        for one in databases:
            await one.close()
    assert await _left(database, mine) == ([(0, 0), (0, 0)], 0)
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_the_audit_finds_a_grant_that_is_promised_or_used_elsewhere(database: Database) -> None:
    mine, other = await _two_models(database)
    given = await _given(database, mine, 10, model="mine")
    await Balances(database).grant(mine.id, 5 * TOKEN, "USD")
    hold = await HoldService(database).reserve(other.request(5 * TOKEN))
    await settle(database, PriceCatalog(database), [other.event(hold, Usage(uncached=5))])
    wrong = {"held": 1, "remaining": 5 * TOKEN, "used": 5 * TOKEN}
    async with database.transaction() as session:
        await session.execute(update(grant_balance).where(grant_balance.c.grant_id == given).values(**wrong))
    findings = {finding.what for finding in await audit_money(database)}
    assert {"a grant is not what holds count on", "a grant paid for what it is not for"} <= findings


# ---------------------------------------------------------------- any scopes, overlapping ones too

ME, HERE, THERE = UUID(int=1), UUID(int=2), UUID(int=3)
_EVENT = event(loose_request(ME), PriceVersion(1, "m", "USD", in_every_lane({"output": 0, "uncached": 0})), Usage())
purposes = st.tuples(st.sampled_from([HERE, THERE]), st.sampled_from("mn"))
scopes = st.tuples(st.sampled_from([None, HERE, THERE]), st.sampled_from([None, "m", "n"]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("give"), scopes, st.integers(1, 20)),
        st.tuples(st.just("hold"), purposes, st.integers(0, 20)),
        st.tuples(st.just("raise"), st.integers(0, 9), st.integers(1, 30)),
        st.tuples(st.just("end"), st.lists(st.integers(0, 9), max_size=4), st.integers(0, 100)),
    ),
    max_size=40,
)


@given(steps)
def test_no_hold_can_end_up_without_its_money(made: list[tuple[str, object, int]]) -> None:
    """Holds that end together, in any number, with any part of their money used: what is available is never less than
    nothing, no grant is promised twice, and none pays for what it is not for."""
    balance = Balance(ME, "USD", 0, 0, 0, 0)
    grants: dict[UUID, OpenGrant] = {}
    open_holds: dict[UUID, Hold] = {}
    costs: dict[tuple[UUID, str], int] = defaultdict(int)
    for number, (what, which, pico) in enumerate(made):
        wallet = Wallet(balance, grants.values())
        decisions = HoldDecider(
            0, {ME: balance}, (), (), {1: "USD"}, grants=[g for g in grants.values() if g.restricted]
        )
        if what == "give":
            project, model = which  # type: ignore[misc]
            wallet.put_in(OpenGrant(UUID(int=number), ME, "promo", 1, None, model, project, pico, 0, 0))
        elif what in ("hold", "raise"):
            if what == "hold":
                project, model = which  # type: ignore[misc]
                asked = msgspec.structs.replace(loose_request(UUID(int=number), pico), model=model, project_id=project)
                answer = decisions.decide(asked)
            elif open_holds:
                one = list(open_holds)[which % len(open_holds)]  # type: ignore[operator]
                answer = decisions.top_up(TopUp(one, pico), open_holds[one])
            else:
                continue
            if isinstance(answer, Hold):
                open_holds[answer.request_id] = answer
            wallet.balance = balance.holding(decisions.held[ME])
            wallet.changed.update({one.id: one for one in decisions.grants})
        else:
            some = {list(open_holds)[at % len(open_holds)] for at in which} if open_holds else set()  # type: ignore[attr-defined]
            ending = [open_holds.pop(one) for one in sorted(some)]
            ended, events, used = [], {}, defaultdict(lambda: defaultdict(int))
            for hold in ending:
                used_up = msgspec.structs.replace(_EVENT, id=hold.request_id, project_id=hold.project_id,
                                                model=hold.model, cost_pico=hold.amount_pico * pico // 100)  # fmt: skip
                events[used_up.id] = used_up
                used[used_up.period][used_up.project_id, used_up.model, 0] += used_up.cost_pico
                costs[used_up.project_id, used_up.model] += used_up.cost_pico
                sources = HoldSources(grants=hold.grants)
                ended.append(EndedHolds(ME, 1, hold.amount_pico, sources, [hold.request_id]))
            paid = release_holds(wallet, ended, events, used)
            for period, of_period in used.items():
                spent = [ModelCost(project, model, cost) for (project, model, _), cost in of_period.items()]
                wallet.use(spent, paid.get(period, {}))
        balance = wallet.balance
        grants |= wallet.changed
        assert balance.overdraft == 0
        assert balance.receivable == 0
        assert all(0 <= one.held <= one.remaining for one in grants.values())
        assert balance.restricted == sum(one.remaining for one in grants.values() if one.restricted)
        for one in grants.values():
            assert one.used <= sum(cost for of, cost in costs.items() if one.covers(*of))
    assert balance.held == sum(hold.amount_pico - sum(hold.grants.values()) for hold in open_holds.values())

"""A grant pays for what was admitted before its expiry, and for nothing else, whenever the worker takes the rest."""

from __future__ import annotations

from itertools import combinations, permutations
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import literal

from billing.accounts.adjustments import InvalidAdjustment, adjust
from billing.accounts.balances import Balances
from billing.holds.records import HoldRequest
from billing.ledger.entries import Balance
from billing.ledger.wallet import ModelCost, OpenGrant, RefundRefused, Wallet
from billing.prices import PriceCatalog
from billing.reservation.decisions import HoldDecider, InsufficientFunds
from billing.reservation.hold_service import ALLOWANCE_OPEN_US, HoldService
from billing.settlement.settlement import settle
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.billing.money import Tenant

TOKEN = 400_000
HOUR = 3_600_000_000


@pytest.mark.both_databases
async def test_settling_and_the_workers_job_commute(database: Database) -> None:
    """Whatever comes first: what was admitted before the expiry is paid by the grant, what came after it is not."""
    balances, holds, catalog = Balances(database), HoldService(database), PriceCatalog(database)
    now = await database.now()
    running = {}
    for order in permutations(("early", "late", "worker")):
        tenant = await Tenant.rich(database, 20 * TOKEN)
        await balances.grant(tenant.id, 10 * TOKEN, "USD", kind="promo", expires_at=now + HOUR)
        running[order] = tenant, await holds.reserve(tenant.request(4 * TOKEN))
    database.clock = literal(now + 2 * HOUR, Count())
    for order, (tenant, early) in running.items():
        late = await holds.reserve(tenant.request(6 * TOKEN))
        for act in order:
            if act == "worker":
                await balances.expire()
            else:
                hold, tokens = (early, 3) if act == "early" else (late, 5)
                await settle(database, catalog, [tenant.event(hold, Usage(uncached=tokens))])
    await balances.expire()
    for order, (tenant, _) in running.items():
        promo, paid = await balances.grants(tenant.id)
        assert (promo.used, promo.gone, paid.used) == (3 * TOKEN, 7 * TOKEN, 5 * TOKEN), order
    assert await audit_money(database) == []


async def test_one_batch_has_usage_from_before_and_after(database: Database) -> None:
    """Of one model and project, some of it reserved from a grant for the model, which has expired too."""
    balances, holds = Balances(database), HoldService(database)
    now, tenant = await database.now(), await Tenant.rich(database, 20 * TOKEN)
    scope = {"kind": "promo", "expires_at": now + HOUR}
    await balances.grant(tenant.id, 2 * TOKEN, "USD", model=tenant.version.model, **scope)
    await balances.grant(tenant.id, 2 * TOKEN, "USD", **scope)
    early = await holds.reserve(tenant.request(3 * TOKEN))
    database.clock = literal(now + 2 * HOUR, Count())
    late = await holds.reserve(tenant.request(6 * TOKEN))
    events = [tenant.event(hold, Usage(uncached=tokens)) for hold, tokens in ((early, 3), (late, 6))]
    await settle(database, PriceCatalog(database), events)
    grants = await balances.grants(tenant.id)
    assert [grant.used // TOKEN for grant in grants] == [2, 1, 6]
    assert await audit_money(database) == []


async def test_nothing_else_is_paid_from_it_either(database: Database) -> None:
    """Corrections and refunds are of now; requests of an allowance may come until it is over."""
    balances, holds, catalog = Balances(database), HoldService(database), PriceCatalog(database)
    now, tenant = await database.now(), await Tenant.rich(database, TOKEN)
    await balances.grant(tenant.id, 1000 * TOKEN, "USD", expires_at=now + HOUR)
    hold = await holds.reserve(tenant.request(TOKEN))
    await settle(database, catalog, [tenant.event(hold, Usage(uncached=1))])
    everything = HoldRequest.for_many(new_id(), tenant.id, 1000 * TOKEN, 600, "g1")
    database.clock = literal(now + HOUR - ALLOWANCE_OPEN_US, Count())
    assert await holds.reserve_allowance(everything, "USD", 1) is None
    database.clock = literal(now + HOUR - ALLOWANCE_OPEN_US - 1, Count())
    allowance = await holds.reserve_allowance(everything, "USD", 1)
    assert allowance is not None
    await holds.return_allowance(tenant.id, allowance.request_id, allowance.amount_pico)
    database.clock = literal(now + HOUR, Count())
    with pytest.raises(RefundRefused) as refused:
        await balances.refund(tenant.id, 2 * TOKEN, "USD")
    assert refused.value.refundable_pico == TOKEN
    with pytest.raises(InvalidAdjustment):
        await adjust(database, catalog, tenant.id, hold.request_id, {"uncached": 2}, reason="r")
    await balances.refund(tenant.id, TOKEN, "USD")
    assert [grant.remaining // TOKEN for grant in await balances.grants(tenant.id)] == [999, 0]
    assert await balances.expire() == 1
    balance = await balances.get(tenant.id)
    assert balance is not None
    assert (balance.available, balance.receivable) == (0, 0)
    assert await audit_money(database) == []


# ---------------------------------------------------------------- any grants, any order

ME, HERE = UUID(int=1), UUID(int=2)
EXPIRES = 10
grants = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([None, EXPIRES]), st.sampled_from([None, "m"]), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)
usages = st.lists(st.tuples(st.booleans(), st.sampled_from("mn"), st.integers(0, 12), st.integers(0, 100)), max_size=4)


class Running(msgspec.Struct, frozen=True):
    """A request: what it holds of the balance and of grants, and what it will have used."""

    admitted_at: int
    model: str
    of_balance: int
    of_grants: dict[UUID, int]
    pico: int


class Scene:
    """One tenant's money, and the requests that run."""

    def __init__(self, made: list[tuple[int, int | None, str | None, int]], line: int) -> None:
        self.balance = Balance(ME, "USD", 0, 0, 0, 0, credit_line=line)
        self.grants: dict[UUID, OpenGrant] = {}
        self.open: list[Running] = []
        for number, (pico, expires_at, model, priority) in enumerate(made):
            wallet = self.wallet()
            wallet.put_in(OpenGrant(UUID(int=number), ME, "promo", priority, expires_at, model, None, pico, 0, 0))
            self.save(wallet)

    def wallet(self) -> Wallet:
        return Wallet(self.balance, self.grants.values())

    def save(self, wallet: Wallet) -> None:
        self.balance = wallet.balance
        self.grants |= wallet.changed

    def admit(self, now: int, model: str, pico: int, percent: int) -> None:
        deciding = [one for one in self.grants.values() if one.restricted or one.expired(now)]
        decider = HoldDecider(now, {ME: self.balance}, (), (), {1: "USD"}, grants=deciding)
        hold = decider.decide(HoldRequest(new_id(), ME, HERE, ME, model, "", 1, pico, 1, "g", b""))
        if not isinstance(hold, InsufficientFunds):
            assert not isinstance(hold, Exception)
            wallet = self.wallet()
            wallet.balance = self.balance.holding(decider.held[ME])
            wallet.changed |= {one.id: one for one in decider.grants}
            self.save(wallet)
            grants = dict(hold.grants)
            self.open.append(Running(now, model, pico - sum(grants.values()), grants, pico * percent // 100))

    def end(self, running: Running) -> None:
        self.open.remove(running)
        wallet = self.wallet()
        wallet.balance = wallet.balance.holding(-running.of_balance)
        paid = wallet.end_hold(running.of_grants, running.pico)
        rest = running.pico - sum(paid.values())
        wallet.use([ModelCost(HERE, running.model, rest, running.admitted_at)], paid)
        self.save(wallet)

    def sweep(self, now: int) -> None:
        wallet = self.wallet()
        wallet.expire(now, [ModelCost(HERE, one.model, one.of_balance, one.admitted_at) for one in self.open])
        self.save(wallet)


@given(grants, st.sampled_from([0, 5]), usages)
def test_when_the_worker_comes_decides_nothing(
    made: list[tuple[int, int | None, str | None, int]], line: int, asked: list[tuple[bool, str, int, int]]
) -> None:
    """Each grant has paid the same in the end, and no request that was admitted lacks its money."""
    before = [one for one in asked if one[0]]
    after = [one for one in asked if not one[0]]
    outcomes = []
    moments = range(len(asked) + 1)
    for sweeps in [set(some) for count in (0, 1, len(moments)) for some in combinations(moments, count)]:
        scene = Scene(made, line)
        for _, model, pico, percent in before:
            scene.admit(EXPIRES - 1, model, pico, percent)
        if 0 in sweeps:
            scene.sweep(EXPIRES)
        for _, model, pico, percent in after:
            scene.admit(EXPIRES, model, pico, percent)
        for number, running in enumerate(list(scene.open), 1):
            if number in sweeps:
                scene.sweep(EXPIRES)
            scene.end(running)
            assert scene.balance.overdraft == 0
        scene.sweep(EXPIRES)
        outcomes.append((scene.balance, scene.grants))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert all(one.remaining == 0 for one in outcomes[0][1].values() if one.expired(EXPIRES))

"""Settling: each event once, its hold closed, its cost debited; whatever cannot be true is kept aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from sqlalchemy import select

from billing.accounts.balances import Balances
from billing.holds.records import Hold
from billing.prices import PriceCatalog, PriceVersion
from billing.reservation.hold_service import HoldService
from billing.settlement.lost_attempt_events import attempt_id, lost_attempt_of
from billing.settlement.settlement import JournalEntry, Settled, refuse_entry, settle
from billing.tables.money import refused_settlement, usage_event
from billing.usage import Release, SpoolRecord, Usage, UsageEvent
from billing.verification.audit import audit_money
from billing.verification.reconciliation import reconcile
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import Tenant, give_euros

pytestmark = pytest.mark.both_databases
PRICE = 100 * 400_000 + 10 * 1_600_000  # what Tenant.event costs


async def _settle(database: Database, *records: SpoolRecord) -> Settled:
    return await settle(database, PriceCatalog(database), records)


async def test_an_event_debits_its_cost_and_closes_its_hold_once(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    holds = HoldService(database)
    hold = await holds.reserve(tenant.request(10**9))
    event = tenant.event(hold)
    assert await _settle(database, event, event) == Settled(written=1, repeated=1)
    assert await _settle(database, event) == Settled(repeated=1)
    assert await _settle(database, Release(hold.request_id, "late")) == Settled()
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.credit, balance.debit, balance.held, balance.overdraft) == (10**12, PRICE, 0, 0)
    assert await holds.get(hold.request_id) is None


@pytest.mark.slow
async def test_a_row_has_all_that_the_event_has(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    usage = Usage(uncached=1, read={"automatic": 2, "5m": 3}, write={"1h": 4}, output=5)
    event = tenant.event(tenant.request(0), usage, sequence=7)
    await _settle(database, event)
    async with database.reading() as session:
        row = (await session.execute(select(usage_event))).one()._mapping
    assert Usage.from_meters({meter: row[meter] for meter in usage.meters()}) == usage
    for name, value in msgspec.structs.asdict(event).items():
        if name in ("hold_batch", "allowance"):  # only for who ends the hold
            continue
        if name not in ("usage", "counts"):
            assert row[name] == value
    for name, tokens in msgspec.structs.asdict(event.counts).items():
        assert row[f"count_{name}"] == tokens


async def test_a_release_gives_the_hold_back_once(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    hold = await HoldService(database).reserve(tenant.request(10**9))
    release = Release(hold.request_id, "rejected")
    assert await _settle(database, release, release, Release(new_id(), "unknown")) == Settled(released=1)
    assert await _settle(database, release) == Settled()
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.held) == (0, 0)
    # and if something was done after all, it is paid for, once
    assert await _settle(database, tenant.event(hold)) == Settled(written=1)
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.held) == (PRICE, 0)


async def test_of_two_attempts_of_a_request_one_is_billed_and_the_other_counted(database: Database) -> None:
    """Whoever writes the second one does not know of the first: as when both come from journals."""
    tenant = await Tenant.rich(database, 10 * PRICE)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    assert isinstance(hold, Hold)
    first = msgspec.structs.replace(tenant.event(hold, Usage(uncached=3)), attempt=1, replica="a", sequence=7)
    second = msgspec.structs.replace(tenant.event(hold, Usage(uncached=5)), attempt=2, replica="b", sequence=7)
    assert await _settle(database, second) == Settled(written=1)
    for _ in range(3):
        await _settle(database, first)
        await _settle(database, first, second)
    async with database.reading() as session:
        query = select(usage_event).order_by(usage_event.c.attempt)
        lost, billed = (await session.execute(query)).all()
    assert (billed.id, billed.attempt, billed.cost_pico, billed.corrects) == (
        hold.request_id,
        2,
        second.cost_pico,
        None,
    )
    assert (lost.id, lost.attempt, lost.cost_pico, lost.uncached) == (attempt_id(hold.request_id, 1), 1, 0, 0)
    assert (lost.corrects, lost.replica, lost.sequence) == (hold.request_id, "a", 7)
    assert lost.count_prompt == first.counts.prompt
    assert await audit_money(database) == []
    report = await reconcile(database, billed.period)
    assert (report.events, report.lost_attempts, report.adjustments, report.doubled) == (1, 1, 0, 0)


@pytest.mark.both_databases
@pytest.mark.parametrize("lost_first", [True, False])
async def test_what_an_attempt_did_is_recorded_once_whoever_was_told(database: Database, lost_first: bool) -> None:
    """It was tried again in vain, on a replica that refused it: the gateway that did so records the first attempt as
    lost. Another one, or the same started again, was told of it by the journal, and takes it for the request's end."""
    tenant = await Tenant.rich(database, 10 * PRICE)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    end = msgspec.structs.replace(
        tenant.event(hold, Usage(), sequence=7), status="failed", reason="crash", source="journal"
    )
    lost = msgspec.structs.replace(lost_attempt_of(end), source="gateway")
    assert await _settle(database, lost if lost_first else end) == Settled(written=1)
    for _ in range(2):
        await _settle(database, end)
        await _settle(database, lost)
    async with database.reading() as session:
        (row,) = (await session.execute(select(usage_event))).all()
    assert (row.sequence, row.corrects is None) == (7, not lost_first)
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.held) == (0, 0)
    assert await audit_money(database) == []


class InBetween(PriceCatalog):
    """A price book that, when it is first asked, lets something else happen."""

    def __init__(self, database: Database, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__(database)
        self._happens: Callable[[], Awaitable[object]] | None = happens

    async def version(self, id: int) -> PriceVersion:
        happens, self._happens = self._happens, None
        if happens is not None:
            await happens()
        return await super().version(id)


def _both_ways(tenant: Tenant, hold: Hold) -> tuple[UsageEvent, UsageEvent]:
    """What one attempt did, as the request's end and as a lost attempt."""
    end = msgspec.structs.replace(
        tenant.event(hold, Usage(), sequence=7), status="failed", reason="crash", source="journal"
    )
    return end, msgspec.structs.replace(lost_attempt_of(end), source="gateway")


async def _assert_settled_once(database: Database, tenant: Tenant, requests: int = 1) -> None:
    async with database.reading() as session:
        rows = (await session.execute(select(usage_event))).all()
    assert len(rows) == requests, rows
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.held) == (0, 0)
    assert await audit_money(database) == []


@pytest.mark.parametrize("lost_first", [True, False])
async def test_two_who_settle_one_attempt_in_the_same_moment(database: Database, lost_first: bool) -> None:
    """The other is done while the one has looked, maybe, and not written yet."""
    tenant = await Tenant.rich(database, 10 * PRICE)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    assert isinstance(hold, Hold)
    end, lost = _both_ways(tenant, hold)
    one, other = (lost, end) if lost_first else (end, lost)
    catalog = InBetween(database, lambda: _settle(database, other))
    assert await settle(database, catalog, [one]) in (Settled(repeated=1), Settled(repeated=1, released=1))
    if not lost_first:
        await _settle(database, end)
    await _assert_settled_once(database, tenant)


async def test_many_who_settle_the_same_attempts_at_once(database: Database) -> None:
    tenant = await Tenant.rich(database, 100 * PRICE)
    pairs = []
    for number in range(8):
        hold = await HoldService(database).reserve(tenant.request(PRICE))
        assert isinstance(hold, Hold)
        pairs.append(tuple(msgspec.structs.replace(one, sequence=number + 1) for one in _both_ways(tenant, hold)))
    await asyncio.gather(*(_settle(database, record) for pair in pairs for record in (*pair, *pair[::-1])))
    await _assert_settled_once(database, tenant, len(pairs))


@pytest.mark.parametrize("lost_first", [True, False])
async def test_one_attempt_both_ways_in_one_batch(database: Database, lost_first: bool) -> None:
    tenant = await Tenant.rich(database, 10 * PRICE)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    assert isinstance(hold, Hold)
    end, lost = _both_ways(tenant, hold)
    done = await _settle(database, *((lost, end) if lost_first else (end, lost)))
    assert (done.written, done.repeated) == (1, 1)
    await _assert_settled_once(database, tenant)


async def test_two_attempts_in_one_batch_are_both_counted(database: Database) -> None:
    tenant = await Tenant.rich(database, 10 * PRICE)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    assert isinstance(hold, Hold)
    first = msgspec.structs.replace(tenant.event(hold), attempt=1, sequence=7)
    second = msgspec.structs.replace(tenant.event(hold), attempt=2, sequence=8)
    assert await _settle(database, second, first) == Settled(written=2)
    async with database.reading() as session:
        rows = (await session.execute(select(usage_event).order_by(usage_event.c.attempt))).all()
    assert [(row.sequence, row.cost_pico, row.corrects) for row in rows] == [
        (7, 0, hold.request_id),
        (8, PRICE, None),
    ]
    assert await audit_money(database) == []


async def test_usage_after_its_hold_expired_and_the_money_was_promised_again(database: Database) -> None:
    tenant = await Tenant.rich(database, PRICE)
    holds = HoldService(database)
    first = await holds.reserve(tenant.request(PRICE, lifetime_s=1))
    assert await holds.sweep(first.expires_at) == 1
    second = await holds.reserve(tenant.request(PRICE))
    assert await _settle(database, tenant.event(first)) == Settled(written=1)
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.available, balance.overdraft) == (-PRICE, PRICE)
    await _settle(database, Release(second.request_id, "rejected"))
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.available, balance.overdraft) == (0, 0)


async def test_what_cannot_be_true_is_kept_aside_and_harms_no_other(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    poor = await Tenant.rich(database, 0)
    euro = await Tenant.rich(database, 0)
    await give_euros(database, euro.id, 10**12)
    good = tenant.event(tenant.request(0), sequence=1)
    lies = {
        "the cost is 1 in the context tier from 0, and": msgspec.structs.replace(
            tenant.event(tenant.request(0)), cost_pico=1
        ),
        "the context tier from 5, and recomputes to": msgspec.structs.replace(
            tenant.event(tenant.request(0)), context_from=5
        ),
        "price version 99 does not exist": msgspec.structs.replace(tenant.event(tenant.request(0)), price_version=99),
        "has no price for write_24h": msgspec.structs.replace(
            tenant.event(tenant.request(0)), usage=Usage(write={"24h": 100}, output=10)
        ),
        "the tenant has no balance": poor.event(poor.request(0)),
        "the price is in USD, the balance in EUR": euro.event(euro.request(0)),
    }
    assert await _settle(database, good, *lies.values()) == Settled(written=1, refused=6)
    async with database.reading() as session:
        rows = (await session.execute(select(refused_settlement))).all()
    for cause, lie in lies.items():
        (row,) = [row for row in rows if row.request_id == lie.id]
        assert cause in row.cause
        assert msgspec.msgpack.decode(row.body, type=SpoolRecord) == lie  # type: ignore[arg-type]
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert balance.debit == good.cost_pico


async def test_what_is_kept_aside_ends_its_hold(database: Database) -> None:
    """Nothing else would, while its gateway lives."""
    tenant = await Tenant.rich(database, 10**12)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    lie = msgspec.structs.replace(tenant.event(hold), price_version=99)
    assert await _settle(database, lie) == Settled(refused=1, released=1)
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.held) == (0, 0)


async def test_a_journal_s_entry_is_kept_aside_once_and_ends_its_hold(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    hold = await HoldService(database).reserve(tenant.request(PRICE))
    assert isinstance(hold, Hold)
    entry = JournalEntry("replica-0", 7, str(hold.request_id), b"what it said")
    for _ in range(2):
        await refuse_entry(database, entry, "it makes no sense", {hold.request_id: hold.batch})
    balance = await Balances(database).get(tenant.id)
    assert balance is not None
    assert (balance.debit, balance.held) == (0, 0)
    (found,) = await audit_money(database)
    assert (found.what, found.subject, "entry 7" in found.detail) == ("a record was refused", hold.request_id, True)
    async with database.reading() as session:
        (row,) = (await session.execute(select(refused_settlement))).all()
    assert msgspec.msgpack.decode(row.body, type=JournalEntry) == entry

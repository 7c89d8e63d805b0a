"""Token-seconds of leases: each token once at each instant, each hour once, on the invoice's line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import literal, select, update

from billing.calendar import period_bounds
from billing.periods.periods import PeriodOpen, Periods
from billing.prices import PriceCatalog
from billing.rating.hourly_meters import hourly_lines
from billing.reservation.hold_service import HoldService
from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import LeaseWish, Mark
from prompt_cache.promise.lease_storage import HOUR, MOST_WAIT, LeaseInterval, LeaseStorage, StoredHour, stored_in_hour
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.tables import lease
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.prompt_cache.promise.decided_leases import decided
from tests.prompt_cache.promise.lease_fates import fates
from turnpike.processes.lease_upkeep import LeaseUpkeep

NOBODY = UUID(int=1)
SECOND = 1_000_000
START = 498_610 * HOUR  # in November 2026
PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60", "storage": "3.60"}

intervals = st.tuples(
    st.text("ab", min_size=1, max_size=3), st.integers(-100, 3700), st.integers(1, 4000), st.sampled_from(["x", "y"])
)


def blocks(path: str) -> bytes:
    """A block for each letter, named by all letters up to it."""
    return b"".join(path[: at + 1].rjust(8).encode() for at in range(len(path)))


@given(st.lists(intervals, max_size=8))
def test_each_token_is_counted_once_at_each_instant(given_: list[tuple[str, int, int, str]]) -> None:
    hour = 0
    leases = [
        LeaseInterval(NOBODY, NOBODY, model, start * SECOND, (start + life) * SECOND, blocks(path))
        for path, start, life, model in given_
    ]
    seconds: dict[str, set[tuple[str, int]]] = {}
    for path, start, life, model in given_:
        for at in range(max(0, start), min(3600, start + life)):
            seconds.setdefault(model, set()).update((path[: n + 1], at) for n in range(len(path)))
    found = {one.model: one.token_seconds for one in stored_in_hour(hour, leases)}
    assert found == {model: 64 * len(of_model) for model, of_model in seconds.items() if of_model}


async def written(
    database: Database, now: int, path: str, lease_class: str = "1h", tenant: UUID = NOBODY, *, paid: bool = True
) -> UUID:
    """A request that marks this prefix, and reads what there is of it; its id. `paid`: it has ended, and pays."""
    wish = LeaseWish(
        request_id=new_id(),
        tenant_id=tenant,
        project_id=NOBODY,
        model="m",
        marks=(Mark(64 * len(path) + 5, path.encode(), lease_class),),
        lookups=tuple(path[:end].encode() for end in range(1, len(path))),
        blocks=blocks(path),
    )
    store = LeaseStore(database)
    async with database.transaction() as session:
        decider: LeaseDecider = await store.decider(session, now, [wish])
        decider.take(wish, decider.decide(wish))
        await store.save(session, decider)
    if paid:
        await store.settle_writes({wish.request_id: range(10**6)})
    return wish.request_id


@pytest.mark.both_databases
async def test_hours_are_recorded_once_and_reach_the_invoice(database: Database) -> None:
    def at(seconds: int) -> int:
        database.clock = literal(START + seconds * SECOND, Count())
        return START + seconds * SECOND

    tenant = new_id()
    catalog = PriceCatalog(database)
    at(-3600)
    await catalog.set("m", "USD", PRICES)
    upkeep = LeaseUpkeep(database, HoldService(database), catalog)
    store = LeaseStore(database)
    await written(database, at(600), "a", "1h", tenant)  # 600-4200, refreshed by the next until 4400
    await written(database, at(800), "ab", "1h", tenant)  # 800-4400: the block of "a" too
    await written(database, at(4400), "a", "5m", tenant)  # begins anew when all of that ended
    at(4500)
    await store.purge(NOBODY)
    (tag,) = [await fates(database, NOBODY, [b"a"])]
    assert (tag[b"a"].cause, tag[b"a"].at) == ("purged", START + 4500 * SECOND)
    at(3600 + 299)
    while await upkeep.run():
        pass
    assert await hourly_lines(database, catalog, tenant, "2026-11") == []
    at(2 * 3600 + 300)
    while await upkeep.run():
        pass
    (line,) = await hourly_lines(database, catalog, tenant, "2026-11")
    a, ab = (800 - 600) + (4400 - 800) + (4500 - 4400), 4400 - 800
    assert line.units == 64 * (a + ab)
    assert line.exact_pico == line.units * 3_600_000 // 3600
    assert await upkeep.run() is False
    assert await hourly_lines(database, catalog, tenant, "2026-11") == [line]


async def test_a_failed_hour_is_told_again(database: Database) -> None:
    database.clock = literal(START + 7200 * SECOND, Count())
    await written(database, START + 60 * SECOND, "a")
    storage, told = LeaseStorage(database), []

    async def fails(hours: list[StoredHour]) -> None:
        told.append(hours)
        if len(told) == 1:
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        await storage.record_next(fails)  # type: ignore[arg-type]
    assert await storage.record_next(fails)  # type: ignore[arg-type]
    assert told[0] == told[1] == [StoredHour(NOBODY, NOBODY, "m", START, 64 * 3540)]


async def test_hours_in_which_nothing_was_stored_are_passed_over(database: Database) -> None:
    """After a month's stop the worker need not look at each of its hours."""
    pause = 30 * 24 * HOUR
    database.clock = literal(START + pause + 2 * HOUR, Count())
    await written(database, START + 60 * SECOND, "a", "5m")
    await LeaseStore(database).reclaim()
    await written(database, START + pause + 60 * SECOND, "b", "5m")
    storage, kept = LeaseStorage(database), list[StoredHour]()
    looks = 1
    while await storage.record_next(_keep(kept)):
        looks += 1
    assert [(one.hour, one.token_seconds) for one in kept] == [(START, 64 * 300), (START + pause, 64 * 300)]
    assert looks <= 5
    assert await storage.next_hour() == START + pause + HOUR


@pytest.mark.both_databases
@pytest.mark.parametrize("ended", ["", "expired", "replaced", "purged"])
@pytest.mark.parametrize("pays", [True, False])
async def test_an_hour_waits_for_who_may_still_pay_in_it(database: Database, ended: str, pays: bool) -> None:
    """Also for a lease that ended while its writer ran. What nobody pays for is not counted."""
    database.clock = literal(START + 7200 * SECOND, Count())
    await written(database, START + 60 * SECOND, "a", "5m")
    writer = await written(
        database, START + 60 * SECOND, "b", "5m" if ended in ("expired", "replaced") else "24h", paid=False
    )
    store, storage, told = LeaseStore(database), LeaseStorage(database), []
    until = 3600 if ended in ("", "purged") else 360
    if ended == "expired":
        assert await store.reclaim() == 2
    elif ended == "replaced":
        await written(database, START + 7190 * SECOND, "b")
    elif ended == "purged":
        assert len((await store.purge(NOBODY)).leases) == 1

    async def record(hours: list[StoredHour]) -> None:
        told.append([one.token_seconds for one in hours])

    assert await storage.record_next(record) is False  # type: ignore[arg-type]
    assert await store.uncertain_writers(START + 7200 * SECOND, 9) == [writer]
    await store.settle_writes({writer: range(10**6 * pays)})
    assert await store.uncertain_writers(START + 7200 * SECOND, 9) == []
    assert await storage.record_next(record)  # type: ignore[arg-type]
    assert told == [[64 * (300 + pays * (until - 60))]]
    if ended:
        assert (await fates(database, NOBODY, [b"b"]))[b"b"].cause in (
            {"replaced": "live"}.get(ended, ended if pays else "failed"),
        )


async def test_an_hour_does_not_wait_for_ever(database: Database) -> None:
    database.clock = literal(START + 60 * SECOND, Count())
    await written(database, START + 60 * SECOND, "a")
    await written(database, START + 60 * SECOND, "b", paid=False)
    storage, told = LeaseStorage(database), []

    async def record(hours: list[StoredHour]) -> None:
        told.append([one.token_seconds for one in hours])

    for at, recorded in ((HOUR + MOST_WAIT - SECOND, False), (HOUR + MOST_WAIT, True)):
        database.clock = literal(START + at, Count())
        assert await storage.record_next(record) is recorded  # type: ignore[arg-type]
    assert told == [[64 * 3540]]


@pytest.mark.both_databases
async def test_what_became_of_a_lease_is_known_for_a_day(database: Database) -> None:
    database.clock = literal(START, Count())
    store = LeaseStore(database)
    await written(database, START, "a", "5m")
    failed = await written(database, START, "b")
    assert (await fates(database, NOBODY, [b"a", b"c"])) == {b"a": (await fates(database, NOBODY, [b"a"]))[b"a"]}
    assert (await fates(database, NOBODY, [b"a"]))[b"a"].cause == "live"
    database.clock = literal(START + 301 * SECOND, Count())
    assert (await fates(database, NOBODY, [b"a"]))[b"a"].cause == "expired"
    assert await store.reclaim() == 1
    fate = (await fates(database, NOBODY, [b"a"]))[b"a"]
    assert (fate.cause, fate.at, fate.tokens, fate.lease_class) == ("expired", START + 300 * SECOND, 69, "5m")
    assert await store.settle_writes({failed: range(0)}) == 0, "that it pays was certain already"
    assert await fates(database, new_id(), [b"a"]) == {}
    assert await store.forget(START + 300 * SECOND) == 0
    assert await store.forget(START + 301 * SECOND) == 1
    assert await fates(database, NOBODY, [b"a"]) == {}


@pytest.mark.both_databases
async def test_over_the_limit_there_is_no_lease_and_that_is_told(database: Database) -> None:
    database.clock = literal(START, Count())
    store = LeaseStore(database, 100)

    async def decided(name: str, tokens: int) -> tuple[int, int]:
        wish = LeaseWish(
            request_id=new_id(), tenant_id=NOBODY, project_id=NOBODY, model="m",
            marks=(Mark(tokens, name.encode(), "5m"),), tags=(name,),
        )  # fmt: skip
        async with database.transaction() as session:
            decider = await store.decider(session, START, [wish])
            decision = decider.decide(wish)
            decider.take(wish, decision)
            await store.save(session, decider)
        return sum(one.tokens for one in decision.written), decision.limited

    assert await decided("x", 80) == (80, 0)
    assert await decided("y", 21) == (0, 21)
    assert await decided("y", 21) == (0, 21)
    assert await decided("z", 20) == (20, 0)
    fate = (await fates(database, NOBODY, [b"y"]))[b"y"]
    assert (fate.cause, fate.at) == ("limit", START)
    assert [one.tokens for one in await store.page(NOBODY, limit=9, after=None, tag="x")] == [80]
    assert len((await store.purge(NOBODY, tag="x")).leases) == 1
    assert await decided("y", 21) == (21, 0)


@pytest.mark.both_databases
async def test_what_was_not_written_counts_in_no_limit(database: Database) -> None:
    database.clock = literal(START, Count())
    store = LeaseStore(database, 100)

    async def decided(name: str, *, write: bool) -> int:
        wish = LeaseWish(
            request_id=new_id(), tenant_id=NOBODY, project_id=NOBODY, model="m", marks=(Mark(80, name.encode(), "5m"),)
        )
        async with database.transaction(write=write) as session:
            decider = await store.decider(session, START, [wish])
            decision = decider.decide(wish)
            decider.take(wish, decision)
            await store.save(session, decider)
        return decision.limited

    assert await decided("x", write=False) == 0
    assert await decided("y", write=True) == 0
    assert await decided("z", write=True) == 80


async def test_a_lease_of_a_class_that_we_do_not_know_is_left_alone(database: Database) -> None:
    """A newer gateway wrote it. The request that marks the same prefix is answered, and promises nothing of its own."""
    store = LeaseStore(database)
    _, first = await decided(store, database, "a", tokens=64)
    async with database.transaction() as session:
        await session.execute(update(lease).values(lease_class="90d"))
    _, second = await decided(store, database, "a", tokens=64)
    assert (len(first.written), second.written) == (1, ())
    async with database.reading() as session:
        assert list(await session.scalars(select(lease.c.lease_class))) == ["90d"]


async def test_a_month_waits_for_its_storage_before_it_closes(database: Database) -> None:
    def at(instant: int) -> int:
        database.clock = literal(instant, Count())
        return instant

    tenant, catalog = new_id(), PriceCatalog(database)
    at(START)
    await catalog.set("m", "USD", PRICES)
    storage = LeaseStorage(database)
    upkeep, periods = LeaseUpkeep(database, HoldService(database), catalog), Periods(database, storage)
    november, december = period_bounds("2026-11")
    await written(database, at(december - 600 * SECOND), "a", "1h", tenant)  # reaches 50 minutes into December
    at(december + 7200 * SECOND)
    assert (await periods.waiting("2026-11")).hour == december - HOUR
    with pytest.raises(PeriodOpen, match="cached prompts and adapters"):
        await periods.close("2026-11")
    while await upkeep.run():
        pass
    assert (await periods.waiting("2026-11")).reasons() == []
    assert (await periods.close("2026-11")).state == "closed"
    (line,) = await hourly_lines(database, catalog, tenant, "2026-11")
    assert (line.units, line.corrects_period) == (64 * 600, None)
    assert november < december


async def test_a_month_waits_for_storage_that_nobody_knows_to_be_paid(database: Database) -> None:
    storage = LeaseStorage(database)
    periods, (_, december) = Periods(database, storage), period_bounds("2026-11")
    await written(database, december - 600 * SECOND, "a", "5m", paid=False)
    database.clock = literal(december + 7200 * SECOND, Count())
    assert (await periods.waiting("2026-11")).hour == december - HOUR
    database.clock = literal(december + MOST_WAIT + 7200 * SECOND, Count())
    while await storage.record_next(_keep([])):
        pass
    assert (await periods.waiting("2026-11")).hour is None


def _keep(kept: list[StoredHour]) -> Callable[[Sequence[StoredHour]], Awaitable[None]]:
    async def keep(hours: Sequence[StoredHour]) -> None:
        kept.extend(hours)

    return keep

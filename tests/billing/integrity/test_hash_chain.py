"""The hash chain: whatever is done to an event behind our back, the audit says to which."""

from __future__ import annotations

import random
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import Text, literal, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import period_bounds
from billing.events import columns as traits
from billing.events.columns import EventColumns
from billing.events.rows import NAMES, EventRows
from billing.integrity import hash_chain
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.chain import usage_batch, usage_chain
from billing.tables.money import usage_event, usage_fact
from billing.usage import TRAITS, Usage, UsageEvent
from billing.verification.audit import audit_money
from storage.database.base import Count, Id, new_id
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.billing.recorded import store

DECEMBER = period_bounds("2026-12")[0]
CHAIN = {
    "an event was altered",
    "an event is missing",
    "an event was never settled",
    "the chain of events is broken",
    "the chain of events is cut off",
    "a closed period is not what it was",
}


async def _settled(database: Database, batches: int = 3, size: int = 4) -> tuple[Tenant, list[UsageEvent]]:
    """Events of one tenant, some of them in each of several batches."""
    database.clock = literal(DECEMBER - 1, Count())
    tenant, holds, events = await Tenant.rich(database, 10**13), HoldService(database), []
    for _ in range(batches):
        admitted = [await holds.reserve(tenant.request(10**8)) for _ in range(size)]
        made = [tenant.event(hold, Usage(uncached=len(events) + n)) for n, hold in enumerate(admitted)]
        await settle(database, PriceCatalog(database), made)
        events += made
    return tenant, events


async def _unguarded(session: AsyncSession, database: Database) -> None:
    """Do what somebody could who owns the database: put its triggers aside."""
    if database.dialect == "postgresql":
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        return
    for name in await session.scalars(text("SELECT name FROM sqlite_schema WHERE type = 'trigger'")):
        await session.execute(text("DROP TRIGGER " + name))


async def _tamper(database: Database, *statements: str, **values: object) -> None:
    async with database.transaction() as session:
        await _unguarded(session, database)
        for statement in statements:
            bound = text(statement)
            names = [name for name in values if f":{name}" in statement]
            typed = {name: Id().process_bind_param(v, database.engine.dialect) if isinstance(v, UUID) else v
                     for name, v in values.items() if name in names}  # fmt: skip
            await session.execute(bound, typed)


async def _findings(database: Database) -> dict[str, set[UUID]]:
    """What of the chain is wrong, and with whom."""
    found: dict[str, set[UUID]] = {}
    for finding in await audit_money(database):
        if finding.what in CHAIN:
            found.setdefault(finding.what, set()).add(finding.subject)
    return found


def test_a_leaf_says_all_that_an_event_says() -> None:
    assert (*(name for name in NAMES if name != "traits"), *TRAITS) == hash_chain.COLUMNS, "a second form is needed"
    assert set(hash_chain.COLUMNS) == {column.name for column in usage_event.columns}


@pytest.mark.slow
async def test_leaves_of_a_large_batch_in_any_order(database: Database) -> None:
    """Rows and leaves are made some at a time, those of corrections apart; of an event that comes twice, once."""
    database.clock = literal(DECEMBER - 1, Count())
    tenant = await Tenant.rich(database, 10**13)
    one = tenant.event(await HoldService(database).reserve(tenant.request(10**8)), Usage(uncached=7))
    replace = msgspec.structs.replace
    events = [replace(one, id=new_id(), sequence=n, reason="stop" if n % 3 else "length") for n in range(2100)]
    events += [replace(e, id=new_id(), corrects=e.id, cost_pico=-n) for n, e in enumerate(events[1:1200:100], 1)]
    random.Random(7).shuffle(events)
    again = [replace(event, sequence=9999) for event in events[::300]]
    await store(database, *events, *again)
    columns = EventColumns([*events, *again])
    (batch,) = hash_chain.batches(EventRows(columns, await traits.numbers(database, columns.kinds)))
    async with database.reading() as session:
        rows = (await session.execute(select(usage_event))).mappings().all()
    assert {row["id"]: row["sequence"] for row in rows} == {event.id: event.sequence for event in events}
    assert sum(row["corrects"] is not None for row in rows) == 12
    assert dict(hash_chain.entries_of(batch.entries)) == {row["id"]: hash_chain.leaf_of(row) for row in rows}
    assert [id for id, _ in hash_chain.entries_of(batch.entries)] == sorted(event.id for event in events)


async def test_links_follow_each_other(database: Database) -> None:
    _, events = await _settled(database)
    async with database.reading() as session:
        rows = {row["id"]: row for row in (await session.execute(select(usage_event))).mappings()}
        end = (await session.execute(select(usage_chain))).one()
        links = (await session.execute(select(usage_batch).order_by("link"))).all()
    assert [link.link for link in links] == [1, 2, 3]
    assert (end.links, end.events, end.head) == (3, 12, links[-1].head)
    entries = [entry for link in links for entry in hash_chain.entries_of(link.entries)]
    assert entries == [(event.id, hash_chain.leaf_of(rows[event.id])) for event in events]
    assert await audit_money(database) == []


def _other(column: str) -> object:
    kind = usage_event.c[column].type
    if isinstance(kind, Id):
        return new_id()
    if isinstance(kind, Text):
        return "2026-10" if column == "period" else "other"
    return 7


def _change(column: str) -> list[str]:
    """Statements that give one event another value, and no other."""
    if column not in TRAITS:
        return [f"UPDATE usage_fact SET {column} = :value WHERE id = :victim"]
    traits = ", ".join(TRAITS)
    values = ", ".join(":value" if name == column else name for name in TRAITS)
    same = "id = (SELECT traits FROM usage_fact WHERE id = :victim)"
    return [
        f"INSERT INTO usage_traits ({traits}) SELECT {values} FROM usage_traits WHERE {same}",
        "UPDATE usage_fact SET traits = (SELECT max(id) FROM usage_traits) WHERE id = :victim",
    ]


async def test_a_value_that_was_altered(database: Database) -> None:
    """Each column, of an event of its own; and no other event is named."""
    _, events = await _settled(database, batches=5, size=10)
    victims = dict(zip(hash_chain.COLUMNS, (event.id for event in events), strict=False))
    others = {column: _other(column) for column in hash_chain.COLUMNS}
    for column, victim in victims.items():
        await _tamper(database, *_change(column), value=others[column], victim=victim)
    moved = {victims["tenant_id"], victims["period"]}  # there they are new
    assert await _findings(database) == {
        "an event is missing": {victims["id"]},
        "an event was altered": set(victims.values()) - {victims["id"]},
        "an event was never settled": {others["id"]} | moved,
    }


@pytest.mark.slow
async def test_an_event_that_was_deleted(database: Database) -> None:
    _, events = await _settled(database)
    await _tamper(database, "DELETE FROM usage_fact WHERE id = :victim", victim=events[5].id)
    assert await _findings(database) == {"an event is missing": {events[5].id}}


@pytest.mark.slow
async def test_an_event_that_was_slipped_in(database: Database) -> None:
    _, events = await _settled(database)
    names = ", ".join(column.name for column in usage_fact.columns if column.name not in ("id", "sequence"))
    copied = f"INSERT INTO usage_fact (id, sequence, {names}) SELECT :new, 99, {names} FROM usage_fact WHERE id = :like"
    new = new_id()
    await _tamper(database, copied, new=new, like=events[0].id)
    assert await _findings(database) == {"an event was never settled": {new}}
    await _tamper(database, "DELETE FROM usage_fact WHERE id = :like", like=events[0].id)
    assert await _findings(database) == {
        "an event was never settled": {new},
        "an event is missing": {events[0].id},
    }


@pytest.mark.slow
async def test_two_events_that_were_swapped(database: Database) -> None:
    _, events = await _settled(database)
    a, b, spare = events[1].id, events[9].id, new_id()
    swap = "UPDATE usage_fact SET id = :{} WHERE id = :{}"
    await _tamper(
        database, swap.format("spare", "a"), swap.format("a", "b"), swap.format("b", "spare"), a=a, b=b, spare=spare
    )
    assert await _findings(database) == {"an event was altered": {a, b}}


@pytest.mark.slow
async def test_links_that_were_changed(database: Database) -> None:
    tenant, _ = await _settled(database)
    await _tamper(database, "UPDATE usage_batch SET link = 9 WHERE link = 2")
    assert await _findings(database) == {
        "the chain of events is broken": {tenant.id},
        "the chain of events is cut off": {tenant.id},
    }


@pytest.mark.slow
async def test_the_end_that_was_cut_off(database: Database) -> None:
    """Even with the events, and with the end made to fit: what was closed is remembered."""
    tenant, events = await _settled(database)
    assert (await _closed(database)) == {}
    last = [event.id for event in events[-4:]]
    for event in last:
        await _tamper(database, "DELETE FROM usage_fact WHERE id = :event", event=event)
    await _tamper(database, "DELETE FROM usage_batch WHERE link = 3")
    assert await _findings(database) == {
        "the chain of events is cut off": {tenant.id},
        "a closed period is not what it was": {UUID(int=0)},
    }
    async with database.reading() as session:
        before = (await session.execute(select(usage_batch).where(usage_batch.c.link == 2))).one()
    await _tamper(
        database, "UPDATE usage_chain SET links = 2, events = 8, root = :root, head = :head",
        root=before.root, head=before.head,
    )  # fmt: skip
    assert await _findings(database) == {"a closed period is not what it was": {UUID(int=0)}}


async def _closed(database: Database) -> dict[str, set[UUID]]:
    database.clock = literal(DECEMBER, Count())
    closed = await Periods(database).close("2026-11")
    assert closed.root is not None
    return await _findings(database)


@pytest.mark.slow
async def test_what_is_late_is_in_the_chain_of_the_period_that_books_it(database: Database) -> None:
    tenant, _ = await _settled(database)
    hold = await HoldService(database).reserve(tenant.request(10**8, lifetime_s=1))
    database.clock = literal(DECEMBER + 10**7, Count())
    await HoldService(database).sweep()
    assert (await Periods(database).close("2026-11")).state == "closed"
    await settle(database, PriceCatalog(database), [tenant.event(hold)])
    async with database.reading() as session:
        assert set(await session.scalars(select(usage_chain.c.period))) == {"2026-11", "2026-12"}
    assert await audit_money(database) == []
    assert await audit_money(database, "2026-11") == await audit_money(database, "2026-12") == []

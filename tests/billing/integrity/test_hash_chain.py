"""The hash chain: whatever is done to an event behind our back, the audit says to which."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, literal, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import period_bounds
from billing.events.columns import EventColumns, dimension_ids
from billing.events.rows import NAMES, EventRows
from billing.integrity import hash_chain, leaf_forms
from billing.integrity.leaf_forms import CURRENT, FORMS, LeafForm
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement import settlement
from billing.settlement.settlement import settle
from billing.tables.books import usage_batch, usage_chain
from billing.tables.money import usage_event, usage_fact
from billing.usage import DIMENSIONS, Usage, UsageEvent
from billing.verification import chain
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
    """A column that is added to events needs a further form."""
    form = FORMS[CURRENT]
    assert {*form.names} == {*NAMES} - {"traits"}
    assert {*form.texts} == {*DIMENSIONS}
    assert {*form.names, *form.texts} == {column.name for column in usage_event.columns}


def test_forms_are_numbered_and_begin_differently() -> None:
    assert [form.number for form in FORMS.values()] == list(range(1, len(FORMS) + 1))
    texts = dict.fromkeys(DIMENSIONS, "")
    marks = {LeafForm(number, FORMS[1].columns, FORMS[1].texts).start(texts) for number in range(1, 40)}
    assert len(marks) == 39


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
    (batch,) = hash_chain.chain_batches(EventRows(columns, await dimension_ids(database, columns.kinds)))
    async with database.reading() as session:
        rows = (await session.execute(select(usage_event))).mappings().all()
    assert {row["id"]: row["sequence"] for row in rows} == {event.id: event.sequence for event in events}
    assert sum(row["corrects"] is not None for row in rows) == 12
    assert dict(hash_chain.split_entries(batch.entries)) == {row["id"]: FORMS[CURRENT].leaf(row) for row in rows}
    assert [id for id, _ in hash_chain.split_entries(batch.entries)] == sorted(event.id for event in events)
    narrow = LeafForm(9, FORMS[1].columns[20:2:-3], ("replica", "model"))
    (other,) = hash_chain.chain_batches(EventRows(columns, dict.fromkeys(columns.kinds, 7)), narrow)
    assert other.form == 9
    assert dict(hash_chain.split_entries(other.entries)) == {row["id"]: narrow.leaf(row) for row in rows}


async def test_links_follow_each_other(database: Database) -> None:
    _, events = await _settled(database)
    async with database.reading() as session:
        rows = {row["id"]: row for row in (await session.execute(select(usage_event))).mappings()}
        end = (await session.execute(select(usage_chain))).one()
        links = (await session.execute(select(usage_batch).order_by("link"))).all()
    assert [link.link for link in links] == [1, 2, 3]
    assert (end.links, end.events, end.head) == (3, 12, links[-1].head)
    assert {link.form for link in links} == {CURRENT}
    entries = [entry for link in links for entry in hash_chain.split_entries(link.entries)]
    assert entries == [(event.id, FORMS[CURRENT].leaf(rows[event.id])) for event in events]
    assert await audit_money(database) == []


@pytest.fixture
async def with_energy(database: Database) -> AsyncIterator[Table]:
    """The view of usage events after they got a column."""
    view = usage_event.to_metadata(MetaData(), name="usage_event_with_energy")
    view.append_column(Column("energy", Integer))
    joined = "SELECT usage_event.*, energy FROM usage_event JOIN usage_fact USING (id)"
    async with database.transaction() as session:
        await session.execute(text("ALTER TABLE usage_fact ADD COLUMN energy INTEGER NOT NULL DEFAULT 3"))
        await session.execute(text(f"CREATE VIEW usage_event_with_energy AS {joined}"))
    yield view
    async with database.transaction() as session:
        await session.execute(text("DROP VIEW usage_event_with_energy"))
        await session.execute(text("ALTER TABLE usage_fact DROP COLUMN energy"))


async def test_a_chain_whose_later_batches_are_of_another_form(
    database: Database, with_energy: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events get a column, and a made-up form 2 that says it: what was settled before verifies as it was settled."""
    tenant, earlier = await _settled(database, batches=2)
    form_2 = LeafForm(2, (*FORMS[1].columns, ("energy", "int4")), FORMS[1].texts)
    monkeypatch.setitem(leaf_forms.FORMS, 2, form_2)
    monkeypatch.setattr(chain, "usage_event", with_energy)

    def batches_of_form_2(rows: EventRows) -> list[hash_chain.ChainBatch]:
        (batch,) = hash_chain.chain_batches(rows)
        said = {row["id"]: {**row, **dict(zip(DIMENSIONS, rows.columns.kinds[0], strict=True)), "energy": 3}
                for row in rows.mappings()}  # fmt: skip
        leaves = [(id, form_2.leaf(said[id])) for id, _ in hash_chain.split_entries(batch.entries)]
        return [msgspec.structs.replace(batch, form=2, entries=b"".join(id.bytes + leaf for id, leaf in leaves))]

    monkeypatch.setattr(settlement, "chain_batches", batches_of_form_2)
    later = [tenant.event(await HoldService(database).reserve(tenant.request(10**8))) for _ in range(2)]
    await settlement.settle(database, PriceCatalog(database), later)
    async with database.reading() as session:
        forms = list(await session.scalars(select(usage_batch.c.form).order_by(usage_batch.c.link)))
    assert forms == [1, 1, 2]
    assert await _findings(database) == {}
    for event in (earlier[0], later[0]):
        await _tamper(database, "UPDATE usage_fact SET energy = 4 WHERE id = :victim", victim=event.id)
    assert await _findings(database) == {"an event was altered": {later[0].id}}
    await _tamper(database, "UPDATE usage_batch SET form = 2 WHERE link = 1")
    assert (await _findings(database))["an event was altered"] == {*(e.id for e in earlier[:4]), later[0].id}
    await _tamper(database, "UPDATE usage_batch SET form = 3 WHERE link = 1")
    assert (await _findings(database))["the chain of events is broken"] == {tenant.id}


def _other(column: str) -> object:
    kind = usage_event.c[column].type
    if isinstance(kind, Id):
        return new_id()
    if isinstance(kind, Text):
        return "2026-10" if column == "period" else "other"
    return 7


def _change(column: str) -> list[str]:
    """Statements that give one event another value, and no other."""
    if column not in DIMENSIONS:
        return [f"UPDATE usage_fact SET {column} = :value WHERE id = :victim"]
    traits = ", ".join(DIMENSIONS)
    values = ", ".join(":value" if name == column else name for name in DIMENSIONS)
    same = "id = (SELECT traits FROM usage_fact WHERE id = :victim)"
    return [
        f"INSERT INTO usage_traits ({traits}) SELECT {values} FROM usage_traits WHERE {same}",
        "UPDATE usage_fact SET traits = (SELECT max(id) FROM usage_traits) WHERE id = :victim",
    ]


async def test_a_value_that_was_altered(database: Database) -> None:
    """Each column, of an event of its own; and no other event is named."""
    _, events = await _settled(database, batches=5, size=10)
    said = (*FORMS[CURRENT].names, *FORMS[CURRENT].texts)
    victims = dict(zip(said, (event.id for event in events), strict=False))
    others = {column: _other(column) for column in said}
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


async def test_an_altered_event_that_a_new_link_lists_again(database: Database) -> None:
    """A valid link with the leaf of what was altered hides nothing: an event is in one link."""
    tenant, events = await _settled(database)
    altered = events[1].id
    await _tamper(database, "UPDATE usage_fact SET uncached = uncached + 1 WHERE id = :event", event=altered)
    async with database.transaction() as session:
        await _unguarded(session, database)
        row = (await session.execute(select(usage_event).where(usage_event.c.id == altered))).mappings().one()
        end = (await session.execute(select(usage_chain))).one()
        entries = altered.bytes + FORMS[CURRENT].leaf(row)
        root = hash_chain.sha256(entries).digest()
        link = {"events": 1, "entries": entries, "root": root, "head": hash_chain.next_head(end.head, root)}
        of_chain = {"tenant_id": tenant.id, "period": end.period}
        await session.execute(usage_batch.insert().values(**of_chain, link=end.links + 1, **link, form=CURRENT))
        made_to_fit = {"links": end.links + 1, "events": end.events + 1, "root": root, "head": link["head"]}
        await session.execute(usage_chain.update().values(**made_to_fit))
    assert altered in (await _findings(database)).get("an event was altered", set())


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

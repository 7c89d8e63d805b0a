"""Whoever owns the database and puts its triggers aside: what they alter, remove, add or move is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, LargeBinary, Text, delete, event, insert, select, update

from audit_log.anchors import InvalidWitness, Witness, anchor_chains, latest_witness
from audit_log.leaf_forms import CURRENT, FORMS, first_head, next_head
from audit_log.tables import PLATFORM, audit_anchor, audit_chain, audit_entry
from audit_log.verification import (
    ALTERED,
    ANCHOR,
    CUT_OFF,
    MISPLACED,
    MISSING,
    NEW,
    ChainEnd,
    LogFinding,
    check_end,
    verify_log,
)
from storage.database.base import Count, Id, new_id
from storage.database.database import Database
from tests.audit_log.log_parts import entries, record, unguarded, verified
from tests.fast import examples

TENANTS = [UUID(int=7), UUID(int=8)]
_ROW = audit_entry.c


async def _filled(database: Database, rounds: int = 5) -> None:
    for _ in range(rounds):
        await record(database, *TENANTS, None)


def _names(found: list[LogFinding]) -> set[tuple[str, UUID, int | None]]:
    return {(one.what, one.tenant_id, one.number) for one in found}


def _is(tenant: UUID, number: int) -> Any:
    return (_ROW.tenant_id == tenant) & (_ROW.number == number)


def _other(column: Column[Any], value: Any) -> Any:
    if isinstance(column.type, Id):
        return new_id()
    if isinstance(column.type, LargeBinary):
        return value[:-1] + bytes([value[-1] ^ 1])
    if isinstance(column.type, Text):
        return f"{value or ''}1"
    assert isinstance(column.type, Count | Integer)
    return value + 100


@pytest.mark.both_databases
async def test_every_column_of_an_entry(database: Database) -> None:
    await _filled(database)
    tenant = TENANTS[1]
    for column in audit_entry.columns:
        row = (await entries(database, tenant))[2]
        there = row._mapping[column.name]
        altered = {column.name: _other(column, there)}
        async with unguarded(database) as session:
            await session.execute(update(audit_entry).where(_is(tenant, 3)).values(altered))
        found = _names(await verified(database))
        wanted = {
            "number": {(MISSING, tenant, 3), (ALTERED, tenant, 103)},
            "tenant_id": {(MISSING, tenant, 3)},
            "head": {(MISPLACED, tenant, 3)},
        }.get(column.name, {(ALTERED, tenant, 3)})
        assert wanted <= found, column.name
        changed = dict(row._mapping) | altered
        async with unguarded(database) as session:
            mine = _is(changed["tenant_id"], changed["number"])
            await session.execute(update(audit_entry).where(mine).values({column.name: there}))
        assert await verified(database) == []


@pytest.mark.both_databases
async def test_the_end_of_a_chain(database: Database) -> None:
    await _filled(database)
    tenant = TENANTS[1]

    async def end(most: int = 1000) -> ChainEnd:
        async with database.reading() as session:
            return await check_end(session, tenant, most)

    whole = await end()
    assert (whole.entries, whole.checked, whole.anchored, whole.findings) == (5, 5, 0, [])
    assert await end(3) == msgspec.structs.replace(whole, checked=3)
    async with unguarded(database) as session:
        await session.execute(update(audit_entry).where(_is(tenant, 3)).values(reason="another"))
    assert _names((await end(3)).findings) == {(ALTERED, tenant, 3)}
    assert (await end(2)).findings == []  # it is not among the last two
    async with unguarded(database) as session:
        await session.execute(delete(audit_entry).where(_is(tenant, 5)))
    assert _names((await end(2)).findings) == {(MISSING, tenant, 5)}
    async with database.reading() as session:
        assert (await check_end(session, UUID(int=9))).entries == 0


@pytest.mark.both_databases
async def test_removed_entries_also_the_last(database: Database) -> None:
    await _filled(database)
    tenant = TENANTS[0]
    for gone in ([2], [1], [5], [4, 5], [1, 2, 3, 4, 5]):
        kept = [dict(row._mapping) for row in await entries(database, tenant) if row.number in gone]
        async with unguarded(database) as session:
            await session.execute(delete(audit_entry).where(_ROW.tenant_id == tenant, _ROW.number.in_(gone)))
        assert _names(await verified(database)) == {(MISSING, tenant, number) for number in gone}
        async with unguarded(database) as session:
            await session.execute(insert(audit_entry), kept)
        assert await verified(database) == []


@pytest.mark.both_databases
async def test_entries_that_nobody_recorded(database: Database) -> None:
    await _filled(database)
    tenant = TENANTS[0]
    last = dict((await entries(database, tenant))[-1]._mapping)
    forged = last | {"number": 6, "action": "grant.created"}
    forged["leaf"] = CURRENT.leaf(forged)
    forged["head"] = next_head(last["head"], forged["leaf"])
    async with unguarded(database) as session:
        await session.execute(insert(audit_entry), [forged])
    assert _names(await verified(database)) == {(NEW, tenant, 6)}
    async with unguarded(database) as session:
        await session.execute(delete(audit_entry).where(_is(tenant, 6)))
    stranger = new_id()
    alone = forged | {"tenant_id": stranger, "number": 1}
    alone["leaf"] = CURRENT.leaf(alone)
    alone["head"] = next_head(first_head(stranger), alone["leaf"])
    async with unguarded(database) as session:
        await session.execute(insert(audit_entry), [alone])
    assert _names(await verified(database)) == {(NEW, stranger, 1)}


@pytest.mark.both_databases
async def test_an_entry_between_two_and_two_that_changed_places(database: Database) -> None:
    await _filled(database)
    tenant = TENANTS[0]
    third, fourth = (dict(row._mapping) for row in (await entries(database, tenant))[2:4])
    async with unguarded(database) as session:
        await session.execute(delete(audit_entry).where(_ROW.tenant_id == tenant, _ROW.number.in_([3, 4])))
        swapped = [third | {"number": 4}, fourth | {"number": 3}]
        await session.execute(insert(audit_entry), swapped)
    assert {(ALTERED, tenant, 3), (ALTERED, tenant, 4)} <= _names(await verified(database))
    async with unguarded(database) as session:  # with their own leaves made anew
        await session.execute(delete(audit_entry).where(_ROW.tenant_id == tenant, _ROW.number.in_([3, 4])))
        await session.execute(insert(audit_entry), [one | {"leaf": CURRENT.leaf(one)} for one in swapped])
    assert {(MISPLACED, tenant, 3), (MISPLACED, tenant, 4)} <= _names(await verified(database))


async def test_a_chain_that_was_computed_anew_does_not_end_as_it_did(database: Database) -> None:
    await _filled(database)
    tenant = TENANTS[0]
    head = first_head(tenant)
    async with unguarded(database) as session:
        for row in [dict(one._mapping) for one in await _rows(session, tenant)]:
            row["actor_name"] = "somebody else"
            leaf = CURRENT.leaf(row)
            head = next_head(head, leaf)
            values = {"actor_name": row["actor_name"], "leaf": leaf, "head": head}
            await session.execute(update(audit_entry).where(_is(tenant, row["number"])).values(values))
    assert _names(await verified(database)) == {(CUT_OFF, tenant, 5)}


async def _rows(session: Any, tenant: UUID) -> Any:
    query = select(audit_entry).where(_ROW.tenant_id == tenant).order_by(_ROW.number)
    return (await session.execute(query)).all()


@pytest.mark.both_databases
async def test_an_end_that_was_cut_off_with_its_head_is_anchored(database: Database) -> None:
    tenant = TENANTS[0]
    await _filled(database)
    assert await anchor_chains(database) == 2
    assert await anchor_chains(database) == 0  # the anchor itself is the platform's, and nothing else has grown
    await record(database, tenant)
    assert await anchor_chains(database) == 1
    assert await verified(database) == []
    witness = await latest_witness(database)
    assert witness is not None
    assert Witness.parse(witness.text) == witness
    await _cut(database, tenant, 5)
    assert _names(await verified(database)) == {(CUT_OFF, tenant, 6)}
    async with unguarded(database) as session:  # the anchor too
        await session.execute(delete(audit_anchor).where(audit_anchor.c.anchor == 2))
    assert _names(await verified(database)) == {(ANCHOR, PLATFORM, 7)}
    await _cut(database, PLATFORM, 6)  # and the platform's end: only what is kept elsewhere tells
    assert await verified(database) == []
    async with database.reading() as session:
        assert _names(await verify_log(session, witness=witness)) == {(CUT_OFF, PLATFORM, 7)}


async def _cut(database: Database, tenant: UUID, keep: int) -> None:
    """Remove a chain's end, and set its head back as it was then."""
    async with unguarded(database) as session:
        head = await session.scalar(select(_ROW.head).where(_is(tenant, keep)))
        await session.execute(delete(audit_entry).where(_ROW.tenant_id == tenant, _ROW.number > keep))
        mine = audit_chain.c.tenant_id == tenant
        await session.execute(update(audit_chain).where(mine).values(entries=keep, head=head))


@pytest.mark.both_databases
async def test_anchors_that_were_altered(database: Database) -> None:
    await _filled(database)
    await anchor_chains(database)
    for column, value in ((audit_anchor.c.entries, 4), (audit_anchor.c.head, b"x" * 32), (audit_anchor.c.anchor, 9)):
        mine = audit_anchor.c.tenant_id == TENANTS[0]
        async with database.reading() as session:
            there = await session.scalar(select(column).where(mine))
        async with unguarded(database) as session:
            await session.execute(update(audit_anchor).where(mine).values({column: value}))
        assert ANCHOR in {what for what, _, _ in _names(await verified(database))}
        async with unguarded(database) as session:
            await session.execute(update(audit_anchor).where(mine).values({column: there}))
        assert await verified(database) == []


@pytest.mark.both_databases
async def test_many_anchors_are_verified_in_one_pass_and_probed_for_each_chain(database: Database) -> None:
    async def statements(work: Callable[[], Awaitable[object]]) -> list[str]:
        seen: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            seen.append(statement)

        engines = [database.engine.sync_engine, database._reader.sync_engine]
        for engine in engines:
            event.listen(engine, "before_cursor_execute", note)
        try:
            await work()
        finally:
            for engine in engines:
                event.remove(engine, "before_cursor_execute", note)
        return seen

    await record(database, *TENANTS)
    await anchor_chains(database)
    few = await statements(lambda: verified(database))
    for _ in range(9):
        await record(database, *TENANTS)
        assert await anchor_chains(database) == 2
    assert len(await statements(lambda: verified(database))) == len(few)
    if database.dialect == "sqlite":
        (query,) = [one for one in await statements(lambda: anchor_chains(database)) if "audit_chain" in one]
        async with database.reading() as session:
            plan = (await session.connection()).exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", (PLATFORM.bytes, 1, 0))
            steps = [row[3] for row in await plan]
        assert [step for step in steps if "audit_anchor" in step and not step.startswith("SEARCH")] == [], steps


@pytest.mark.parametrize("text", ["", "1", "x:00", "0:" + "00" * 32, "1:00", "1:" + "zz" * 32])
def test_what_is_no_witness(text: str) -> None:
    with pytest.raises(InvalidWitness):
        Witness.parse(text)


def test_a_leaf_says_every_column() -> None:
    """A column that is added needs a second form."""
    made = {"form", "leaf", "head"}
    assert {*CURRENT.columns} | made == {column.name for column in audit_entry.columns}
    assert list(FORMS) == [1]
    row = {column.name: new_id() if isinstance(column.type, Id) else 5 for column in audit_entry.columns}
    assert len({CURRENT.leaf(row | {name: 6}) for name in CURRENT.columns} | {CURRENT.leaf(row)}) == 1 + len(
        CURRENT.columns
    )
    texts = [row | {"before": None, "after": "x"}, row | {"before": "x", "after": None}]
    assert len({CURRENT.leaf(one) for one in texts}) == 2


Alteration = tuple[str, int, int, str]
_ALTERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["alter", "remove", "insert", "swap", "copy"]),
        st.integers(0, 2),
        st.integers(1, 6),
        st.sampled_from([column.name for column in audit_entry.columns if not column.primary_key]),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(alterations=_ALTERATIONS)
def test_no_alterations_go_unnamed(empty_again: Callable[[], str], alterations: list[Alteration]) -> None:
    assert asyncio.run(_go_wrong(empty_again(), alterations)) == []


async def _go_wrong(url: str, alterations: list[Alteration]) -> list[str]:
    """What the verification says wrongly after these alterations; nothing if it is right."""
    database = await Database.open(url)
    try:
        await _filled(database, 6)
        was = await _content(database)
        for one in alterations:
            await _apply(database, one)
        is_now, found = await _content(database), await verified(database)
    finally:
        await database.close()
    changed = {key for key in was.keys() | is_now.keys() if was.get(key) != is_now.get(key)}
    named = {(one.tenant_id, one.number) for one in found}
    problems = [] if bool(changed) == bool(found) else [f"{len(changed)} changes, {len(found)} findings"]
    content = {key for key in changed if _content_of(was.get(key)) != _content_of(is_now.get(key))}
    return problems + [f"{key} is not named" for key in content if key not in named]


def _content_of(row: dict[str, Any] | None) -> Any:
    return None if row is None else {name: row[name] for name in CURRENT.columns}


async def _content(database: Database) -> dict[tuple[UUID, int], dict[str, Any]]:
    rows = [row for tenant in (*TENANTS, PLATFORM) for row in await entries(database, tenant)]
    return {(row.tenant_id, row.number): dict(row._mapping) for row in rows}


async def _apply(database: Database, alteration: Alteration) -> None:
    verb, chain, number, name = alteration
    tenant = (*TENANTS, PLATFORM)[chain]
    rows = {row.number: dict(row._mapping) for row in await entries(database, tenant)}
    row = rows.get(number)
    async with unguarded(database) as session:
        if verb == "alter" and row is not None:
            value = _other(audit_entry.c[name], row[name] if row[name] is not None else "")
            await session.execute(update(audit_entry).where(_is(tenant, number)).values({name: value}))
        elif verb == "remove":
            await session.execute(delete(audit_entry).where(_is(tenant, number)))
        elif verb == "insert" and row is not None:
            await session.execute(insert(audit_entry), [row | {"number": max(rows) + number}])
        elif verb == "swap" and row is not None and number + 1 in rows:
            pair = [row | {"number": number + 1}, rows[number + 1] | {"number": number}]
            await session.execute(delete(audit_entry).where(_is(tenant, number) | _is(tenant, number + 1)))
            await session.execute(insert(audit_entry), pair)
        elif verb == "copy" and row is not None:
            values = {each: row[each] for each in ("action", "leaf", "head", "after")}
            await session.execute(update(audit_entry).where(_is(tenant, 1 + number % 6)).values(values))

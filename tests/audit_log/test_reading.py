"""Entries come newest first over all chains, filtered, in pages and as a stream."""

from __future__ import annotations

import csv
import io
from uuid import UUID

import pytest

from audit_log import csv_rows
from audit_log.actors import acting_as
from audit_log.reading import EVERYTHING, AuditLog, Entry, Filter, Scope
from audit_log.record import record_change
from storage.database.base import new_id
from storage.database.database import Database
from tests.audit_log.log_parts import ANN, record

TENANTS = [UUID(int=n) for n in (7, 8, 9)]


async def _pages(log: AuditLog, wanted: Filter, limit: int) -> list[Entry]:
    found: list[Entry] = []
    while page := await log.page(wanted, EVERYTHING, limit, found[-1].position if found else None):
        found += page
    return found


@pytest.mark.both_databases
async def test_pages_of_many_chains_have_each_entry_once(database: Database) -> None:
    for _ in range(6):
        await record(database, *TENANTS, None, TENANTS[0])  # two of one chain at one instant
    log = AuditLog(database)
    whole = [entry async for entry in log.stream(Filter(), EVERYTHING)]
    assert len(whole) == 30
    assert len({entry.position for entry in whole}) == 30
    assert [entry.at for entry in whole] == sorted((entry.at for entry in whole), reverse=True)
    for limit in (1, 4, 30, 31):
        assert [entry.position for entry in await _pages(log, Filter(), limit)] == [one.position for one in whole]
    assert await log.page(Filter(), EVERYTHING, 5, (TENANTS[0], 999)) == []


async def test_a_position_that_the_reader_may_not_see_is_absent(database: Database) -> None:
    await record(database, TENANTS[0], TENANTS[1], TENANTS[0], TENANTS[1])
    log, own = AuditLog(database), (Scope(TENANTS[0]),)
    assert len(await log.page(Filter(), own, 5, (TENANTS[0], 2))) == 1
    for position in ((TENANTS[1], 2), (TENANTS[1], 1), (TENANTS[1], 9)):
        assert await log.page(Filter(), own, 5, position) == []


@pytest.mark.both_databases
async def test_filters(database: Database) -> None:
    project = new_id()
    async with database.transaction() as session:
        for action in ("budget.set", "budgetXset.done", "budget.removed", "key.created"):
            await record_change(
                session, action, target="budget", target_id=action[:3], tenant_id=TENANTS[0], project_id=project
            )
    with acting_as(ANN):
        await record(database, TENANTS[1], None)
    log = AuditLog(database)

    async def actions(wanted: Filter, *scopes: Scope) -> list[str]:
        return sorted(entry.action for entry in await log.page(wanted, scopes or EVERYTHING, 100))

    assert await actions(Filter(action="budget.*", tenant_id=TENANTS[0])) == ["budget.removed", "budget.set"]
    assert await actions(Filter(action="budget", tenant_id=TENANTS[0])) == ["budget.removed", "budget.set"]
    assert await actions(Filter(action="key.created")) == ["key.created"]
    assert await actions(Filter(actor="ann")) == await actions(Filter(actor="tpk_ann")) == ["budget.set"] * 2
    assert await actions(Filter(platform=True)) == ["budget.set"]
    assert len(await actions(Filter(project_id=project))) == 4
    assert await actions(Filter(target="budget", target_id="key")) == ["key.created"]
    assert await actions(Filter(), Scope(money=True)) == ["budget.removed", *["budget.set"] * 3]
    assert await actions(Filter(), Scope(TENANTS[1])) == ["budget.set"]
    assert await actions(Filter(tenant_id=TENANTS[0]), Scope(TENANTS[1])) == []
    (newest,) = await log.page(Filter(), EVERYTHING, 1)
    assert await actions(Filter(until=newest.at, actor="ann")) == ["budget.set"]  # the other one of the two
    assert await actions(Filter(since=newest.at)) == ["budget.set"]
    assert await actions(Filter(since=newest.at + 1)) == []


async def test_csv_rows(database: Database) -> None:
    await record(database, TENANTS[0], action="budget.set")
    (entry,) = await AuditLog(database).page(Filter(), EVERYTHING, 1)
    rows = list(csv.DictReader(io.StringIO(csv_rows.header() + csv_rows.lines([entry]))))
    assert [tuple(row) for row in rows] == [csv_rows.COLUMNS]
    assert (rows[0]["tenant"], rows[0]["after"], rows[0]["before"]) == (str(TENANTS[0]), '{"n":0}', "")
    assert rows[0]["at"].endswith("Z")

"""Changes are recorded with their transaction, in chains that nobody waits for in a circle."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from audit_log.actors import Actor, NoActor, acting_as, become, current_actor
from audit_log.record import MOST_BYTES, MOST_TEXT, encoded, record_change
from audit_log.tables import PLATFORM
from storage.database.base import new_id
from storage.database.database import Database
from tests.audit_log.log_parts import ANN, entries, record, verified


@pytest.mark.both_databases
async def test_an_entry_says_who_did_what(database: Database) -> None:
    tenant, project = new_id(), new_id()
    with acting_as(ANN):
        async with database.transaction() as session:
            await record_change(
                session,
                "budget.set",
                target="budget",
                target_id="b1",
                tenant_id=tenant,
                project_id=project,
                reason="a quarter's plan",
                before=None,
                after={"limit": "12.50", "id": project},
            )
    (entry,) = await entries(database, tenant)
    assert (entry.number, entry.action, entry.target, entry.target_id) == (1, "budget.set", "budget", "b1")
    assert (entry.actor_means, entry.actor_id, entry.actor_name) == ("operator_key", "tpk_ann", "ann")
    assert (entry.actor_through, entry.actor_address, entry.request_id) == ("root@host", "192.0.2.7", "req_1")
    assert (entry.project_id, entry.reason, entry.before) == (project, "a quarter's plan", None)
    assert entry.after == f'{{"id":"{project}","limit":"12.50"}}'
    assert abs(entry.at - await database.now()) < 60_000_000
    assert await verified(database) == []


@pytest.mark.both_databases
async def test_what_is_rolled_back_is_not_recorded(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is rolled back
        async with database.transaction() as session:
            await record_change(session, "a.done", target="a", target_id="1")
            raise ZeroDivisionError
    async with database.transaction(write=False) as session:
        await record_change(session, "a.done", target="a", target_id="1")
    assert await entries(database) == []


async def test_without_an_actor_nothing_changes(database: Database) -> None:
    async def change() -> None:
        async with database.transaction() as session:
            await record_change(session, "a.done", target="a", target_id="1")

    with pytest.raises(NoActor):
        await asyncio.create_task(change(), context=contextvars.Context())
    assert await entries(database) == []


async def test_actors_are_those_of_their_task() -> None:
    async def work(name: str) -> str:
        become(Actor("command", name, name))
        await asyncio.sleep(0)
        return current_actor().name

    assert await asyncio.gather(work("ann"), work("bob")) == ["ann", "bob"]
    assert current_actor().name == "tests"


@pytest.mark.both_databases
async def test_many_at_once_neither_deadlock_nor_lose_one(database: Database) -> None:
    tenants = [new_id() for _ in range(4)]
    turns = [[*tenants[n % 4 :], *tenants[: n % 4], None] for n in range(24)]
    async with asyncio.timeout(30):
        await asyncio.gather(*(record(database, *turn) for turn in turns))
    for tenant in (*tenants, None):
        found = await entries(database, tenant)
        assert [entry.number for entry in found] == list(range(1, 25))
        assert [entry.at for entry in found] == sorted(entry.at for entry in found)
    assert await verified(database) == []


@pytest.mark.both_databases
async def test_entries_refuse_change(database: Database) -> None:
    await record(database, None)
    for statement in (
        "UPDATE audit_entry SET action = 'other'",
        "DELETE FROM audit_entry",
        "DELETE FROM audit_chain",
        "UPDATE audit_anchor SET entries = 7",
        "DELETE FROM audit_anchor",
    ):
        if database.dialect == "sqlite" and "anchor" in statement:
            continue  # its triggers look at rows, and there are none
        with pytest.raises(DBAPIError, match="immutable"):
            async with database.transaction() as session:
                await session.execute(text(statement))
    assert await verified(database) == []


async def test_what_is_too_long_or_cannot_be_kept(database: Database) -> None:
    async with database.transaction() as session:
        await record_change(
            session, "a.done", target="a", target_id="1", reason="\0\ud800" + "x" * MOST_TEXT, after=["y" * MOST_BYTES]
        )
    (entry,) = await entries(database)
    assert entry.tenant_id == PLATFORM
    assert len(entry.reason) == MOST_TEXT
    assert entry.after.startswith(f'{{"bytes":{MOST_BYTES + 4},"sha256":"')
    assert await verified(database) == []


def test_equal_values_have_equal_texts() -> None:
    assert encoded({"b": 1, "a": None}) == encoded({"a": None, "b": 1}) == '{"a":null,"b":1}'
    assert encoded(None) is None
    with pytest.raises(TypeError):
        encoded({"a": object()})

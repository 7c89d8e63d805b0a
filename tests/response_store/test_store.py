"""Kept responses in both databases: of one project each, sealed, chained, expired, run by one worker at a time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import text

from audit_log.actors import Actor, acting_as
from prompt_cache.promise.scope_keys import ProjectKey, ScopeKeys
from response_store.policies import ResponsePolicies, ResponsePolicy
from response_store.records import NewResponse
from response_store.running import Orphan, Progress, RunningResponses, Standing
from response_store.sealing import ContentSeal, Unreadable
from response_store.store import MOST_CHAINED, ChainBroken, ChainTooLong, ResponseStore, forget_expired
from storage.database.base import new_id
from storage.database.database import Database

TENANT, PROJECT, OTHER = new_id(), new_id(), new_id()


def response(**changes: Any) -> NewResponse:
    new = NewResponse(
        id=new_id(),
        tenant_id=TENANT,
        project_id=PROJECT,
        previous_id=None,
        kind="stored",
        status="completed",
        model="tiny",
        request=b'{"input":"a question"}',
        response=b'{"output":[]}',
        lifetime_s=60,
    )
    return replace(new, **changes)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[ResponseStore]:
    made = ResponseStore(database, ScopeKeys(database, b"m" * 32))
    with acting_as(Actor("project_key", "key", "key")):
        yield made
    await made.close()


async def kept(store: ResponseStore, **changes: Any) -> UUID:
    new = response(**changes)
    await store.save(new)
    return new.id


async def rows(store: ResponseStore, sql: str) -> list[Any]:
    async with store.database.reading() as session:
        return list((await session.execute(text(sql))).all())


async def test_a_project_reads_what_it_kept_and_nobody_else_does(store: ResponseStore) -> None:
    id_ = await kept(store)
    found = await store.get(TENANT, PROJECT, id_)
    assert found is not None
    assert (found.request, found.response, found.kind) == (b'{"input":"a question"}', b'{"output":[]}', "stored")
    assert await store.get(TENANT, OTHER, id_) is None
    assert await store.get(OTHER, PROJECT, id_) is None
    assert not await store.chain(TENANT, OTHER, id_)
    assert not await store.delete(TENANT, OTHER, id_)
    assert [one.id for one in await store.page(TENANT, PROJECT, limit=5)] == [id_]
    assert await store.page(TENANT, OTHER, limit=5) == []
    (row,) = await rows(store, "SELECT request FROM stored_response")
    assert b"question" not in bytes(row.request)
    assert await store.delete(TENANT, PROJECT, id_)
    assert await store.get(TENANT, PROJECT, id_) is None


async def test_a_chain_has_all_before_it_and_breaks_where_one_is_gone(store: ResponseStore) -> None:
    first = await kept(store)
    second = await kept(store, previous_id=first)
    third = await kept(store, previous_id=second)
    assert [one.id for one in (await store.chain(TENANT, PROJECT, third)).open()] == [first, second, third]
    await store.delete(TENANT, PROJECT, first)
    with pytest.raises(ChainBroken):
        await store.chain(TENANT, PROJECT, third)


async def test_a_chain_that_is_too_long_or_bites_its_tail_ends(store: ResponseStore) -> None:
    one, other = new_id(), new_id()
    await store.save(response(id=one, previous_id=other))
    await store.save(response(id=other, previous_id=one))
    with pytest.raises(ChainTooLong):
        await store.chain(TENANT, PROJECT, one)
    assert MOST_CHAINED == 1000


async def test_pages_go_on_after_the_last_one(store: ResponseStore) -> None:
    ids = [await kept(store) for _ in range(5)]
    page = await store.page(TENANT, PROJECT, limit=2)
    rest = await store.page(TENANT, PROJECT, limit=9, before=page[-1].id)
    assert [one.id for one in (*page, *rest)] == ids[::-1]


async def test_what_has_expired_is_neither_read_nor_kept(store: ResponseStore) -> None:
    gone, stays = await kept(store, lifetime_s=-1), await kept(store)
    assert await store.get(TENANT, PROJECT, gone) is None
    assert await forget_expired(store.database) == 1
    assert [row.id for row in await store.page(TENANT, PROJECT, limit=5)] == [stays]


async def test_policies_are_remembered_for_seconds_and_recorded(store: ResponseStore) -> None:
    policies = ResponsePolicies(store.database)
    assert await policies.get(TENANT, PROJECT) == ResponsePolicy(None, False)
    await policies.set(TENANT, PROJECT, retention_s=0)
    await policies.set(TENANT, PROJECT, readable=True, reason="support")
    assert await policies.get(TENANT, PROJECT) == ResponsePolicy(0, True)
    await policies.set(TENANT, PROJECT, retention_s=None)
    assert await ResponsePolicies(store.database).get(TENANT, PROJECT) == ResponsePolicy(None, True)
    assert await policies.get(OTHER, PROJECT, fresh=True) == ResponsePolicy(None, False)
    entries = await rows(store, "SELECT action, reason FROM audit_entry ORDER BY at")
    assert [(row.action, row.reason) for row in entries] == [
        ("response_policy.set", ""),
        ("response_policy.set", "support"),
        ("response_policy.set", ""),
    ]


async def test_events_are_read_from_any_number_on(store: ResponseStore) -> None:
    running = RunningResponses(store, "worker-a")
    id_ = await kept(store, kind="background", status="queued", worker="worker-a")
    seal = await store.seal_of(TENANT, PROJECT)
    told = [f"event {number}".encode() for number in range(10)]
    for first, last in ((0, 2), (2, 7), (7, 10)):
        progress = Progress(id=id_, tenant_id=TENANT, first=first, events=told[first:last], status="in_progress")
        assert await running.write(progress, seal) == Standing(True, False)
    for after in range(-1, 10):
        assert await running.events(TENANT, id_, after, seal) == (told[after + 1 :], 9)
    assert (await running.events(OTHER, id_, -1, seal))[0] == []
    for absurd in (2**31 - 1, 2**31, 2**40 - 1):
        assert await running.events(TENANT, id_, absurd, seal) == ([], absurd)
    await running.close()


async def test_what_a_response_in_the_background_told_counts_as_kept(store: ResponseStore) -> None:
    running = RunningResponses(store, "worker-a")
    id_ = await kept(store, kind="background", status="queued", worker="worker-a")
    await kept(store, project_id=OTHER)
    seal, before = await store.seal_of(TENANT, PROJECT), await store.used_bytes(TENANT, PROJECT)
    told = [random.Random(2).randbytes(2000)]
    await running.write(Progress(id=id_, tenant_id=TENANT, first=0, events=told), seal)
    with_events = await store.used_bytes(TENANT, PROJECT)
    assert before + 2000 <= with_events <= before + 2200
    ended = Progress(id=id_, tenant_id=TENANT, first=1, status="completed", response=b"{}" + b" " * 4998, ended=True)
    await running.write(ended, seal)
    assert await store.used_bytes(TENANT, PROJECT) == with_events + 5000
    await running.close()


async def test_items_are_read_of_so_much_content_at_most(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [await kept(store, request=b"x" * 1000) for _ in range(3)]
    monkeypatch.setattr("response_store.store.MOST_CHAIN_BYTES", 2500)
    assert len(await store.items_of(TENANT, PROJECT, ids[:2])) == 2
    assert not await store.items_of(TENANT, OTHER, ids)
    with pytest.raises(ChainTooLong):
        await store.items_of(TENANT, PROJECT, ids)


async def test_a_response_has_one_worker(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = RunningResponses(store, "worker-a"), RunningResponses(store, "worker-b")
    id_ = await kept(store, kind="background", status="queued", worker="worker-a")
    seal, orphan = await store.seal_of(TENANT, PROJECT), Orphan(id_, TENANT, PROJECT)
    beat = Progress(id=id_, tenant_id=TENANT, first=0)
    with monkeypatch.context() as nothing_is_written:
        nothing_is_written.setattr(Database, "transaction", None)
        assert await there.take_over(orphan, 60) is None
    assert await there.orphans(60) == []
    await there.cancel(TENANT, OTHER, id_)
    assert await here.write(beat, seal) == Standing(True, False)
    await there.cancel(TENANT, PROJECT, id_)
    assert await here.write(beat, seal) == Standing(True, True)
    assert await there.orphans(-1) == [orphan]
    assert await there.take_over(orphan, -1) == 1
    assert await here.take_over(orphan, -1) == 2
    assert (await here.write(replace(beat, released=True), seal)).mine
    assert await there.take_over(orphan, 60) == 2, "one that was given away did not kill its worker"
    late = replace(beat, events=[b"late"], status="completed", ended=True)
    assert await here.write(late, seal) == Standing(False, False), "what it writes now counts no more"
    assert (await here.events(TENANT, id_, -1, seal))[0] == []
    end = replace(late, events=[b"end"], status="cancelled", response=b"{}")
    assert (await there.write(end, seal)).mine
    found = await store.get(TENANT, PROJECT, id_)
    assert found is not None
    assert (found.status, found.response, found.worker) == ("cancelled", b"{}", None)
    assert await here.take_over(orphan, -1) is None
    await here.close()
    await there.close()


@given(content=st.binary(max_size=2000), of=st.binary(max_size=20))
def test_sealed_content_opens_where_it_belongs_and_nowhere_else(content: bytes, of: bytes) -> None:
    key = ProjectKey(1, b"k" * 32, 0)
    seal = ContentSeal(key, PROJECT)
    sealed = seal.seal(content, of)
    assert seal.open(sealed, of) == content
    for other, thing in (
        (ContentSeal(key, OTHER), of),
        (seal, of + b"x"),
        (ContentSeal(replace(key, key=b"l" * 32), PROJECT), of),
    ):
        with pytest.raises(Unreadable):
            other.open(sealed, thing)
    with pytest.raises(Unreadable):
        seal.open(sealed[:-1], of)

"""Refused requests are written in the background: a bounded number of each tenant, and none in another's place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable
from waterfall import refused_requests, refused_writer
from waterfall.refused_requests import RefusedRequest, RefusedRequestStore
from waterfall.refused_writer import MOST_OF_TENANT, MOST_TENANTS, MOST_TEXT, RefusedRequestWriter

_A, _B = UUID(int=1), UUID(int=2)
_P, _Q = UUID(int=11), UUID(int=12)
_DAY_S = 86_400
_DAY_US = _DAY_S * 1_000_000


def refused(tenant: UUID = _A, at: int = 0, **more: Any) -> RefusedRequest:
    says: dict[str, Any] = {"key": "k1", "route": "POST /v1/x", "status": 400, "code": "c", "message": "m"}
    return RefusedRequest(tenant_id=tenant, request_id=new_id(), at=at, **{"project_id": _P, **says, **more})


class Store(RefusedRequestStore):
    """Keeps what is written in memory; the database is away while `away`."""

    def __init__(self) -> None:
        self.writes: list[list[RefusedRequest]] = []
        self.away = False

    async def write(self, rows: Sequence[RefusedRequest]) -> None:
        if self.away:
            raise DatabaseUnavailable("away")
        self.writes.append(list(rows))

    @property
    def rows(self) -> list[RefusedRequest]:
        return [row for batch in self.writes for row in batch]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_writer, "_GATHER_S", 0.01)


async def _until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_a_flood_of_one_tenant_leaves_the_others_theirs() -> None:
    store = Store()
    store.away = True
    writer = RefusedRequestWriter(store)
    for _ in range(5000):
        writer.note(refused(_A))
    mine = refused(_B)
    writer.note(mine)
    assert writer.dropped == 5000 - MOST_OF_TENANT
    store.away = False
    await _until(lambda: mine in store.rows)
    assert sum(row.tenant_id == _A for row in store.rows) == MOST_OF_TENANT
    later = refused(_A)
    writer.note(later)  # there is room again
    await _until(lambda: later in store.rows)
    await writer.stop()


async def test_many_tenants_are_written_in_turns_and_beyond_the_bound_are_counted() -> None:
    store = Store()
    writer = RefusedRequestWriter(store)
    many = [refused(UUID(int=number)) for number in range(MOST_TENANTS + 3)]
    for one in many:
        writer.note(one)
    assert writer.dropped == 3
    await writer.stop()
    assert store.rows == many[:MOST_TENANTS]
    assert max(len(batch) for batch in store.writes) <= 20


async def test_a_message_is_kept_short_and_plain() -> None:
    store = Store()
    writer = RefusedRequestWriter(store)
    writer.note(refused(message="a\0b\ud800c\u202e\n" + "x" * 1000))
    await writer.stop()
    (row,) = store.rows
    assert row.message.startswith("a\ufffdb?c\ufffd\ufffdx")
    assert len(row.message) == MOST_TEXT


async def test_turned_off_nothing_is_kept() -> None:
    store = Store()
    writer = RefusedRequestWriter(store, enabled=False)
    writer.note(refused())
    await writer.stop()
    assert store.rows == []


# ------------------------------------------------------------ the table


@pytest.mark.both_databases
async def test_the_newest_of_each_tenant_stay(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_requests, "MOST_OF_TENANT", 10)
    store = RefusedRequestStore(database, 7 * _DAY_S)
    now = await database.now()
    theirs = [refused(_B, now, key="k2") for _ in range(3)]
    mine = [refused(_A, now) for _ in range(25)]
    await store.write([*theirs, *mine[:5]])
    await store.write(mine[5:])
    await store.write(mine[20:])  # after a commit whose answer was lost
    assert await store.page(_A, 100) == mine[:14:-1]
    assert await store.page(_B, 100) == theirs[::-1]
    assert await store.page(_A, 3, after=mine[20].request_id) == mine[19:16:-1]
    assert await store.page(_A, 3, after=theirs[0].request_id) == []


@pytest.mark.both_databases
async def test_what_is_older_than_it_is_kept_is_hidden_and_then_deleted(database: Database) -> None:
    store = RefusedRequestStore(database, 7 * _DAY_S)
    now = await database.now()
    old, new = [refused(at=now - 3 * _DAY_US) for _ in range(5)], [refused(at=now, project_id=None) for _ in range(2)]
    other = refused(at=now, project_id=_Q, key="k3")
    await store.write([*old, *new, other])
    assert await store.page(_A, 100) == [other, *new[::-1], *old[::-1]]
    assert await store.page(_A, 100, projects=[_Q]) == [other]
    assert await store.page(_A, 100, projects=[]) == []
    assert await store.page(_A, 100, keys=["k3"]) == [other]
    shorter = RefusedRequestStore(database, 2 * _DAY_S)
    assert await shorter.page(_A, 100) == [other, *new[::-1]]
    assert await shorter.forget_old() == 5
    assert await shorter.forget_old() == 0
    assert await store.page(_A, 100) == [other, *new[::-1]]

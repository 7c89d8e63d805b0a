"""Writing times in the background: each once, when nothing more is learned, within bounds, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable
from tests.awake import Awake
from tests.waiting import until
from waterfall import marks as m
from waterfall import writer as writer_module
from waterfall.marks import Marks
from waterfall.record import Record, pack, unpack
from waterfall.store import BATCH, Row, WaterfallStore, fair_share
from waterfall.writer import MOST_REFUSED, MOST_WAITING, Entry, WaterfallWriter

_TENANT, _PROJECT = UUID(int=1), UUID(int=2)
_DAY_S = 86_400


class Store(WaterfallStore):
    """Keeps rows in memory; the database is away while `away`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.away = False
        self.broken = False

    async def write(self, rows: Sequence[Row]) -> None:
        if self.broken:
            raise RuntimeError("a defect")
        if self.away:
            raise DatabaseUnavailable("away")
        self.rows += rows


def entry(request_id: UUID | None = None, **more: Any) -> Entry:
    marks = Marks()
    marks.mark(m.AUTH)
    return Entry(request_id or new_id(), _TENANT, _PROJECT, marks, Record(0, (), model="tiny"), **more)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GATHER_S", 0.01)


async def test_a_request_is_written_when_it_is_answered_and_settled() -> None:
    store = Store()
    writer = WaterfallWriter(store)
    one = entry()
    writer.note(one)
    await asyncio.sleep(0.05)
    assert store.rows == []
    one.marks.mark(m.ANSWER)
    one.marks.answered = True
    await asyncio.sleep(0.05)
    assert store.rows == []
    assert writer.waiting(one.request_id) is one
    writer.settled([new_id(), one.request_id, one.request_id])
    await until(lambda: store.rows)
    (row,) = store.rows
    assert unpack(row.record).marks[::2] == (m.RECEIVED, m.AUTH, m.ANSWER, m.SETTLE)
    await until(lambda: writer.waiting(one.request_id) is None)
    await writer.stop()


async def test_nothing_is_waited_for_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_TIMEOUT_S", 0.05)
    store = Store()
    writer = WaterfallWriter(store)
    one = entry()
    writer.note(one)
    await until(lambda: store.rows)
    assert [row.request_id for row in store.rows] == [one.request_id]
    assert writer.waiting(one.request_id) is None
    await writer.stop()


async def test_while_the_database_is_away_requests_wait_and_beyond_the_bound_are_counted() -> None:
    store = Store()
    store.away = True
    writer = WaterfallWriter(store)
    for _ in range(MOST_REFUSED + 5):
        one = entry(settles=False, refused=True)
        one.marks.answered = True
        writer.note(one)
    assert writer.dropped == 5
    for _ in range(MOST_WAITING):
        one = entry(settles=False)
        one.marks.answered = True
        writer.note(one)
    assert writer.dropped == 5 + MOST_REFUSED
    await asyncio.sleep(0.1)
    assert store.rows == []
    store.away = False
    await until(lambda: len(store.rows) == MOST_WAITING)
    assert len({row.request_id for row in store.rows}) == MOST_WAITING
    await writer.stop()


@pytest.mark.alone
async def test_a_stop_writes_what_waits_and_does_not_hang_on_a_database_that_is_away() -> None:
    store = Store()
    writer = WaterfallWriter(store)
    writer.note(entry())
    await writer.stop()
    assert len(store.rows) == 1
    store.away = True
    writer = WaterfallWriter(store)
    writer.note(entry())
    with Awake() as awake:
        await writer.stop()
        assert awake.seconds < 2


async def test_a_defect_of_the_store_ends_nothing() -> None:
    store = Store()
    store.broken = True
    writer = WaterfallWriter(store)
    one = entry(settles=False)
    one.marks.answered = True
    writer.note(one)
    await until(lambda: writer.dropped == 1)
    store.broken = False
    two = entry(settles=False)
    two.marks.answered = True
    writer.note(two)
    await until(lambda: store.rows)
    assert [row.request_id for row in store.rows] == [two.request_id]
    assert writer.dropped == 1
    await writer.stop()


async def test_turned_off_nothing_is_noted() -> None:
    writer = WaterfallWriter(Store(), enabled=False)
    one = entry()
    writer.note(one)
    assert writer.waiting(one.request_id) is None


# ------------------------------------------------------------ the table


def full(at: int, tenant: UUID = _TENANT) -> Row:
    return Row(new_id(), tenant, _PROJECT, at, pack(Record(at, (0, 0, 1, 5), model="tiny")))


@pytest.mark.both_databases
async def test_rows_are_kept_once_and_found(database: Database) -> None:
    store = WaterfallStore(database, 7 * _DAY_S)
    now = await database.now()
    rows = [full(now + number) for number in range(3)]
    await store.write(rows)
    await store.write(rows)  # after a commit whose answer was lost
    found = await store.find(rows[1].request_id)
    assert found is not None
    assert (found.tenant_id, found.project_id, found.record.received_at) == (_TENANT, _PROJECT, now + 1)
    many = await store.find_many(_TENANT, [one.request_id for one in rows] + [new_id()])
    assert many.keys() == {one.request_id for one in rows}
    assert await store.find_many(UUID(int=9), [one.request_id for one in rows]) == {}
    assert await store.find_many(_TENANT, []) == {}
    assert await store.find(new_id()) is None


@pytest.mark.both_databases
async def test_old_rows_are_forgotten_in_batches_and_those_beyond_the_most(database: Database) -> None:
    store = WaterfallStore(database, 7 * _DAY_S)
    now = await database.now()
    day = 86_400_000_000
    old = [full(now - 8 * day) for _ in range(BATCH + 10)]
    new = [full(now - day) for _ in range(50)]
    await store.write([*old, *new])
    assert [await store.forget_old() for _ in range(3)] == [BATCH, 10, 0]
    assert await store.forget_beyond(most=20) == 30
    assert await store.forget_beyond(most=20) == 0
    left = await store.find_many(_TENANT, [one.request_id for one in new])
    assert left.keys() == {one.request_id for one in new[-20:]}
    nothing = WaterfallStore(database, 0)
    assert await nothing.forget_old() == 20
    assert await nothing.forget_old() == 0


@pytest.mark.both_databases
async def test_kept_shorter_old_rows_are_hidden_at_once_and_deleted_later(database: Database) -> None:
    now, day = await database.now(), _DAY_S * 1_000_000
    old, new = full(now - 3 * day), full(now)
    before = WaterfallStore(database, 7 * _DAY_S)
    await before.write([old, new])
    assert await before.find(old.request_id) is not None
    store = WaterfallStore(database, 2 * _DAY_S)
    assert await store.find(old.request_id) is None
    assert await store.find(new.request_id) is not None
    assert (await store.find_many(_TENANT, [old.request_id, new.request_id])).keys() == {new.request_id}
    assert await before.find(old.request_id) is not None  # not deleted yet
    assert await store.forget_old() == 1
    assert await before.find(old.request_id) is None


@pytest.mark.both_databases
async def test_a_flood_of_one_tenant_pushes_out_nobody_elses(database: Database) -> None:
    store = WaterfallStore(database, 7 * _DAY_S)
    now = await database.now()
    early = [full(now, UUID(int=8)) for _ in range(10)]
    flood = [full(now, UUID(int=7)) for _ in range(BATCH + 100)]
    busy = [full(now, UUID(int=9)) for _ in range(80)]
    await store.write([*early, *flood, *busy])
    assert await store.forget_beyond(most=110) == len(flood) - 50 + len(busy) - 50
    for tenant, rows, stay in ((UUID(int=8), early, 10), (UUID(int=7), flood, 50), (UUID(int=9), busy, 50)):
        left = await store.find_many(tenant, [one.request_id for one in rows])
        assert left.keys() == {one.request_id for one in rows[-stay:]}


@given(st.lists(st.integers(1, 1000), max_size=20), st.integers(0, 5000))
def test_shares_fill_the_room_and_take_from_the_largest_alone(counts: list[int], most: int) -> None:
    share = fair_share(counts, most)
    kept = [min(count, share) for count in counts]
    assert sum(kept) <= most
    if sum(counts) <= most:
        assert kept == counts
    else:
        assert most - sum(kept) < len(counts), "but for what cannot be divided, all room is used"

"""The history in the database: bounds, sums, retention, and two gateways that see each other's requests."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select, update

from prompt_cache.history import store
from prompt_cache.history.diagnosis import CAUSES, Diagnosis, Earlier, Evidence, Miss, diagnose
from prompt_cache.history.prefix_hashes import family, history_secret, nodes_of
from prompt_cache.history.records import RequestRecord, pack
from prompt_cache.history.resemblance import Noted
from prompt_cache.history.store import KEEP_S, History, day_of
from prompt_cache.tables import cache_prefix, cache_request
from protocol.requests import Lost
from storage.database.base import new_id
from storage.database.database import Database

TENANT, PROJECT = new_id(), new_id()
KIN = family(history_secret(b"r" * 32), "m", "d", "")
SECOND = 1_000_000


def noted(prompt: list[int], at: int, **changes: Any) -> Noted:
    nodes = nodes_of(prompt, changes.pop("kin", KIN))
    record = RequestRecord(
        **{
            "id": new_id(),
            "tenant_id": TENANT,
            "project_id": PROJECT,
            "at": at,
            "visible_at": at + 1,
            "model": "m",
            "text_digest": "d",
            "family": KIN.key,
            "partition": b"",
            "format": b"",
            "surface": "openai",
            "lane": "standard",
            "replica": "a",
            "tokens": len(prompt),
            "nodes": tuple(node.key for node in nodes),
            "spans": (),
            "pieces": (),
            "root_path": "$.messages",
            "automatic": True,
            "read": "longest",
            "store": "all",
            "read_min": 64,
            "lookups": (),
            "max_age": None,
            "entries": (),
            "breakpoints": (),
            "parts": (),
            "billed_read": 0,
            "found": 0,
            "misses": (),
            "price_version": 1,
            "cost_pico": 0,
            **changes,
        }
    )
    return Noted(record, nodes)


async def keep(history: History, one: Noted) -> Evidence:
    evidence, one.known = await history.evidence(one)
    one.diagnosis = diagnose(one.record, evidence)
    one.costs, one.currency = {"evicted": 5}, "USD"
    await history.write([one])
    return evidence


@pytest.mark.both_databases
async def test_the_nearest_request_is_found_to_the_token(database: Database) -> None:
    now = await database.now()
    one, other = History(database), History(database)
    prompt = list(range(3000))
    first = noted(prompt, now)
    await keep(one, first)
    for count in range(30):
        await keep(one, noted([*range(100), *range(9000 + count, 9500 + count)], now + 1 + count))
    for common in (50, 64, 100, 129, 511, 512, 1024, 1500, 2999):
        new = noted([*prompt[:common], *range(20_000, 20_300)], now + 1000)
        evidence, _ = await other.evidence(new)
        assert evidence.same[0].common == common
        if common > 100:
            assert evidence.same[0].record.id == first.record.id
        assert await other.common_with(new, first.record) == common
    later = noted(prompt, now - 1)
    evidence, _ = await other.evidence(later)
    assert not evidence.same, "what comes later explains nothing"


async def test_others_see_nothing(database: Database) -> None:
    now = await database.now()
    history = History(database)
    mine = noted(list(range(500)), now)
    await keep(history, mine)
    for foreign in ({"tenant_id": new_id()}, {"project_id": new_id()}):
        evidence, known = await history.evidence(noted(list(range(500)), now + 10, **foreign))
        assert (evidence.same, evidence.other, known) == ((), None, frozenset())
    assert await history.get(TENANT, PROJECT, mine.record.id) is not None
    assert await history.get(TENANT, None, mine.record.id) is not None
    assert await history.get(TENANT, new_id(), mine.record.id) is None
    assert await history.get(new_id(), None, mine.record.id) is None


async def test_a_conversation_is_kept_once(database: Database) -> None:
    now = await database.now()
    history = History(database)
    for turn in range(1, 21):
        await keep(history, noted(list(range(1000 * turn)), now + turn))
    hashes, records = await history.size(TENANT, PROJECT)
    assert hashes < 4 * 20_000 * 1.3, "four bytes for each token that is new, and the ends of prompts again"
    assert records < 20 * 2500


async def test_a_project_keeps_no_more_than_it_may(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_REQUESTS", 3)
    now = await database.now()
    history = History(database)
    for count in range(6):
        await keep(history, noted([count, *range(400)], now + count))
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(cache_request)) == 3
    rows = await history.days(TENANT, PROJECT, day_of(now), day_of(now))
    assert {row.requests for row in rows if row.cause == "read"} == {6}, "sums go on"


@pytest.mark.both_databases
async def test_days_are_added_up_by_cause(database: Database) -> None:
    now = await database.now()
    history = History(database)
    for count in range(3):
        await keep(history, noted(list(range(640)), now + count))
    rows = {row.cause: row for row in await history.days(TENANT, PROJECT, day_of(now), day_of(now))}
    assert sum(row.tokens for row in rows.values()) == 3 * 640
    assert (rows["cold"].tokens, rows["evicted"].tokens, rows["evicted"].cost_pico) == (640, 2 * 576, 10)
    assert not await history.days(new_id(), PROJECT, day_of(now), day_of(now))
    assert not await history.days(TENANT, PROJECT, "2020-01-01", "2020-01-02")


@pytest.mark.both_databases
async def test_what_is_old_is_forgotten(database: Database) -> None:
    now = await database.now()
    history = History(database)
    await keep(history, noted(list(range(640)), now - (KEEP_S + 5) * SECOND))
    young = noted(list(range(5000, 5640)), now)
    await keep(history, young)
    assert await history.forget_old() > 1
    assert await history.forget_old() == 0
    assert await history.get(TENANT, PROJECT, young.record.id) is not None
    async with database.transaction() as session:
        assert await session.scalar(select(func.count()).select_from(cache_request)) == 1
        await session.execute(update(cache_prefix).where(cache_prefix.c.tenant_id == TENANT).values(last_at=1))
    assert await history.forget_old() == len(young.nodes)


async def test_a_project_is_forgotten_alone(database: Database) -> None:
    now = await database.now()
    history = History(database)
    mine, other = noted(list(range(640)), now), noted(list(range(640)), now, project_id=new_id())
    await keep(history, mine)
    await keep(history, other)
    await history.forget(TENANT, PROJECT)
    assert await history.get(TENANT, None, mine.record.id) is None
    assert await history.size(TENANT, PROJECT) == (0, 0)
    assert await history.get(TENANT, None, other.record.id) is not None


def test_a_record_has_no_text() -> None:
    told = pack(noted(list(range(100)), 1).record)
    assert len(told) < 400


def test_corrupted_records_are_named() -> None:
    before = noted(list(range(640)), 1).record
    new = noted(list(range(640)), 100, lost=(Lost(128, 256, "corrupted"),)).record
    found = diagnose(new, Evidence((Earlier(before, 640),)))
    assert found == Diagnosis(640, 0, found.misses, (), before.id, 640)
    assert [(miss.start, miss.end, miss.cause) for miss in found.misses] == [
        (0, 128, "evicted"),
        (128, 256, "corrupted"),
        (256, 576, "evicted"),
        (576, 640, "block_rest"),
    ]
    assert all(isinstance(miss, Miss) and miss.cause in CAUSES for miss in found.misses)


def test_what_was_lost_stands_behind_what_was_read_though_its_tail_was_read() -> None:
    before = noted(list(range(640)), 1).record
    lost = (Lost(64, 192, "late"), Lost(320, 384, "corrupted"))
    new = noted(list(range(640)), 100, found=320, billed_read=320, lost=lost).record
    found = diagnose(new, Evidence((Earlier(before, 640),)))
    assert [(miss.start, miss.end, miss.cause) for miss in found.misses] == [
        (320, 448, "late"),
        (448, 512, "corrupted"),
        (512, 576, "evicted"),
        (576, 640, "block_rest"),
    ]
    leased = noted(list(range(640)), 100, found=320, billed_read=640, lost=lost).record
    assert [
        (miss.start, miss.end, miss.cause) for miss in diagnose(leased, Evidence((Earlier(before, 640),))).recomputed
    ] == [
        (320, 448, "late"),
        (448, 512, "corrupted"),
        (512, 576, "evicted"),
    ]

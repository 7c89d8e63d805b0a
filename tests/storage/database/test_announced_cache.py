"""The cache of what was read of the database: what is trusted for how long, and what an announced change forgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from storage.bus import Callback, LocalBus, OnGap
from storage.database.announced_cache import TRUSTED_ALONE_S, TRUSTED_SHARED_S, AnnouncedCache
from storage.database.database import DatabaseUnavailable


class _Bus(LocalBus):
    """A bus that reaches other processes, until it is lost."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.connected = True  # type: ignore[misc]
        self.report_gap: OnGap = lambda: None

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        self.report_gap = on_gap
        await super().subscribe(topic, callback, on_gap)


class _Place:
    """Rows that others change, and a cache of them. `reads`: the keys that were read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.bus = _Bus()
        self.rows: dict[str, str] = {"a": "1", "b": "1"}
        self.reads: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False
        self.cache = AnnouncedCache(self.bus, self.read, clock=lambda: self.now)

    async def read(self, key: str) -> str | None:
        self.reads.append(key)
        if self.fails:
            raise DatabaseUnavailable("away")
        value = self.rows.get(key)
        await self.answers.wait()
        return value

    async def announce(self, key: str) -> None:
        await self.bus.publish("rows", key.encode())
        await asyncio.sleep(0)


@pytest.fixture
async def place() -> AsyncIterator[_Place]:
    place = _Place()
    await place.cache.listen("rows", lambda payload: [payload.decode()])
    yield place
    await place.cache.close()
    await place.bus.close()


async def test_a_value_is_read_anew_when_it_was_announced_or_is_old(place: _Place) -> None:
    assert [await place.cache.get(key) for key in "aba"] == ["1", "1", "1"]
    place.rows.update(a="2", b="2")
    await place.announce("a")
    assert [await place.cache.get(key) for key in "ab"] == ["2", "1"]
    place.now += TRUSTED_SHARED_S
    assert await place.cache.get("b") == "2"
    assert place.reads == ["a", "b", "a", "b"]


async def test_without_the_bus_what_was_read_before_it_was_lost_is_old_at_once(place: _Place) -> None:
    await place.cache.get("a")
    place.rows["a"] = "2"
    place.now += TRUSTED_ALONE_S
    assert await place.cache.get("a") == "1"
    place.bus.connected = False
    assert await place.cache.get("a") == "2"


async def test_a_gap_on_the_bus_forgets_everything(place: _Place) -> None:
    await place.cache.get("a")
    place.rows["a"] = "2"
    place.bus.report_gap()
    assert await place.cache.get("a") == "2"


async def test_what_is_new_is_found_within_half_a_second(place: _Place) -> None:
    assert await place.cache.get("new") is None
    place.rows["new"] = "1"
    assert await place.cache.get("new") is None, "no guess costs more than one read"
    place.now += TRUSTED_ALONE_S
    assert await place.cache.get("new") == "1"


async def test_guessed_keys_do_not_evict_values(place: _Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.database.announced_cache._CAPACITY", 2)
    for key in ("a", "x", "y", "z", "b", "a"):
        await place.cache.get(key)
    assert place.reads == ["a", "x", "y", "z", "b"]


async def test_many_who_miss_a_value_read_it_once_and_not_as_it_was_before_a_change(place: _Place) -> None:
    place.answers.clear()
    asking = [asyncio.create_task(place.cache.get("a")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert place.reads == ["a"]
    place.rows["a"] = "2"
    await place.announce("a")
    place.answers.set()
    assert set(await asyncio.gather(*asking)) == {"2"}
    assert place.reads == ["a", "a"]


async def test_a_value_that_is_old_is_peeked_at_while_it_is_read(place: _Place) -> None:
    assert place.cache.peek("a") is None
    assert await place.cache.load("a") == "1"
    place.rows["a"] = "2"
    place.now += 1.5 * TRUSTED_SHARED_S
    assert place.cache.peek("a") == "1"
    await place.cache.close()
    assert place.cache.peek("a") == "2"
    place.now += 2 * TRUSTED_SHARED_S
    assert place.cache.peek("a") is None


async def test_without_a_database_what_is_trusted_is_there_and_no_other_is_absent(place: _Place) -> None:
    await place.cache.get("a")
    place.fails = True
    assert await place.cache.get("a") == "1"
    with pytest.raises(DatabaseUnavailable):
        await place.cache.get("b")
    assert place.cache.cached() == {"a": "1"}

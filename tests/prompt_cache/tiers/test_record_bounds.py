"""The record store's bounds: limits and reserves hold, and what is worth the least goes first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from prompt_cache.tiers.identity import ScopeAccess
from prompt_cache.tiers.record_format import disk_bytes, record_bytes
from prompt_cache.tiers.record_index import RecordIndex
from prompt_cache.tiers.record_store import RecordStore
from tests.prompt_cache.tiers.stores import (
    LARGE,
    MINE,
    OTHER,
    SIZE,
    Clock,
    access,
    get,
    key,
    opened,
    payload,
    payloads,
    put,
    record_paths,
)


def test_the_limit_evicts_what_was_not_used(folder: Path) -> None:
    clock = Clock()
    with opened(folder, limit_bytes=30 * SIZE, clock=clock) as store:
        for number in range(30):
            clock.now += 1
            assert put(store, number)
        for number in range(5):
            assert get(store, number)
        for number in range(30, 50):
            clock.now += 1
            assert put(store, number)
            assert store.used_bytes <= 30 * SIZE
        assert [get(store, number) for number in range(5)] == [True] * 5
        assert store.counters["evictions"] == 20


def test_a_reserve_is_not_taken_by_others(folder: Path) -> None:
    kept = access("kept", reserve=5 * SIZE)
    with opened(folder, limit_bytes=20 * SIZE) as store:
        for number in range(8):
            assert put(store, number, kept)
        for number in range(100):
            assert put(store, number, OTHER)
        assert store.usage == {"kept": 5 * SIZE, "other": 15 * SIZE}


def test_a_limit_of_a_scope(folder: Path) -> None:
    small = access("small", limit=3 * SIZE)
    with opened(folder) as store:
        assert put(store, 0, OTHER)
        for number in range(10):
            assert put(store, number, small)
        assert store.usage == {"small": 3 * SIZE, "other": SIZE}
        assert not store.write(small, key(1), {1: payload("small", 1, 1)}, position=0)
        assert store.counters["refused_limit"] == 1


def test_all_reserved_is_a_refusal(folder: Path) -> None:
    with opened(folder, limit_bytes=4 * SIZE) as store:
        for number in range(4):
            assert put(store, number, access("kept", reserve=4 * SIZE))
        assert not put(store, 1, OTHER)
        assert store.counters["refused_reserved"] == 1


def test_the_last_tenth_of_the_file_system_stays_free(folder: Path) -> None:
    free = os.statvfs("/dev/shm" if str(folder).startswith("/dev/shm") else folder.parent)
    share = free.f_bavail / free.f_blocks
    with opened(folder) as store:
        assert put(store, 1)
    with opened(folder, keep_free_share=(1 + share) / 2) as store:
        assert not put(store, 2)
        assert store.counters["refused_keep_free"] == 1
        assert get(store, 1)
        store.maintain()
        assert not get(store, 1), "what is there is given back"


def test_room_is_given_back_and_not_taken_again_at_once(folder: Path) -> None:
    with opened(folder, limit_bytes=20 * SIZE) as store:
        for number in range(20):
            assert put(store, number)
        assert store.give_back(8 * SIZE) == 8 * SIZE
        assert len(record_paths(folder)) == 12
        for number in range(20, 40):
            put(store, number)
        assert store.used_bytes == 12 * SIZE


def test_a_limit_that_was_lowered_is_reached_write_by_write(folder: Path) -> None:
    with opened(folder) as store:
        for number in range(200):
            assert put(store, number)
        lowered = access("mine", limit=3 * SIZE)
        refused = [not put(store, number, lowered) for number in range(200, 210)]
        assert refused == [True] * 3 + [False] * 7, "64 records are deleted for a write, not more"
        assert store.usage == {"mine": 3 * SIZE}


def chain(store: RecordStore, numbers: Sequence[int], scope: ScopeAccess = MINE) -> bool:
    """Write the blocks of a prompt in all groups."""
    before = None
    for place, number in enumerate(numbers):
        if not store.write(scope, key(number), payloads(scope.scope, number), position=place * 64, before=before):
            return False
        before = (scope.scope, key(number))
    return True


def held(store: RecordStore, numbers: Sequence[int], scope: ScopeAccess = MINE) -> list[bool]:
    """Which of these blocks are there whole."""
    return [store.holds(scope.scope, key(number), (0, 1)) for number in numbers]


BLOCK = SIZE + disk_bytes(record_bytes(LARGE))
"""What a block takes of the disk."""


@pytest.mark.parametrize("restart", [False, True], ids=["written", "scanned"])
def test_the_end_of_a_prefix_goes_before_its_beginning(folder: Path, restart: bool) -> None:
    """Also after a restart, where records are seen in the order of their names."""
    first, second = list(range(0, 8)), [0, 1, *range(20, 26)]
    with opened(folder, limit_bytes=20 * BLOCK) as store:
        assert chain(store, first)
        assert chain(store, second)
        left = [store]
        with contextlib.ExitStack() as stack:
            if restart:
                store.close()
                left = [stack.enter_context(opened(folder, limit_bytes=20 * BLOCK))]
            assert held(left[0], [*first, *second]) == [True] * 16
            while left[0].records:
                left[0].give_back(SIZE)
                for prompt in (first, second):
                    there = held(left[0], prompt)
                    assert there == sorted(there, reverse=True), "what is held can be found"
        assert not any(held(left[0], [*first, *second]))


def test_what_is_read_stays_and_what_was_read_before_it_was_evicted_comes_back_as_such(folder: Path) -> None:
    """The placement of the other tiers decides: a prompt that is read is worth more than many that are not."""
    with opened(folder, limit_bytes=12 * BLOCK) as store:
        assert chain(store, range(4))
        for prompt in range(1, 40):
            assert chain(store, range(10 * prompt, 10 * prompt + 4))
            assert all(store.read(MINE, key(number), (0, 1)) == payloads("mine", number) for number in range(4))
        assert held(store, range(4)) == [True] * 4


def test_a_circle_of_headers_locks_nothing() -> None:
    """A header is not unsealed when it is seen: somebody may have made it."""
    index = RecordIndex(10)
    for name, parent in ((b"a", b"b"), (b"b", b"a"), (b"c", b"c")):
        index.add(name, "s", 10, expires=1.0, place=3, parent=parent)
    assert set(index.give_up(30, 64)) == {b"a", b"b", b"c"}
    assert (len(index), index.used, index.usage) == (0, 0, {})


def test_a_lease_keeps_a_record(folder: Path) -> None:
    with opened(folder, limit_bytes=4 * SIZE) as store:
        for number in range(4):
            assert put(store, number)
        store.lease("mine", [key(0)], time.time() + 100)
        for number in range(4, 20):
            assert put(store, number)
        assert get(store, 0)


def write_prompt(index: RecordIndex, prompt: int, blocks: int, *, limit: int, scope: str = "s") -> list[bytes]:
    """Write the blocks of a prompt one after another as a store with so many bytes does; their names."""
    names = [b"%d-%d" % (prompt, place) for place in range(blocks)]
    for place, name in enumerate(names):
        index.give_up_beyond_limit(scope, 1, 64)
        index.give_up(index.used + 1 - limit, 64)
        index.add(name, scope, 1, expires=1e12, place=place, parent=names[place - 1] if place else b"")
    return names


def test_the_order_learns_how_many_blocks_a_prompt_added_to_a_full_store() -> None:
    """Prompts of two blocks are read again, those of 40 never. Each is written when there is no room for it."""
    limit = 200
    index = RecordIndex(limit)
    for prompt in range(0, 400, 4):
        short = write_prompt(index, prompt, 2, limit=limit)
        write_prompt(index, prompt + 1, 40, limit=limit)
        for name in short:
            index.touch(name)
    short = write_prompt(index, 400, 2, limit=limit)
    long = write_prompt(index, 401, 40, limit=limit)
    index.add(b"another prompt", "s", 1, expires=1e12)
    index.give_up(index.used - 30, limit)
    assert [name in index for name in short] == [True, True], "the older one goes first if all are of one class"
    assert not any(name in index for name in long)


@pytest.mark.parametrize("prompts", [1, 2, 20])
def test_what_is_being_written_counts_against_its_scopes_limit(prompts: int) -> None:
    """However many prompts are written in turns, the scope keeps to its limit, and what others hold stays."""
    index = RecordIndex(1000)
    index.add(b"old", "s", 1, expires=1e12)
    index.add(b"theirs", "t", 1, expires=1e12)
    index.set_share("s", 0, 30)
    for place in range(40):
        for prompt in range(prompts):
            index.give_up_beyond_limit("s", 1, 64)
            index.add(
                b"%d-%d" % (prompt, place), "s", 1, expires=1e12, place=place, parent=b"%d-%d" % (prompt, place - 1)
            )
            assert index.used_by("s") <= 30
    assert b"old" not in index
    assert b"theirs" in index
    assert index.used_by("s") == 30


def test_a_prompt_that_is_being_written_goes_when_nothing_else_can() -> None:
    index = RecordIndex(100)
    names = [b"%d" % place for place in range(8)]
    for place, name in enumerate(names):
        index.add(name, "s", 10, expires=1e12, place=place, parent=names[place - 1] if place else b"")
    assert list(index.give_up(30, 64)) == names[:4:-1]
    assert list(index.give_up(1000, 64)) == names[4::-1]
    assert (len(index), index.used) == (0, 0)

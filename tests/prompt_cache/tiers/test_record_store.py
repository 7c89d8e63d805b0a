"""The record store: what is written is read until it is purged, evicted or too old, across restarts."""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prompt_cache.placement import eviction_order, hit_density
from prompt_cache.tiers import record_index
from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_format import HEADER_BYTES, unpack
from prompt_cache.tiers.record_index import RecordIndex
from prompt_cache.tiers.record_store import RecordStore
from prompt_cache.tiers.sealing import Sealer, record_key
from prompt_cache.tiers.store_state import StoreLocked, StoreUnusable, state_folder
from prompt_cache.tiers.tombstones import MOST_KEYS, Tombstones
from protocol.replicas import Scope, TierLimit
from tests.fast import examples
from tests.prompt_cache.tiers.stores import (
    GROUPS,
    IDENTITY,
    LARGE,
    MINE,
    OTHER,
    RETENTION_S,
    SIZE,
    SMALL,
    Clock,
    Files,
    access,
    get,
    key,
    memory_folder,
    opened,
    payload,
    payloads,
    put,
    record_paths,
)
from tests.small_disk import small_disk

# ---------------------------------------------------------------- a model


class Machine(RuleBasedStateMachine):
    """Against a dictionary: what is read is what was last written, and what was purged is never read."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = memory_folder()
        self.folder = self._memory.__enter__()
        self.clock = Clock()
        self.model: dict[tuple[str, int], float] = {}
        """(scope, number) -> when it expires, of what may be there"""
        self.store = self._open()

    def _open(self) -> RecordStore:
        store = RecordStore(
            self.folder, IDENTITY, limit_bytes=16 * SIZE, keep_free_share=0.0, write_share=1.0, clock=self.clock
        )
        store.open()
        return store

    def teardown(self) -> None:
        self.store.close()
        self._memory.__exit__(None, None, None)

    scopes = st.sampled_from([MINE, OTHER])
    numbers = st.integers(0, 7)

    @initialize()
    def begin(self) -> None:
        for scope in (MINE, OTHER):
            self.write(scope, set(range(0, 8, 2)))

    @rule(scope=scopes, numbers=st.sets(numbers, min_size=1))
    def write(self, scope: ScopeAccess, numbers: set[int]) -> None:
        for number in numbers:
            if put(self.store, number, scope) and self.model.get((scope.scope, number), 0.0) <= self.clock.now:
                self.model[scope.scope, number] = self.clock.now + RETENTION_S

    @rule()
    def read_all(self) -> None:
        for scope in (MINE, OTHER):
            for number in range(8):
                there = self.model.get((scope.scope, number), 0.0) > self.clock.now
                assert get(self.store, number, scope) == there, (scope.scope, number)

    @rule(scope=scopes, numbers=st.lists(numbers, max_size=4))
    def purge(self, scope: ScopeAccess, numbers: list[int]) -> None:
        self.store.purge(scope.scope, [key(number) for number in numbers])
        for number in numbers:
            self.model.pop((scope.scope, number), None)

    @rule(scope=scopes)
    def forget(self, scope: ScopeAccess) -> None:
        self.store.forget(scope.scope)
        self.model = {one: until for one, until in self.model.items() if one[0] != scope.scope}

    @rule(scan=st.booleans())
    def restart(self, scan: bool) -> None:
        self.store.close()
        self.store = self._open()
        while scan and not self.store.scan(3):
            pass

    @rule()
    def scan_a_slice(self) -> None:
        self.store.scan(2)

    @rule(seconds=st.sampled_from([1.0, 1000.0, 2000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.store.maintain()

    @rule(records=st.integers(1, 3))
    def give_back(self, records: int) -> None:
        before = self.store.used_bytes
        assert self.store.give_back(records * SIZE) >= min(before, records * SIZE)
        self.clock.now += 61
        for scope, number in self.model:
            self.store.look([(scope, key(number))], (0,))
        self.model = {
            (scope, number): until
            for (scope, number), until in self.model.items()
            if self.store.holds(scope, key(number), (0,))
        }

    @invariant()
    def counted(self) -> None:
        assert self.store.used_bytes == sum(self.store.usage.values()) <= 16 * SIZE


Machine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestMachine = Machine.TestCase


# ---------------------------------------------------------------- separation


def test_scopes_do_not_read_each_others_records(folder: Path) -> None:
    with opened(folder) as store:
        assert put(store, 1, MINE)
        assert not get(store, 1, OTHER)
        assert not store.holds("other", key(1), (0,))
        assert get(store, 1, MINE), "and nobody deletes them so"
        wrong_key = replace(MINE, data_key=b"w" * 32)
        assert store.read(wrong_key, key(1), (0,)) == "unsealed"
        assert store.counters["miss_unsealed"] == 1


def test_names_tell_nothing(folder: Path, tmp_path: Path) -> None:
    """The same block has another name in another store, and no name has anything of its scope or key."""
    with opened(folder) as store:
        put(store, 1)
    with opened(tmp_path / "second") as store:
        put(store, 1)
    (one,), (two,) = record_paths(folder), record_paths(tmp_path / "second")
    assert one.name != two.name
    assert (folder.stat().st_mode & 0o77, one.stat().st_mode & 0o77) == (0, 0)


def test_keys_of_scopes_starts_and_data_keys_differ() -> None:
    data, scopes, salts = (b"a" * 32, b"b" * 32), ("s", "t"), (b"1" * 32, b"2" * 32)
    assert len({record_key(*one) for one in itertools.product(data, scopes, salts)}) == 8


def test_no_nonce_comes_twice(folder: Path) -> None:
    """Over threads and starts: salt and counter together name one record."""
    for _ in range(3):
        with opened(folder) as store:
            threads = [
                threading.Thread(target=lambda first=first: [put(store, first + n) for n in range(5)])
                for first in range(store.records, store.records + 20, 5)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    headers = [unpack(path.read_bytes()[:HEADER_BYTES]) for path in record_paths(folder)]
    assert len(headers) == 60
    assert len({(header.salt, header.counter) for header in headers}) == 60
    assert len({header.salt for header in headers}) == 3


def test_sealers_start_with_other_salts() -> None:
    assert Sealer().salt != Sealer().salt


@pytest.mark.parametrize(
    "identity",
    [
        StoreIdentity("other model", IDENTITY.numerics, GROUPS),
        StoreIdentity(IDENTITY.model_digest, "gpu/2", GROUPS),
        StoreIdentity(IDENTITY.model_digest, IDENTITY.numerics, GROUPS[::-1]),
        StoreIdentity(IDENTITY.model_digest, IDENTITY.numerics, GROUPS, 0, 2),
        StoreIdentity("modelc", "pu/1", GROUPS),
    ],
    ids=["model", "numerics", "layout", "shards", "concatenation"],
)
def test_records_of_another_identity_are_reclaimed(folder: Path, identity: StoreIdentity) -> None:
    with opened(folder) as store:
        assert put(store, 1)
    old = record_paths(folder)
    with opened(folder, identity=identity) as store:
        group = next(number for number, group in enumerate(identity.groups) if group.block_bytes == SMALL)
        assert store.read(MINE, key(1), (group,)) == "absent"
        assert old[0].exists(), "not before somebody has the time for it"
        store.maintain()
        assert not old[0].exists()
        assert store.counters["reclaimed"] >= 1
        assert [path.name for path in folder.iterdir() if path.is_dir()] == [identity.name]


def test_what_others_keep_in_the_folder_is_left_alone(folder: Path) -> None:
    """As on a disk that is not the cache's alone, or where `serve` keeps a second replica's records."""
    with opened(folder / "replica-1") as other:
        assert put(other, 1)
    for name in ("photos/2026", "0123456789abcdef0123456789abcdef", "ab"):
        (folder / name).mkdir(parents=True)
        (folder / name / "one").write_bytes(b"precious")
    before = sorted(path for path in folder.rglob("*") if path.is_file())
    with opened(folder) as store:
        assert store.scan()
        store.maintain()
        assert "reclaimed" not in store.counters
        assert all(path.exists() for path in before)
    with opened(folder / "replica-1") as other:
        assert get(other, 1)


def test_scopes_come_from_the_protocol() -> None:
    made = ScopeAccess.of(Scope("s", b"r", b"k" * 32, (TierLimit("dram", 1, 2), TierLimit("nvme", 3, 4)), 5.0))
    assert made == ScopeAccess("s", b"k" * 32, 5.0, 3, 4)
    assert ScopeAccess.of(Scope("s", b"r", b"k" * 32)).limit is None
    assert "kkk" not in repr(made)


# ---------------------------------------------------------------- time


def test_what_has_expired_is_a_miss_and_is_deleted(folder: Path) -> None:
    clock = Clock()
    with opened(folder, clock=clock) as store:
        assert put(store, 1)
        assert put(store, 2, access("mine", RETENTION_S * 2))
        clock.now += RETENTION_S + 1
        assert not store.holds("mine", key(1), (0,))
        assert store.read(access("mine", 10.0), key(2), (0,)) == "expired", (
            "the scope keeps nothing for so long any more"
        )
        store.maintain()
        assert not record_paths(folder)
        assert store.records == 0


def test_a_scope_without_retention_is_never_written(folder: Path) -> None:
    with opened(folder) as store:
        with pytest.raises(ValueError, match="C5"):
            put(store, 1, access("mine", 0.0))
        assert not record_paths(folder)
        assert put(store, 1)
        assert store.read(access("mine", 0.0), key(1), (0,)) == "absent"
        assert get(store, 1), "a gateway that does not know the retention deletes nothing"


@pytest.mark.parametrize("seen", [True, False], ids=["scanned", "to be scanned"])
def test_what_was_written_to_stay_longer_is_deleted(folder: Path, seen: bool) -> None:
    """Of the scope whose retention is shorter now, and of no other; not what was written for so long only."""
    clock = Clock()
    short = access("mine", 100.0)
    with opened(folder, clock=clock) as store:
        assert put(store, 1)
        assert put(store, 2, OTHER)
        assert store.write(short, key(3), {0: payload("mine", 3, 0)}, position=0)
    with opened(folder, clock=clock, scan=seen) as store:
        assert store.shorten("mine", 100.0) == seen
        while not store.scan():
            pass
        assert store.counters["shortened"] == 1
        assert len(record_paths(folder)) == store.records == 2
        assert store.shorten("mine", 0.0) == 1
        assert get(store, 2, OTHER)


def test_a_clock_set_back_revives_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        assert put(store, 1)
        (path,) = record_paths(folder)
        content = path.read_bytes()
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_000 * 10**9)
    with opened(folder) as store:
        store.purge("mine", [key(1)])
        path.write_bytes(content)
        assert not get(store, 1)


# ---------------------------------------------------------------- life


def test_records_are_found_before_and_after_the_scan(folder: Path) -> None:
    with opened(folder) as store:
        assert store.write(MINE, key(1), payloads("mine", 1), position=64)
    with opened(folder, scan=False) as store:
        assert not store.scanned
        assert store.records == 0
        assert not store.holds("mine", key(1), (0, 1)), "it looks at no disk"
        store.look([("mine", key(1)), ("mine", key(2)), ("mine", key(3))], (0, 1))
        assert store.records == 2
        assert store.holds("mine", key(1), (0, 1))
        assert not store.holds("mine", key(2), (0,))
        into = {group: memoryview(bytearray(GROUPS[group].block_bytes)) for group in (0, 1)}
        assert store.read(MINE, key(1), (0, 1), into=into) == payloads("mine", 1)
        assert bytes(into[1]) == payload("mine", 1, 1)
        while not store.scan(1):
            pass
        assert store.scanned
        assert store.records == 2
        assert store.read(MINE, key(1), (0, 1)) == payloads("mine", 1)


class _UnlistedFolder(Files):
    """One folder cannot be listed."""

    number = -1

    def names_in(self, number: int) -> Iterator[bytes | Path]:
        if number == self.number:
            raise OSError(errno.EIO, "Input/output error")
        return super().names_in(number)


def test_a_folder_that_cannot_be_listed_hides_its_own_records_alone(folder: Path) -> None:
    with opened(folder) as store:
        assert all(put(store, number) for number in range(8))
    files = _UnlistedFolder(folder, IDENTITY.name)
    first = min(int(path.parent.name, 16) for path in record_paths(folder))
    files.number = first
    hidden = sum(int(path.parent.name, 16) == first for path in record_paths(folder))
    with opened(folder, files=files) as store:
        assert store.records == 8 - hidden
        assert store.counters["io_errors"] == 1


def test_an_incomplete_block_is_a_miss(folder: Path) -> None:
    with opened(folder) as store:
        assert put(store, 1)
        assert not store.holds("mine", key(1), (0, 1))
        assert store.read(MINE, key(1), (0, 1)) == "absent"


def test_a_folder_has_one_store(folder: Path) -> None:
    with opened(folder) as store:
        with pytest.raises(StoreLocked):
            RecordStore(folder, IDENTITY, limit_bytes=1).open()
        child = "import sys; from tests.prompt_cache.tiers.stores import *\nwith opened(Path(sys.argv[1])): pass"
        ran = subprocess.run([sys.executable, "-c", child, str(folder)], capture_output=True, text=True, check=False)
        assert "StoreLocked" in ran.stderr
        assert put(store, 1)
    assert not put(store, 2), "a closed store does nothing"
    assert not store.holds("mine", key(1), (0,))
    assert store.read(MINE, key(1), (0,)) == "absent"
    assert store.purge("mine", [key(1)]) == store.forget("mine") == 0
    store.maintain()
    with opened(folder) as again:
        assert get(again, 1)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="file"):
        RecordStore(tmp_path / "file" / "cache", IDENTITY, limit_bytes=1).open()
    with opened(tmp_path / "cache"):
        pass
    (state_folder(tmp_path / "cache") / "store.json").write_text("{}")
    with pytest.raises(StoreUnusable):
        RecordStore(tmp_path / "cache", IDENTITY, limit_bytes=1).open()
    RecordStore(tmp_path / "other", IDENTITY, limit_bytes=1).open()


@pytest.mark.parametrize("wrong", [{0: b"short"}, {1: bytes(SMALL)}], ids=["short", "another group's"])
def test_a_payload_of_another_size_is_a_mistake_of_ours(folder: Path, wrong: dict[int, bytes]) -> None:
    with opened(folder) as store, pytest.raises(ValueError, match="payloads"):
        store.write(MINE, key(1), wrong, position=0)


def test_threads_write_read_and_purge_at_once(folder: Path) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(60):
                number, scope = chance.randrange(12), chance.choice((MINE, OTHER))
                what = chance.random()
                if what < 0.5:
                    put(store, number, scope)
                elif what < 0.9:
                    get(store, number, scope)
                elif what < 0.97:
                    store.purge(scope.scope, [key(number)])
                else:
                    store.forget(scope.scope)
        except BaseException as error:
            wrong.append(error)

    with opened(folder, limit_bytes=10 * SIZE) as store:
        stopped = threading.Event()

        def keep() -> None:
            while not stopped.wait(0.001):
                if store.scan(500):
                    store.maintain()

        keeper = threading.Thread(target=keep)
        keeper.start()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stopped.set()
        keeper.join()
        assert not wrong
        store.forget("mine")
        store.forget("other")
        assert store.records == 0
        assert not record_paths(folder)
        assert store.used_bytes == 0


def test_what_is_purged_while_it_is_written_is_gone(folder: Path) -> None:
    class Purging(Files):
        """Somebody purges the block just before its record gets its name."""

        def publish(self, new: Path, name: bytes) -> None:
            store.purge("mine", [key(1)])
            super().publish(new, name)

    with opened(folder, files=Purging(folder)) as store:
        assert not put(store, 1)
        assert store.counters["refused_purged"] == 1
        assert not get(store, 1)
        assert not record_paths(folder)


# ---------------------------------------------------------------- parts


def test_damaged_tombstones_purge_everything_before(folder: Path) -> None:
    with opened(folder) as store:
        assert put(store, 1)
        for number in range(2, 5):
            store.purge("mine", [key(number)])
    path = state_folder(folder) / "tombstones"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with opened(folder) as store:
        assert store.counters["damaged_tombstones"] == 1
        assert not get(store, 1)
        assert put(store, 1)
        assert get(store, 1)


def test_a_torn_tombstone_is_one_that_was_never_answered(tmp_path: Path) -> None:
    tombstones = Tombstones(tmp_path, 0, 10)
    tombstones.add("s", [key(1), key(2)], 5, 1000)
    tombstones.close()
    path = tmp_path / "tombstones"
    path.write_bytes(path.read_bytes()[:-7])
    again = Tombstones(tmp_path, 0, 20)
    assert not again.damaged
    assert again.covers("s", key(1), 5)
    assert not again.covers("s", key(1), 6)
    assert not again.covers("s", key(2), 5)
    assert not again.covers("t", key(1), 5)


def test_tombstones_are_bounded_and_end(tmp_path: Path) -> None:
    tombstones = Tombstones(tmp_path, 0, 0)
    tombstones.add("s", [key(number) for number in range(MOST_KEYS + 1)], 5, 1000)
    assert len(tombstones) == 1
    assert tombstones.covers("s", key(10**6), 5), "too many make one for the scope"
    tombstones.add("s", [key(1)], 7, 2000)
    tombstones.maintain(1500)
    assert tombstones.covers("s", key(1), 7)
    tombstones.maintain(2000)
    assert not len(tombstones)
    tombstones.close()
    assert not len(Tombstones(tmp_path, 0, 0))


def test_a_record_takes_little_memory() -> None:
    index = RecordIndex(50_000)
    parent = b""
    tracemalloc.start()
    for number in range(50_000):
        name = os.urandom(15)
        place = number % 16
        index.add(name, f"scope {number % 100}", SIZE, expires=2.0, place=place, parent=parent if place else b"")
        parent = name
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    # tracemalloc counts the whole process, where threads of other tests' servers may be at work
    files = (record_index.__file__, eviction_order.__file__, hit_density.__file__, __file__)
    here = [tracemalloc.Filter(True, file) for file in files]
    taken = sum(trace.size for trace in snapshot.filter_traces(here).traces)
    assert 100 < taken / 50_000 < 300


def test_large_blocks_come_in_chunks(folder: Path) -> None:
    with opened(folder) as store:
        assert store.write(MINE, key(1), {1: os.urandom(LARGE)}, position=0)
        got = store.read(MINE, key(1), (1,))
        assert not isinstance(got, str)
        assert len(got[1]) == LARGE


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", lambda: (), megabytes=4) as disk:
        if not disk.mounted:
            pytest.skip("nobody may mount a disk here")
        with opened(disk.folder / "cache") as store:
            assert put(store, 0)
            assert put(store, 1)
            disk.fill()
            assert not put(store, 2)
            assert store.counters.get("refused_keep_free", 0) + store.counters.get("refused_disk_full", 0) == 1
            (disk.folder / "filler").write_bytes(b"")
            for number in range(2000):
                put(store, number)
            assert store.counters["refused_keep_free"] > 0
            disk.fill()
            store.purge("mine", [key(0)])
            assert not get(store, 0), "a purge holds although its tombstone may have found no room"
            disk.empty()
            store.maintain()
            assert put(store, 3000) or put(store, 3000), "the first that finds it full makes room"
        with opened(disk.folder / "cache") as store:
            assert not get(store, 0)
            assert get(store, 3000)

"""Whatever happens to a record on its disk, no read returns a wrong payload or fails, and each fault has its cause.

`TIER_FAULTS` says how many faults of each kind: 200, with `make test-long` 10,000.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prompt_cache.tiers.inspection import Inspection, look
from prompt_cache.tiers.record_format import CHUNK_BYTES, HEADER_BYTES, record_bytes, unpack
from prompt_cache.tiers.record_store import RecordStore
from prompt_cache.tiers.store_state import StoreUnusable, state_folder
from tests.prompt_cache.tiers.fault_counts import count
from tests.prompt_cache.tiers.killed_writers import POINTS
from tests.prompt_cache.tiers.stores import (
    GROUPS,
    IDENTITY,
    LARGE,
    SMALL,
    Files,
    access,
    key,
    memory_folder,
    opened,
    payload,
    payloads,
    record_paths,
)

FAULTS = int(os.environ.get("TIER_FAULTS", "200"))
MINE, OTHER = access("mine"), access("other")


class Disk:
    """A store that looks at its disk for each block, and the files of its records."""

    def __init__(self, store: RecordStore, files: Files) -> None:
        self.store, self.files = store, files
        self.paths: dict[tuple[str, int, int], Path] = {}
        self.whole: dict[tuple[str, int, int], bytes] = {}
        for scope in (MINE, OTHER):
            for number in range(2):
                for group in range(len(GROUPS)):
                    before = set(record_paths(store.folder))
                    assert store.write(scope, key(number), {group: payload(scope.scope, number, group)}, position=0)
                    (path,) = set(record_paths(store.folder)) - before
                    self.paths[scope.scope, number, group] = path
                    self.whole[scope.scope, number, group] = path.read_bytes()

    def put(self, at: tuple[str, int, int], content: bytes) -> None:
        """Put a file where a record should be."""
        self.paths[at].write_bytes(content)

    def expect(self, at: tuple[str, int, int], cause: str | None, fault: str = "") -> None:
        """Read a record: right where nothing is wrong, else a miss that is counted by its cause, and then gone."""
        scope, number, group = at
        before = self.store.counters.get(f"miss_{cause}", 0)
        got = self.store.read(access(scope), key(number), (group,))
        if cause is None:
            assert got == {group: payload(scope, number, group)}
            return
        assert got == cause, "a wrong record was read, or for another reason not"
        assert self.store.counters.get(f"miss_{cause}", 0) == before + 1, (cause, self.store.counters)
        assert self.paths[at].exists() == (cause == "late")
        self.put(at, self.whole[at])
        count(fault, cause)


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with memory_folder() as folder:
        files = Files(folder)
        with opened(folder, scan=False, files=files) as store:
            yield Disk(store, files)


def places(seed: str) -> Iterator[tuple[random.Random, tuple[str, int, int]]]:
    """As many records as there shall be faults, and a source of chance."""
    chance = random.Random(seed)
    for _ in range(FAULTS):
        yield chance, (chance.choice(("mine", "other")), chance.randrange(2), chance.randrange(2))


def test_nothing_is_wrong_at_first(disk: Disk) -> None:
    for at in disk.paths:
        disk.expect(at, None)


def test_a_flipped_bit(disk: Disk) -> None:
    for chance, at in places("flip"):
        content = bytearray(disk.whole[at])
        place = chance.randrange(len(content)) if chance.random() < 0.7 else chance.randrange(HEADER_BYTES)
        content[place] ^= 1 << chance.randrange(8)
        disk.put(at, bytes(content))
        disk.expect(at, "damaged" if place < HEADER_BYTES else "unsealed", "bit flip")
        disk.expect(at, None)


def test_truncation(disk: Disk) -> None:
    for chance, at in places("truncation"):
        whole = disk.whole[at]
        length = chance.choice((0, HEADER_BYTES, len(whole) - 1, chance.randrange(len(whole))))
        disk.put(at, whole[:length] if chance.random() < 0.8 else whole + bytes(1 + length))
        disk.expect(at, "truncated", "truncation")


def test_a_torn_write(disk: Disk) -> None:
    """Some of a record's sectors never reached the disk, or are those of another record that lay there."""
    for chance, at in places("torn"):
        content = bytearray(disk.whole[at])
        start = HEADER_BYTES * chance.randrange(len(content) // HEADER_BYTES)
        until = len(content) if chance.random() < 0.5 else min(len(content), start + HEADER_BYTES)
        older = disk.whole["other" if at[0] == "mine" else "mine", at[1], at[2]]
        lies = bytes(until - start) if chance.random() < 0.5 or not start else older[start:until]
        content[start:until] = lies
        disk.put(at, bytes(content))
        disk.expect(at, "unsealed" if start else "damaged", "torn write")


def test_a_record_in_anothers_place(disk: Disk) -> None:
    """Of another project, block or layer group; as it was, or with a header that was made to fit."""
    everywhere = list(disk.paths)
    for chance, at in places("swap"):
        other = chance.choice([place for place in everywhere if place != at])
        content = disk.whole[other]
        if chance.random() < 0.5:
            disk.put(at, content)
            disk.expect(at, "misplaced", "file swapped")
        else:
            own = unpack(disk.whole[at][:HEADER_BYTES])
            length = record_bytes(own.payload) - HEADER_BYTES
            # no key is at hand to seal it: the header is own or forged, the payload is the other's
            forged = replace(
                unpack(content[:HEADER_BYTES]), scope=at[0], key=key(at[1]), group=at[2], payload=own.payload
            )
            body = content[HEADER_BYTES:]
            body = (body * (length // len(body) + 1))[:length]
            disk.put(at, (forged if chance.random() < 0.5 else own).pack() + body)
            disk.expect(at, "unsealed", "file swapped")


def test_a_longer_life_is_not_written_into_a_header(disk: Disk) -> None:
    for at in disk.paths:
        header = unpack(disk.whole[at][:HEADER_BYTES])
        forged = replace(header, expires=header.expires + 10**12, sequence=header.sequence + 10**12)
        disk.put(at, forged.pack() + disk.whole[at][HEADER_BYTES:])
        disk.expect(at, "unsealed", "header with a longer life")


def test_a_record_of_another_version(disk: Disk) -> None:
    for at in disk.paths:
        head = bytearray(disk.whole[at][: HEADER_BYTES - 4])
        head[9] ^= 2
        disk.put(at, bytes(head) + zlib.crc32(head).to_bytes(4, "big") + disk.whole[at][HEADER_BYTES:])
        disk.expect(at, "version", "header of another version")


def test_a_short_read(disk: Disk) -> None:
    for chance, at in places("short"):
        disk.files.short_after = chance.randrange(len(disk.whole[at]))
        disk.expect(at, "truncated", "short read")
        disk.files.short_after = None


def test_a_disk_that_cannot_be_read(disk: Disk) -> None:
    for _, at in places("broken"):
        disk.files.broken = True
        disk.expect(at, "io_error", "read that fails")
        disk.files.broken = False


def test_a_slow_disk(disk: Disk) -> None:
    for _, at in places("slow"):
        disk.files.slow_s = 0.0005
        assert disk.store.read(access(at[0]), key(at[1]), (at[2],), deadline=time.monotonic() + 0.0001) == "late"
        disk.files.slow_s = 0.0
        disk.expect(at, None)
    assert disk.store.counters["miss_late"] == FAULTS
    count("slow disk", "late", FAULTS)


def test_a_disk_without_room(disk: Disk) -> None:
    new = disk.files.records / "new"
    before = disk.store.counters.get("refused_disk_full", 0)
    for number, (chance, at) in enumerate(places("room"), 1):
        group = at[2]
        disk.files.room = chance.randrange(record_bytes(GROUPS[group].block_bytes))
        assert not disk.store.write(MINE, key(1000), {group: payload("mine", 1000, group)}, position=0)
        disk.files.room = None
        assert disk.store.counters["refused_disk_full"] == before + number
        assert not list(new.iterdir()), "what was written of it lies there still"
        assert disk.store.read(MINE, key(1000), (group,)) == "absent"
        count("no room (ENOSPC)", "refused")
    assert disk.store.write(MINE, key(1000), payloads("mine", 1000), position=0)
    assert disk.store.read(MINE, key(1000), (0, 1)) == payloads("mine", 1000)


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", [False, True], ids=["purged", "forgotten"])
def test_a_record_that_comes_back_after_a_purge(forgotten: bool) -> None:
    """Put back alone, or with the whole folder as it was; found by a read, or by the scan of the next start."""
    batch = 20 * max(1, FAULTS // 1000)
    with memory_folder() as folder, memory_folder() as old:
        for first in range(0, FAULTS, batch):
            with opened(folder) as store:
                for number in range(first, first + batch):
                    assert store.write(MINE, key(number), {0: payload("mine", number, 0)}, position=0)
                shutil.copytree(folder, old, dirs_exist_ok=True)
                gone = [key(number) for number in range(first, first + batch)]
                assert (store.forget("mine") if forgotten else store.purge("mine", gone)) == batch
                assert not record_paths(folder)
            shutil.copytree(old, folder, dirs_exist_ok=True)
            assert len(record_paths(folder)) == batch
            with opened(folder, scan=False) as store:
                for number in range(first, first + batch // 2):
                    assert store.read(MINE, key(number), (0,)) == "purged"
                assert store.counters["miss_purged"] == batch // 2
                while not store.scan():
                    pass
                assert store.counters["swept_purged"] == batch // 2
                assert not store.records
                assert store.write(MINE, key(first), {0: payload("mine", first, 0)}, position=0)
                assert store.read(MINE, key(first), (0,)) == {0: payload("mine", first, 0)}, "written after the purge"
                assert store.purge("mine", [key(first)]) == 1
            fault = f"restored after a {'scope was forgotten' if forgotten else 'purge'}"
            count(fault, "found by a read", batch // 2)
            count(fault, "found by the scan", batch // 2)
            shutil.rmtree(old)


def test_killed_between_write_and_publish() -> None:
    """Each writer is killed with SIGKILL at some point of its write; see `killed_writers`."""
    with memory_folder() as folder:
        command = [sys.executable, "-m", "tests.prompt_cache.tiers.killed_writers", str(folder), str(FAULTS)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout)
    assert told["wrong"] == 0
    assert sum(told[point] for point in POINTS) == FAULTS
    assert told["unpublished"] == FAULTS - told["after"] > 0, "each is counted at the next start"
    assert told["read"] == told["after"] > 0
    for point in POINTS:
        count("kill -9 of the writer", POINTS[point], told[point])


def test_bytes_from_a_folder_without_its_state_are_unreadable(tmp_path: Path) -> None:
    """A copy of the records alone, as from a stolen disk image, opened by a store that has the right keys."""
    with memory_folder() as folder:
        with opened(folder) as store:
            assert store.write(MINE, key(1), payloads("mine", 1), position=0)
        shutil.rmtree(state_folder(folder))
        with opened(folder) as store:
            assert not store.holds("mine", key(1), (0,))
            assert store.read(MINE, key(1), (0,)) == "absent"
            assert store.counters["swept_misplaced"] == 2


def test_damage_that_a_scan_finds(disk: Disk) -> None:
    """What a header shows is swept at the next start; what only the key can show waits for the read."""
    causes: dict[str, Callable[[bytes], bytes]] = {
        "swept_damaged": lambda whole: bytes([whole[0] ^ 1]) + whole[1:],
        "swept_truncated": lambda whole: whole[:-1],
    }
    with memory_folder() as folder:
        for cause, damage in causes.items():
            with opened(folder) as store:
                assert store.write(MINE, key(1), payloads("mine", 1), position=0)
            for path in record_paths(folder):
                path.write_bytes(damage(path.read_bytes()))
            (folder / IDENTITY.name / "00" / "notes.txt").write_text("not ours")
            with opened(folder) as store:
                assert store.counters[cause] == 2
                assert store.counters["swept_foreign"] == 1
                assert not record_paths(folder)


def _make_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "identity.json")


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _make_link, _make_socket])
def test_what_is_no_file_in_a_records_place(make: Callable[[Path], None]) -> None:
    """A read is a miss, `Inspection` says so, and the scan deletes it; nothing waits for a pipe's writer."""
    with memory_folder() as folder:
        with opened(folder) as store:
            assert store.write(MINE, key(1), payloads("mine", 1), position=0)
            for path in record_paths(folder):
                path.unlink()
                make(path)
            assert store.read(MINE, key(1), (0,)) == "not_a_file"
            assert store.counters["miss_not_a_file"] == 1
        assert [one.unreadable for one in look(folder)] == [1]
        with Inspection(folder) as inspection:
            assert [finding.cause for finding in inspection.check()] == ["not_a_file"]
            assert not inspection.purge(None, dry_run=True)
        with opened(folder, scan=False) as store:
            store.look([("mine", key(1))], (1,))
            assert not store.holds("mine", key(1), (1,))
            while not store.scan():
                pass
            assert store.counters["swept_not_a_file"] == 1
            assert store.write(MINE, key(1), payloads("mine", 1), position=0)
            assert store.read(MINE, key(1), (0, 1)) == payloads("mine", 1)


def test_a_folder_with_files_in_a_records_place_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with memory_folder() as folder:
        with opened(folder) as store:
            assert store.write(MINE, key(1), {0: payload("mine", 1, 0)}, position=0)
        (path,) = record_paths(folder)
        path.unlink()
        path.mkdir()
        (path / "notes.txt").write_text("not ours")
        caplog.clear()
        with opened(folder) as store:
            for number in range(1, 3):
                assert not store.write(MINE, key(1), {0: payload("mine", 1, 0)}, position=0)
                assert store.counters["refused_not_a_file"] == number
            assert store.read(MINE, key(1), (0,)) == "absent"
            store.purge("mine", [key(1)])
            assert "io_errors" not in store.counters
            assert not list((folder / IDENTITY.name / "new").iterdir())
        assert not caplog.text, "it warns of it each time"
        assert (path / "notes.txt").exists()


@pytest.mark.parametrize("place", ["0" * 32, "OWN", "OWN/new", "OWN/ff", "OWN/identity.json", "OWN/new/0"])
def test_links_lead_nowhere(tmp_path: Path, place: str) -> None:
    """Whatever of the folder is a link: what it leads to is neither read, written nor deleted."""
    outside = tmp_path / "outside"
    (outside / "ff").mkdir(parents=True)
    theirs = [outside / name for name in ("file", "ff/file", "identity.json", "ff/" + 28 * "f")]
    for path in theirs:
        path.write_text("theirs")
    with memory_folder() as folder:
        with opened(folder):
            pass
        link = folder / place.replace("OWN", IDENTITY.name)
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(outside / "file" if link.name in ("identity.json", "0") else outside)
        with contextlib.suppress(StoreUnusable):  # a folder with nothing but a link is no store
            look(folder)
            with Inspection(folder) as inspection:
                assert {finding.file for finding in inspection.check()} <= {str(link)}
                inspection.purge(None)
        with opened(folder) as store:
            store.maintain()
            assert store.write(MINE, key(1), payloads("mine", 1), position=0)
            assert store.read(MINE, key(1), (0, 1)) == payloads("mine", 1)
            assert place == "0" * 32 or not link.is_symlink()
        assert [path.read_text() for path in theirs] == ["theirs"] * len(theirs)
        assert sorted(path for path in outside.rglob("*") if path.is_file()) == sorted(theirs)


@pytest.mark.parametrize("place", ["", "new", "SHARD"])
def test_a_link_that_appears_while_the_store_is_open_leads_nowhere(tmp_path: Path, place: str) -> None:
    """A record behind it is a miss, a write is refused, and nothing lies outside after it."""
    with memory_folder() as folder, opened(folder) as store:
        assert store.write(MINE, key(1), {0: payload("mine", 1, 0)}, position=0)
        (path,) = record_paths(folder)
        link = folder / IDENTITY.name / (path.parent.name if place == "SHARD" else place)
        outside = tmp_path / "outside"
        shutil.copytree(link, outside)
        shutil.rmtree(link)
        link.symlink_to(outside)
        before = {found: found.read_bytes() for found in outside.rglob("*") if found.is_file()}
        if place != "new":
            assert store.read(MINE, key(1), (0,)) == "not_a_file"
        assert not store.write(MINE, key(1), {0: payload("mine", 1, 0)}, position=0) or place == "new"
        store.purge("mine", [key(1)])
        store.maintain()
        assert {found: found.read_bytes() for found in outside.rglob("*") if found.is_file()} == before
        assert link.is_symlink()


def test_a_pipe_as_the_identitys_description() -> None:
    with memory_folder() as folder:
        with opened(folder):
            pass
        description = folder / IDENTITY.name / "identity.json"
        description.unlink()
        os.mkfifo(description)
        assert [one.numerics for one in look(folder)] == ["?"]
        with opened(folder):
            assert description.read_bytes() == IDENTITY.description


def test_sizes_cover_one_and_two_chunks() -> None:
    assert SMALL < CHUNK_BYTES < LARGE < 2 * CHUNK_BYTES

"""The replica's journal: nothing that was written is lost, whatever happens to the end or the middle of its file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import StartError
from engine.server import journal as journal_module
from engine.server.journal import METRIC, SEQUENCE_BITS, Journal
from engine.server.journal_records import Begun, Delivered, Ended, Opened, Progress, Totals, frame, read_records
from protocol.requests import Counts, Done
from tests.fast import examples


def counts(output: int) -> Counts:
    return Counts(prompt=10, computed=6, read_hbm=4, output=output)


def opened(folder: Path) -> Journal:
    """The journal of a folder, its epochs counted from 1."""
    return Journal(folder, first_epoch=1)


def test_a_new_journal_begins_where_no_earlier_one_can_have_been(tmp_path: Path):
    journal = Journal(tmp_path / "first")
    ended = journal.end(done("a", 1))
    journal.close()
    later = Journal(tmp_path / "lost and made anew", first_epoch=journal.epoch + 1)
    assert later.end(done("a", 1)).sequence > ended.sequence
    later.close()
    assert 20_000_000 < journal.epoch < 2**31
    assert ended.sequence < 2**63


def done(id: str, output: int, attempt: int = 1) -> Done:
    return Done(id, attempt, "stop", counts(output), 0)


def test_what_had_begun_ends_with_the_counts_last_written(tmp_path: Path):
    journal = opened(tmp_path)
    assert journal.epoch == 1
    journal.begin("ends", 1, b"paid by one")
    journal.begin("crashes", 2, b"paid by two")
    journal.progress([("ends", 1, counts(1)), ("crashes", 2, counts(1))])
    journal.progress([("crashes", 2, counts(5))])
    journal.delivered("crashes", 2, 3)
    journal.delivered("crashes", 2, 2)
    ended = journal.end(done("ends", 1))
    assert ended.sequence == (1 << SEQUENCE_BITS) + 1
    journal.close()
    again = opened(tmp_path)
    assert again.epoch == 2
    assert again.damaged == again.torn_bytes == 0
    first, second = again.unacknowledged()
    assert first == ended
    assert second == Done(
        "crashes", 2, "crash", counts(5), (2 << SEQUENCE_BITS) + 1, delivered=3, replayed=True, claim=b"paid by two"
    )
    again.close()
    # A crash is told once, under one number, until it is acknowledged.
    third = opened(tmp_path)
    assert third.unacknowledged() == [first, second]
    third.acknowledge(first.sequence)
    third.acknowledge(999)
    third.close()
    fourth = opened(tmp_path)
    assert fourth.unacknowledged() == [second]
    fourth.close()


def test_a_request_that_never_began_may_end(tmp_path: Path):
    journal = opened(tmp_path)
    journal.progress([("unknown", 1, counts(1))])
    journal.delivered("unknown", 1, 5)
    ended = journal.end(Done("waited", 1, "abort", Counts(), 0))
    journal.close()
    again = opened(tmp_path)
    assert again.unacknowledged() == [ended]
    again.close()


def test_written_is_in_the_file_and_unwritten_is_not(tmp_path: Path):
    journal = opened(tmp_path)
    journal.begin("a", 1)
    journal.progress([("a", 1, counts(2))])
    records, _, _ = read_records((tmp_path / "journal").read_bytes())
    assert records == [Opened(1, journal.identity, 1), Totals(0, Counts())]
    journal.write()
    records, _, _ = read_records((tmp_path / "journal").read_bytes())
    assert records[2:] == [Begun(1, "a", 1), Progress([(1, counts(2))])]
    journal.close()


def test_the_file_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 20_000)
    journal = opened(tmp_path)
    journal.begin("long", 1)
    kept = journal.end(done("kept", 1))
    for index in range(1000):
        journal.begin(str(index), 1)
        journal.progress([("long", 1, counts(index)), (str(index), 1, counts(1))])
        journal.acknowledge(journal.end(done(str(index), 1)).sequence)
        journal.write()
        journal.sync()
        assert (tmp_path / "journal").stat().st_size < 25_000
    journal.begin("after", 1)
    journal.close()
    again = opened(tmp_path)
    assert again.damaged == 0
    assert again.unacknowledged()[0] == kept
    assert {(end.id, end.reason, end.counts.output) for end in again.unacknowledged()[1:]} == {
        ("long", "crash", 999),
        ("after", "crash", 0),
    }
    again.close()


def test_a_journal_of_much_that_is_of_interest_is_compacted_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 2_000)
    journal = opened(tmp_path)
    for index in range(200):
        journal.end(done(f"kept {index}", 1))
    journal.sync()
    compacted, size = 0, (tmp_path / "journal").stat().st_size
    for index in range(200):
        journal.begin(str(index), 1)
        journal.acknowledge(journal.end(done(str(index), 1)).sequence)
        journal.sync()
        before, size = size, (tmp_path / "journal").stat().st_size
        compacted += size <= before
    journal.close()
    assert 1 <= compacted <= 4


@pytest.mark.parametrize("name", ["open", "write", "fsync", "pread", "replace"])
def test_where_there_is_no_room_to_compact_the_old_file_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 2_000)
    journal = opened(tmp_path)
    journal.begin("runs", 1)
    for output in range(100):
        journal.progress([("runs", 1, counts(output))])
        journal.write()
    size = (tmp_path / "journal").stat().st_size
    real, calls = getattr(os, name), count()

    def full(*given: Any, **named: Any) -> Any:
        if next(calls) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given, **named)

    monkeypatch.setattr(os, name, full)
    journal.sync()
    monkeypatch.undo()
    assert next(calls) > 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["epoch", "journal", "lock"]
    assert (tmp_path / "journal").stat().st_size == size
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 2_000)
    while (tmp_path / "journal").stat().st_size >= size:
        journal.progress([("runs", 1, counts(100))])
        journal.sync()  # smaller as soon as there is room and need
    journal.progress([("runs", 1, counts(101))])
    journal.close()
    again = opened(tmp_path)
    assert [(end.id, end.reason, end.counts.output) for end in again.unacknowledged()] == [("runs", "crash", 101)]
    again.close()


class Held:
    """One call of a function of `os` that blocks until it is released, in any thread; other calls pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
        self.entered, self._released = threading.Event(), threading.Event()
        real, calls = getattr(os, name), count()

        def call(*given: Any) -> Any:
            if next(calls) == number:
                self.entered.set()
                assert self._released.wait(30)
            return real(*given)

        monkeypatch.setattr(os, name, call)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()


def soon(work: Callable[[], object]) -> None:
    """Do this in another thread, which must not have to wait."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for the disk"


@pytest.mark.parametrize("number", [0, 1], ids=["file", "folder"])
def test_nothing_but_sync_waits_for_a_disk_that_is_slow_to_compact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 10_000)
    journal = opened(tmp_path)
    kept, left = journal.end(done("kept", 1)), journal.end(done("left", 1))
    journal.begin("runs", 1)
    while (tmp_path / "journal").stat().st_size < 10_000:
        journal.progress([("runs", 1, counts(1))])
        journal.write()

    def meanwhile() -> None:
        journal.acknowledge(kept.sequence)
        journal.begin("new", 1)
        journal.progress([("runs", 1, counts(7)), ("new", 1, counts(2))])
        journal.delivered("runs", 1, 3)
        journal.write()
        assert len(journal.unacknowledged()) == journal.metrics()[f"{METRIC}_unacknowledged"] == 1

    with Held(monkeypatch, "fsync", number) as held:
        syncing = threading.Thread(target=journal.sync)
        syncing.start()
        assert held.entered.wait(30)
        soon(meanwhile)
        records, damaged, torn = read_records((tmp_path / "journal").read_bytes())
        assert (damaged, torn) == (0, 0)
        assert records[-1] == Delivered(1, 3)
    syncing.join()
    assert (tmp_path / "journal").stat().st_size < 1_000
    journal.close()
    again = opened(tmp_path)
    assert (again.damaged, again.torn_bytes) == (0, 0)
    assert [(end.id, end.reason, end.counts.output, end.delivered) for end in again.unacknowledged()] == [
        ("left", "stop", 1, left.delivered),
        ("runs", "crash", 7, 3),
        ("new", "crash", 2, 0),
    ]
    again.close()


def test_who_says_what_happened_does_not_wait_for_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The replica's event loop notes acknowledgements: if it waited, no gateway would hear anything meanwhile."""
    journal = opened(tmp_path)
    ended = journal.end(done("ended", 1))

    def meanwhile() -> None:
        journal.acknowledge(ended.sequence)
        journal.begin("runs", 1)
        journal.progress([("runs", 1, counts(1))])
        journal.delivered("runs", 1, 1)
        journal.end(done("other", 1))
        assert [end.id for end in journal.unacknowledged()] == ["other"]

    with Held(monkeypatch, "write", 0) as held:
        writing = threading.Thread(target=journal.write)
        writing.start()
        assert held.entered.wait(30)
        soon(meanwhile)
    writing.join()
    journal.close()
    again = opened(tmp_path)
    assert [(end.id, end.reason, end.delivered) for end in again.unacknowledged()] == [
        ("other", "stop", 0),
        ("runs", "crash", 1),
    ]
    again.close()


def sample_file(folder: Path) -> bytes:
    journal = opened(folder)
    for index in range(6):
        journal.begin(str(index), 1)
        for output in range(4):
            journal.progress([(str(index), 1, counts(output))])
        if index % 2:
            journal.end(done(str(index), 4))
    journal.close()
    return (folder / "journal").read_bytes()


def state(records: list[object]) -> tuple[dict[int, Counts], dict[int, int], list[Done]]:
    """What the records say, by a plain reading: counts of what is open, deliveries, ends."""
    live: dict[int, Counts] = {}
    heard: dict[int, int] = {}
    ended = []
    for record in records:
        match record:
            case Begun():
                live[record.handle] = Counts()
            case Progress():
                live.update(dict(record.counts))
            case Delivered():
                heard[record.handle] = record.delivered
            case Ended():
                live.pop(record.handle, None)
                ended.append(record.done)
    return live, heard, ended


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_torn_tail_is_cut(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("journal")
    whole = sample_file(folder)
    cut = data.draw(st.integers(0, len(whole)))
    torn = whole[:cut] + data.draw(st.binary(max_size=20))
    (folder / "journal").write_bytes(torn)
    complete, _, rest = read_records(whole[:cut])
    live, _, ended = state(complete)
    journal = opened(folder)
    assert journal.epoch == 2
    assert journal.damaged == 0
    assert journal.torn_bytes == rest + len(torn) - cut
    found = journal.unacknowledged()
    assert found[: len(ended)] == ended
    assert [(end.reason, end.counts) for end in found[len(ended) :]] == [("crash", now) for now in live.values()]
    assert all(end.sequence > 2 << SEQUENCE_BITS for end in found[len(ended) :])
    journal.close()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_damage_in_the_middle_loses_no_sound_record(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("journal")
    whole = bytearray(sample_file(folder))
    records, _, _ = read_records(bytes(whole))
    starts = [0]
    for record in records:
        starts.append(starts[-1] + len(frame(record)))
    hit = data.draw(st.integers(1, len(records) - 2))
    at = data.draw(st.integers(starts[hit], starts[hit + 1] - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    (folder / "journal").write_bytes(whole)
    found, damaged, torn = read_records(bytes(whole))
    assert found == records[:hit] + records[hit + 1 :]
    assert (damaged, torn) == (1, 0)
    journal = opened(folder)
    assert journal.damaged >= 1
    assert (folder / "journal.damaged-2").read_bytes() == bytes(whole)
    ended = [record.done for record in found if isinstance(record, Ended)]
    assert [end for end in journal.unacknowledged() if end.reason == "stop"] == ended
    journal.close()


@settings(max_examples=examples(40), deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_can_be_opened(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    folder = tmp_path_factory.mktemp("journal")
    (folder / "journal").write_bytes(data)
    (folder / "epoch").write_bytes(data[:3])
    journal = opened(folder)
    assert journal.epoch >= 1
    journal.close()


def test_the_epoch_grows_even_when_the_journal_is_lost(tmp_path: Path):
    opened(tmp_path).close()
    (tmp_path / "journal").unlink()
    journal = opened(tmp_path)
    assert journal.epoch == 2
    journal.close()
    (tmp_path / "epoch").unlink()
    journal = opened(tmp_path)
    assert journal.epoch == 3
    journal.close()


def test_one_folder_has_one_owner(tmp_path: Path):
    journal = opened(tmp_path)
    with pytest.raises(StartError, match="another replica uses this journal folder"):
        opened(tmp_path)
    journal.close()
    opened(tmp_path).close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="file: the journal folder cannot be used"):
        opened(tmp_path / "file")
    with pytest.raises(StartError, match="below: the journal folder cannot be used"):
        opened(tmp_path / "file" / "below")


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = opened(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    journal.begin("a", 1)
    journal.progress([("a", 1, counts(3))])
    journal.write()
    monkeypatch.undo()
    journal.close()
    again = opened(tmp_path)
    assert [(end.id, end.counts.output) for end in again.unacknowledged()] == [("a", 3)]
    again.close()


def test_a_disk_that_is_full_for_a_while_costs_no_record(tmp_path: Path) -> None:
    """Part of a record reaches the disk and the rest does not. The next write brings all of it, whole and once."""
    script = """
import resource, sys
from pathlib import Path
from engine.server.journal import Journal
from protocol.requests import Counts, Done

journal = Journal(Path(sys.argv[1]), first_epoch=1)
journal.begin("before", 1)
journal.write()
size = (Path(sys.argv[1]) / "journal").stat().st_size
for room in (7, 20, 31):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
    journal.progress([("before", 1, Counts(prompt=room, computed=room))])
    journal.begin(f"during {room}", 1)
    for attempt in (journal.write, journal.sync):
        try:
            attempt()
        except OSError as error:
            assert journal.full, error
        else:
            raise SystemExit("there was room")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.sync()
assert not journal.full
"""
    command = [sys.executable, "-c", script, str(tmp_path)]  # its output goes into pipes: files may not grow
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert ran.returncode == 0, ran.stderr
    journal = Journal(tmp_path)
    try:
        assert (journal.damaged, journal.torn_bytes) == (0, 0)
        ended = {done.id: done.counts.prompt for done in journal.unacknowledged()}
        assert ended == {"before": 31, "during 7": 0, "during 20": 0, "during 31": 0}
    finally:
        journal.close()

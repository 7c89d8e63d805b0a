"""Records are written beside others who need the disk more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.server.journal import Journal
from prompt_cache.tiers.record_store import RecordStore
from tests.prompt_cache.tiers.stores import Files, access, key, opened, payloads
from tests.waiting import LONG_S


class Counted(Files):
    """Counts the parts that were written, and tells of each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.parts = threading.Semaphore(0)

    def append(self, file: int, part: memoryview) -> None:
        super().append(file, part)
        self.parts.release()


@pytest.fixture
def syncing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Journal, threading.Event]]:
    """A journal in the midst of its `sync`, which ends when the event is set."""
    journal, begun, go_on = Journal(tmp_path / "journal"), threading.Event(), threading.Event()
    sync_to_disk = os.fsync

    def slow(file: int) -> None:
        if threading.current_thread() is thread:
            begun.set()
            assert go_on.wait(LONG_S)
        sync_to_disk(file)

    monkeypatch.setattr(os, "fsync", slow)
    thread = threading.Thread(target=journal.sync)
    thread.start()
    assert begun.wait(LONG_S)
    yield journal, go_on
    go_on.set()
    thread.join(LONG_S)
    journal.close()


def test_a_record_waits_in_its_midst_while_the_journal_is_brought_to_the_disk(
    folder: Path, syncing: tuple[Journal, threading.Event]
) -> None:
    journal, go_on = syncing
    files = Counted(folder)
    asked = threading.Event()

    def wait_for_others(seconds: float) -> None:
        asked.set()
        journal.wait_for_sync(seconds)

    with opened(folder, files=files, wait_for_others=wait_for_others) as store:
        written: list[bool] = []
        writer = threading.Thread(target=lambda: written.append(_write(store)))
        writer.start()
        assert asked.wait(LONG_S)
        assert files.parts.acquire(timeout=LONG_S)
        assert files.parts.acquire(timeout=LONG_S)
        assert not files.parts.acquire(timeout=0.02), "header and first chunk, and nothing more"
        assert not written
        go_on.set()
        writer.join(LONG_S)
        assert written == [True]
        assert store.read(access(), key(1), (0, 1)) == payloads("project", 1)


def _write(store: RecordStore) -> bool:
    return store.write(access(), key(1), payloads("project", 1), position=0)


def test_what_was_written_is_not_kept_in_memory_a_second_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, advise = os.fdatasync, os.posix_fadvise
    monkeypatch.setattr(os, "fdatasync", lambda file: (done.append("synced"), sync(file)))

    def advised(file: int, start: int, length: int, advice: int) -> None:
        assert (start, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        done.append("dropped")
        advise(file, start, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", advised)
    with opened(folder) as store:
        assert _write(store)
    assert done == ["synced", "dropped"] * 2

"""A journal that is compacted while it is written to, and dies at any point of that.

The death of the process leaves what the system was given; that of the machine leaves of each file what was brought to
the disk and perhaps some more, and of the folder perhaps what it was before the file was put in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from engine.server import journal as journal_module
from engine.server.journal import METRIC, Journal
from protocol.requests import Counts, Done

FOUND = tuple[frozenset[tuple[str, str, int, int]], float, float]
"""What a start finds: (id, reason, output, delivered) of each unacknowledged end; of all ends number and output."""


@dataclass(frozen=True)
class Known:
    """What was journaled, as a start is to find it."""

    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    unacknowledged: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    output: int = 0

    def found(self) -> FOUND:
        """What is live ends by the crash."""
        crashed = {(id, "crash", output, delivered) for id, (output, delivered) in self.live.items()}
        stopped = {(id, "stop", output, 0) for id, output in self.unacknowledged.items()}
        in_all = self.output + sum(output for output, _ in self.live.values())
        return frozenset(crashed | stopped), self.ended + len(self.live), in_all


class Writer:
    """What the engine and the gateways say to a journal, a record at a time.

    `history` is what was known after each, `written` the place in it of what was written last.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.history = [Known()]
        self.written = 0
        self._sequences: dict[str, int] = {}

    def begin(self, id: str) -> None:
        self.journal.begin(id, 1)
        self._said(live=self.now.live | {id: (0, 0)})

    def progress(self, id: str, output: int) -> None:
        self.journal.progress([(id, 1, Counts(output=output))])
        self._said(live=self.now.live | {id: (output, self.now.live[id][1])})

    def deliver(self, id: str, delivered: int) -> None:
        self.journal.delivered(id, 1, delivered)
        self._said(live=self.now.live | {id: (self.now.live[id][0], delivered)})

    def end(self, id: str, output: int, write: bool = True) -> None:
        self._sequences[id] = self.journal.end(Done(id, 1, "stop", Counts(output=output), 0)).sequence
        now = self.now
        self._said(
            write,
            live={other: counts for other, counts in now.live.items() if other != id},
            unacknowledged=now.unacknowledged | {id: output},
            ended=now.ended + 1,
            output=now.output + output,
        )

    def acknowledge(self, id: str) -> None:
        self.journal.acknowledge(self._sequences[id])
        left = {other: output for other, output in self.now.unacknowledged.items() if other != id}
        self._said(unacknowledged=left)

    @property
    def now(self) -> Known:
        return self.history[-1]

    def _said(self, write: bool = True, **changed: Any) -> None:
        self.history.append(replace(self.now, **changed))
        if write:
            self.journal.write()
            self.written = len(self.history) - 1


class Disk:
    """The folder, looked at around all that the journal asks of the system, and the deaths that it might die there.

    All that is written by now is on the disk. `deaths` are the files and the least and the most of the history that a
    start may find in them. What is in `meanwhile` is done one by one, where other threads could do it.
    """

    def __init__(self, folder: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deaths: list[tuple[dict[str, bytes], int, int]] = []
        self.promised = len(writer.history) - 1
        self._folder, self._writer = folder, writer
        status = (folder / "journal").stat()
        self._durable = {status.st_ino: status.st_size}
        self._replaced: tuple[bytes, int] | None = None
        self._busy = self._copied = False
        self.meanwhile: Iterator[object] = iter(())
        self._real = {name: getattr(os, name) for name in ("open", "write", "pread", "fsync", "replace", "close")}
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, "_" + name))

    def look(self) -> None:
        """Either may die now."""
        with self.unseen():
            self._remember()

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Nothing dies while this is done."""
        self._busy = True
        yield
        self._busy = False

    def _remember(self) -> None:
        latest = len(self._writer.history) - 1
        path = self._folder / "journal"
        files = {file.name: file.read_bytes() for file in self._folder.iterdir() if file.name != "lock"}
        self.deaths.append((files, self._writer.written, latest))
        there = [(files["journal"], self._durable.get(path.stat().st_ino, 0))]
        if self._replaced is not None:
            there.append(self._replaced)
        for content, durable in there:
            for size in {durable, (durable + len(content)) // 2, max(durable, len(content) - 1), len(content)}:
                self.deaths.append((files | {"journal": content[:size]}, self.promised, latest))

    def _around(self, name: str, *given: Any, others: bool = False) -> Any:
        if self._busy:
            return self._real[name](*given)
        self.look()
        if others:
            self._others()
        result = self._real[name](*given)
        self._noted(name, *given)
        self.look()
        return result

    def _others(self) -> None:
        with self.unseen():
            next(self.meanwhile, None)

    def _noted(self, name: str, *given: Any) -> None:
        if name == "fsync":
            status = os.fstat(given[0])
            self._durable[status.st_ino] = status.st_size
            if Path(f"/proc/self/fd/{given[0]}").is_dir():
                self._replaced = None

    def _open(self, *given: Any) -> int:
        return self._around("open", *given)

    def _write(self, file: int, data: bytes) -> int:
        return self._around("write", file, data if self._busy else data[:100])

    def _fsync(self, file: int) -> None:
        self._around("fsync", file, others=True)

    def _close(self, file: int) -> None:
        self._around("close", file)

    def _pread(self, *given: Any) -> bytes:
        data = self._around("pread", *given)
        if not data and not self._busy and not self._copied:
            self._copied = True  # what is written from now on has to be copied while others wait
            self._others()
        return data

    def _replace(self, source: Path, target: Path) -> None:
        before = target.read_bytes(), self._durable.get(target.stat().st_ino, 0)
        self.look()
        self._real["replace"](source, target)
        self._replaced = before
        self.look()


def test_a_crash_at_any_point_of_a_compaction_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 1_500)
    folder = tmp_path / "dies"
    journal = Journal(folder, first_epoch=1)
    writer = Writer(journal)
    for id in ("acknowledged", "acknowledged meanwhile", "kept"):
        writer.end(id, 3)
    writer.acknowledge("acknowledged")
    for id in ("runs", "ends meanwhile", "ends at once", "ends in this moment"):
        writer.begin(id)
        writer.progress(id, 2)
        writer.deliver(id, 1)
    writer.end("ends at once", 4)
    journal.sync()
    disk = Disk(folder, writer, monkeypatch)
    with disk.unseen():
        while (folder / "journal").stat().st_size < 2_000:
            writer.progress("runs", len(writer.history))  # … not on the disk when the compaction begins
        writer.end("ends in this moment", 8, write=False)
    before = len(writer.history) - 1

    def meanwhile() -> Iterator[None]:
        """While the new file is brought to the disk, then before it takes the old one's place, then the folder."""
        writer.acknowledge("acknowledged meanwhile")
        writer.end("ends meanwhile", 6)
        writer.begin("new")
        yield
        writer.progress("new", 7)
        writer.begin("ends too")
        writer.end("ends too", 1)
        yield
        writer.deliver("runs", 2)
        writer.acknowledge("ends too")
        yield

    disk.meanwhile = meanwhile()
    journal.sync()
    assert (folder / "journal").stat().st_size < 1_000
    assert next(disk.meanwhile, "all was done") == "all was done"
    disk.promised = before
    disk.look()
    latest = len(writer.history) - 1
    journal.sync()
    disk.promised = latest
    disk.look()
    monkeypatch.undo()
    journal.close()
    assert len(disk.deaths) > 100

    monkeypatch.setattr(os, "fsync", lambda file: None)
    for number, (files, least, most) in enumerate(disk.deaths):
        dead = tmp_path / str(number)
        dead.mkdir()
        for name, content in files.items():
            (dead / name).write_bytes(content)
        again = Journal(dead)
        ends = again.unacknowledged()
        totals = again.metrics()
        assert again.damaged == 0
        assert len({end.id for end in ends}) == len(ends)
        found: FOUND = (
            frozenset((end.id, end.reason, end.counts.output, end.delivered) for end in ends),
            totals[f"{METRIC}_requests_total"],
            totals[f"{METRIC}_output_tokens_total"],
        )
        assert found in [known.found() for known in writer.history[least : most + 1]], f"death {number}"
        again.close()

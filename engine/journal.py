"""The replica's durable journal of counts: what was done is known even if the process or the machine dies.

Records are written before what they count is shown to anyone, so the death of the process loses nothing; `sync` brings
them to the disk, and a `Done` is only sent after that, so neither does the death of the machine. What the last epoch
had begun and not ended is ended at the next start with the reason `crash` and the counts as last journaled. A `Done`
stays until a gateway acknowledges it.

Thread-safe. One folder belongs to one process, which holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.errors import StartError
from engine.journal_records import Acked, AnyRecord, Begun, Ended, Heard, Opened, Totals, Went, frame, read_records
from engine.protocol.requests import Counts, Done

METRIC = "turnpike_engine_journal"
COMPACT_BYTES = 8 * 1024 * 1024
SEQUENCE_BITS = 32
"""Sequence numbers are (epoch << 32) + count: they grow across epochs whatever was lost of the last one's end."""
_EPOCHS_BEGIN = 1_767_225_600
"""2026-01-01: a first epoch is the seconds since then, so that sequence numbers fit 63 bits until 2094."""


@dataclass
class _Live:
    """A request that has begun and not ended."""

    id: str
    attempt: int
    counts: Counts
    delivered: int = 0
    claim: bytes = b""


class Journal:
    """`epoch` is this start's; `damaged` and `torn_bytes` say what was wrong with the last one's file."""

    def __init__(self, folder: Path, first_epoch: int | None = None) -> None:
        """Open or make the journal. Raises StartError if the folder is not usable or another replica owns it.

        `first_epoch` is for a journal that knows of none; by default it tells the time. So a replica whose folder was
        lost neither looks older than it did, nor gives out a sequence number again.
        """
        self.folder = folder
        self._path = folder / "journal"
        self._guard = threading.Lock()
        self._sync_guard = threading.Lock()
        self._live: dict[int, _Live] = {}
        self._handles: dict[tuple[str, int], int] = {}
        self._done: dict[int, Done] = {}
        self._totals = Totals(0, Counts())
        self._sequence = 0
        self._handle = 0
        self._buffer: list[bytes] = []
        self._size = 0
        self._file = -1
        self._first_epoch = int(time.time()) - _EPOCHS_BEGIN if first_epoch is None else first_epoch
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartError(f"{folder}: the journal folder cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StartError(
                f"{folder}: another replica uses this journal folder; give each its own --data-dir"
            ) from error
        try:
            self._open()
        except OSError as error:
            self.close()
            raise StartError(f"{folder}: the journal cannot be opened: {error.strerror}") from error

    # ------------------------------------------------------------ writing

    def begin(self, id: str, attempt: int, claim: bytes = b"") -> None:
        """The request was scheduled; should we die, its `Done` will have this claim."""
        with self._guard:
            self._handle += 1
            self._handles[id, attempt] = self._handle
            self._live[self._handle] = _Live(id, attempt, Counts(), claim=claim)
            self._buffer.append(frame(Begun(self._handle, id, attempt, claim)))

    def progress(self, counts: Iterable[tuple[str, int, Counts]]) -> None:
        """(id, attempt, counts) after a step; those that have not begun or have ended are passed over."""
        with self._guard:
            went = [
                (handle, now) for id, attempt, now in counts if (handle := self._handles.get((id, attempt))) is not None
            ]
            for handle, now in went:
                self._live[handle].counts = now
            self._buffer += [frame(Went(went[at : at + 1024])) for at in range(0, len(went), 1024)]

    def delivered(self, id: str, attempt: int, delivered: int) -> None:
        """So many tokens have reached the client; ignored for a request that has not begun or has ended."""
        with self._guard:
            handle = self._handles.get((id, attempt))
            if handle is not None and delivered > self._live[handle].delivered:
                self._live[handle].delivered = delivered
                self._buffer.append(frame(Heard(handle, delivered)))

    def end(self, done: Done) -> Done:
        """The request ended; returns `done` with its sequence number. Send it only after `sync`."""
        with self._guard:
            return self._end(self._handles.pop((done.id, done.attempt), 0), done)

    def acknowledge(self, sequence: int) -> None:
        """Drop a `Done`; an unknown sequence is ignored."""
        with self._guard:
            if self._done.pop(sequence, None) is not None:
                self._buffer.append(frame(Acked(sequence)))

    def write(self) -> None:
        """Hand all records to the operating system: from now on they outlive this process. Raises OSError."""
        with self._guard:
            self._write()

    def sync(self) -> None:
        """Bring all that was written so far to the disk, compacting the file when it has grown. Raises OSError."""
        with self._sync_guard:
            with self._guard:
                self._write()
                if self._size > COMPACT_BYTES:
                    self._rewrite()
                    return
                file = self._file
            os.fsync(file)

    def close(self) -> None:
        """Write what is left and let the folder go."""
        with self._sync_guard, self._guard:
            if self._file >= 0:
                with contextlib.suppress(OSError):
                    self._write()
                    os.fsync(self._file)
                os.close(self._file)
                self._file = -1
            os.close(self._lock)

    def unacknowledged(self) -> list[Done]:
        """Every `Done` that no gateway has acknowledged, in order of sequence."""
        with self._guard:
            return [self._done[sequence] for sequence in sorted(self._done)]

    def metrics(self) -> dict[str, float]:
        """What the ended requests of all epochs add up to, by Prometheus name: as much as their usage events do."""
        with self._guard:
            totals = self._totals
            waiting = len(self._done)
        counted = {
            f"{METRIC}_{name}_tokens_total": float(getattr(totals.counts, name)) for name in Counts.__struct_fields__
        }
        return {f"{METRIC}_requests_total": totals.requests, f"{METRIC}_unacknowledged": waiting} | counted

    # ------------------------------------------------------------ inside

    def _end(self, handle: int, done: Done) -> Done:
        self._live.pop(handle, None)
        self._sequence += 1
        numbered = msgspec.structs.replace(done, sequence=self._sequence)
        self._done[self._sequence] = numbered
        self._count(numbered.counts)
        self._buffer.append(frame(Ended(handle, numbered)))
        return numbered

    def _count(self, counts: Counts) -> None:
        names = Counts.__struct_fields__
        summed = Counts(**{name: getattr(self._totals.counts, name) + getattr(counts, name) for name in names})
        self._totals = Totals(self._totals.requests + 1, summed)

    def _write(self) -> None:
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._size += len(data)
        while data:
            data = data[os.write(self._file, data) :]

    def _open(self) -> None:
        data = self._path.read_bytes() if self._path.exists() else b""
        records, self.damaged, self.torn_bytes = read_records(data)
        last = 0
        for record in records:
            match record:
                case Opened():
                    last = max(last, record.epoch)
                case _:
                    self.damaged += not self._apply(record)
        known = max(last, self._stored_epoch())
        self.epoch = known + 1 if known else self._first_epoch
        self._store_epoch()
        if self.damaged:
            # Someone may want to see what was lost; the journal goes on without it.
            (self.folder / f"journal.damaged-{self.epoch}").write_bytes(data)
        self._sequence = self.epoch << SEQUENCE_BITS
        for handle in list(self._live):
            live = self._live[handle]
            crashed = Done(
                live.id, live.attempt, "crash", live.counts, 0, live.delivered, replayed=True, claim=live.claim
            )
            self._end(handle, crashed)
        self._handles.clear()
        self._rewrite()

    def _apply(self, record: AnyRecord) -> bool:
        """Follow a record of the last epochs; False if what it speaks of is not known."""
        match record:
            case Begun():
                self._live[record.handle] = _Live(record.id, record.attempt, Counts(), claim=record.claim)
            case Went():
                known = [(handle, counts) for handle, counts in record.counts if handle in self._live]
                for handle, counts in known:
                    self._live[handle].counts = counts
                return len(known) == len(record.counts)
            case Heard():
                if record.handle not in self._live:
                    return False
                self._live[record.handle].delivered = record.delivered
            case Ended():
                self._live.pop(record.handle, None)
                self._done[record.done.sequence] = record.done
                self._count(record.done.counts)
            case Totals():
                self._totals = record
            case Acked():
                self._done.pop(record.sequence, None)
        return True

    def _state(self) -> Iterator[AnyRecord]:
        """The records that say all that is still of interest."""
        yield Opened(self.epoch)
        for sequence in sorted(self._done):
            yield Ended(0, self._done[sequence])
        yield self._totals  # after those, which it includes
        for handle, live in self._live.items():
            yield Begun(handle, live.id, live.attempt, live.claim)
            yield Went([(handle, live.counts)])
            yield Heard(handle, live.delivered)

    def _rewrite(self) -> None:
        """Replace the file by one with the present state, at once or not at all."""
        self._buffer.clear()
        data = b"".join(map(frame, self._state()))
        file = self._replace(self._path, data)
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._size = len(data)

    def _replace(self, path: Path, data: bytes) -> int:
        """Write a file beside `path`, bring it to the disk, put it in place; returns it, open for appending."""
        beside = path.with_name(path.name + ".new")
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
            beside.replace(path)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            os.close(file)
            raise
        return file

    def _stored_epoch(self) -> int:
        """The epoch also stands in a file of its own, so that it grows even when the journal is lost."""
        try:
            return int((self.folder / "epoch").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _store_epoch(self) -> None:
        os.close(self._replace(self.folder / "epoch", f"{self.epoch}\n".encode()))

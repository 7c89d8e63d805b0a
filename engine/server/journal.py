"""The replica's durable journal of counts: what was done is known even if the process or the machine dies.

Records are written before what they count is shown to anyone, so the death of the process loses nothing; `sync` brings
them to the disk, and a `Done` is only sent after that, so neither does the death of the machine. What the last epoch
had begun and not ended is ended at the next start with the reason `crash` and the counts as last journaled. A `Done`
stays until a gateway acknowledges it.

Thread-safe. Who only says what happened (`begin`, `progress`, `delivered`, `end`, `acknowledge`) never waits for the
disk; `write` waits for writes, and only `sync` waits until something has reached it. One folder belongs to one process,
which holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from engine.errors import DiskFull, EngineError, StartError
from engine.server.journal_records import (
    Acked,
    AnyRecord,
    Begun,
    Ended,
    Heard,
    Opened,
    Refused,
    Totals,
    Went,
    frame,
    read_records,
)
from protocol.requests import Counts, Done
from storage.disk_space import is_disk_full

logger = structlog.get_logger("engine.server.journal")

METRIC = "turnpike_engine_journal"
COMPACT_BYTES = 8 * 1024 * 1024
_COPY_BYTES = 1 << 20
SEQUENCE_BITS = 32
"""Sequence numbers are (epoch << 32) + count: they grow across epochs whatever was lost of the last one's end."""
_MOST_FENCED = 4096
"""So many gateway epochs are refused: those that were fenced last."""
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
    gateway: str = ""


def _write(file: int, data: bytes) -> None:
    """Append all of the data, however much the system takes at a time."""
    while data:
        data = data[os.write(file, data) :]


def _copy(source: int, target: int, at: int, end: int) -> int:
    """Append what a file holds from here up to `end` to another; returns where it ended."""
    while data := os.pread(source, min(_COPY_BYTES, end - at), at):
        _write(target, data)
        at += len(data)
    return at


def _is_file(path: Path, file: int) -> bool:
    """Whether the path leads to this open file."""
    try:
        found, ours = path.stat(), os.fstat(file)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _compact_at(file: int) -> int:
    """How large it may grow from now on: most of it may be of no more interest then."""
    return max(COMPACT_BYTES, 2 * os.fstat(file).st_size)


def _unusable(error: OSError, problem: str) -> StartError | DiskFull:
    """Why the journal cannot be used: for ever, or until there is room."""
    return (DiskFull if is_disk_full(error) else StartError)(f"{problem}: {error.strerror}")


def _new(path: Path) -> Path:
    """Where a file is made that is to take the place of this one."""
    return path.with_name(path.name + ".new")


class Journal:
    """`epoch` is this start's; `damaged` and `torn_bytes` say what was wrong with the last one's file.

    `identity` names this journal for ever, and stands in its file: where that was lost, another journal begins, and
    nobody takes what it does not know for what never was. `since` is the epoch in which it began.
    """

    def __init__(self, folder: Path, first_epoch: int | None = None) -> None:
        """Open or make the journal. Raises StartError if the folder is not usable or another replica owns it, DiskFull.

        `first_epoch` is for a journal that knows of none; by default it tells the time. So a replica whose folder was
        lost neither looks older than it did, nor gives out a sequence number again.
        """
        self.folder = folder
        self._path = folder / "journal"
        self._sync_guard = threading.Lock()
        """Held by the one who syncs or compacts; taken before the others."""
        self._file_guard = threading.Lock()
        """Held while the file grows, or another takes its place, so that records stand in it in their order."""
        self._guard = threading.Lock()
        """Held for what is in memory, and never while the disk is waited for; taken after the others."""
        self._live: dict[int, _Live] = {}
        self._handles: dict[tuple[str, int], int] = {}
        self._done: dict[int, Done] = {}
        self._gateways: dict[int, str] = {}
        """The gateway epoch of each of these."""
        self._fenced: dict[str, None] = {}
        self._totals = Totals(0, Counts())
        self._sequence = 0
        self._handle = 0
        self._buffer: list[bytes] = []
        self._file = -1
        self._lock = -1
        self._size = 0
        """How long the file is with whole records alone: beyond it may lie part of a write that failed."""
        self.full = False
        """Whether the disk had no room for the last write; what was to be written is kept for the next."""
        self._compact_at = 0
        self.restored = 0
        """How often the folder was gone and made again."""
        self._first_epoch = int(time.time()) - _EPOCHS_BEGIN if first_epoch is None else first_epoch
        self._take_folder()
        try:
            self._open()
        except OSError as error:
            self.close()
            raise _unusable(error, f"{folder}: the journal cannot be opened") from error

    # ------------------------------------------------------------ writing

    def begin(self, id: str, attempt: int, claim: bytes = b"", gateway: str = "") -> None:
        """A request of this gateway epoch was scheduled; should we die, its `Done` will have this claim."""
        with self._guard:
            self._handle += 1
            self._handles[id, attempt] = self._handle
            self._live[self._handle] = _Live(id, attempt, Counts(), claim=claim, gateway=gateway)
            self._buffer.append(frame(Begun(self._handle, id, attempt, claim, gateway)))

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

    def end(self, done: Done, gateway: str = "") -> Done:
        """A request of this gateway epoch ended; returns `done` with its sequence number. Send it only after `sync`."""
        with self._guard:
            return self._end(self._handles.pop((done.id, done.attempt), 0), done, gateway)

    def acknowledge(self, sequence: int) -> None:
        """Drop a `Done`; an unknown sequence is ignored."""
        with self._guard:
            if self._done.pop(sequence, None) is not None:
                self._gateways.pop(sequence, None)
                self._buffer.append(frame(Acked(sequence)))

    def fence(self, gateway: str) -> None:
        """Nothing more is taken of this gateway epoch; durable after `sync`."""
        with self._guard:
            if gateway not in self._fenced:
                self._refuse([gateway])
                self._buffer.append(frame(Refused([gateway])))

    def is_fenced(self, gateway: str) -> bool:
        """Whether nothing more is taken of this gateway epoch."""
        return gateway in self._fenced

    def known_of(self, gateway: str) -> list[tuple[str, int]]:
        """The requests, with their attempts, that began or ended and are not acknowledged: those of this gateway epoch,
        and those of which an older version did not note whose they are."""
        whose = (gateway, "")
        with self._guard:
            known = [(live.id, live.attempt) for live in self._live.values() if live.gateway in whose]
            ended = [self._done[sequence] for sequence, origin in self._gateways.items() if origin in whose]
            return known + [(done.id, done.attempt) for done in ended]

    def write(self) -> None:
        """Hand all records to the operating system: from now on they outlive this process.

        Raises OSError, and then they are kept, to be written by the next call.
        """
        with self._file_guard:
            self._append()

    def sync(self) -> None:
        """Bring all that was written so far to the disk, compacting the file when it has grown. Raises OSError.

        What is written meanwhile does not wait, and is on the disk after the next `sync`.
        """
        with self._sync_guard:
            with self._file_guard:
                compact = self._size > self._compact_at
                state = self._append(state=compact)
                known = self._size
            if compact:
                self._compact(state, known)
            else:
                os.fsync(self._file)

    def close(self) -> None:
        """Write what is left and let the folder go."""
        with self._sync_guard, self._file_guard:
            if self._file >= 0:
                with contextlib.suppress(OSError):
                    self._append()
                    os.fsync(self._file)
                os.close(self._file)
                self._file = -1
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def restore(self) -> bool:
        """Make the journal again from memory if its folder or file was removed under us; whether it was. Raises
        StartError, DiskFull or OSError where that cannot be done: then nothing that is counted is durable."""
        with self._sync_guard, self._file_guard:
            if self._file < 0 or self.is_there:
                return False
            if not _is_file(self.folder / "lock", self._lock):
                lock = self._lock
                try:
                    self._take_folder()
                except EngineError:
                    self._lock = lock
                    raise
                os.close(lock)
            self._store_epoch()
            with self._guard:
                written, self._buffer = self._buffer, []  # what is not written yet is in the state
                content = b"".join(map(frame, self._state()))
            try:
                new = self._replace(self._path, content)
            except OSError:
                with self._guard:
                    self._buffer[:0] = written
                raise
            old, self._file = self._file, new
            self._size = len(content)
            os.close(old)
            self._compact_at = _compact_at(self._file)
            self.restored += 1
            self.full = False
        logger.error("the journal was removed while the replica ran, and is written again", folder=str(self.folder))
        return True

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
        return {
            f"{METRIC}_requests_total": totals.requests,
            f"{METRIC}_unacknowledged": waiting,
            f"{METRIC}_restored_total": self.restored,
        } | counted

    # ------------------------------------------------------------ inside

    def _take_folder(self) -> None:
        """Make the folder if need be, and lock it. Raises StartError, DiskFull."""
        folder = self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unusable(error, f"{folder}: the journal folder cannot be used") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            self._lock = -1
            raise StartError(
                f"{folder}: another replica uses this journal folder; give each its own --data-dir"
            ) from error

    @property
    def is_there(self) -> bool:
        """Whether the file that grows is the one that the next start would read; for a moment not, while another takes
        its place."""
        return _is_file(self._path, self._file)

    def _end(self, handle: int, done: Done, gateway: str = "") -> Done:
        live = self._live.pop(handle, None)
        self._sequence += 1
        numbered = msgspec.structs.replace(done, sequence=self._sequence)
        origin = live.gateway if live is not None else gateway
        self._done[self._sequence] = numbered
        self._gateways[self._sequence] = origin
        self._count(numbered.counts)
        self._buffer.append(frame(Ended(handle, numbered, origin)))
        return numbered

    def _count(self, counts: Counts) -> None:
        names = Counts.__struct_fields__
        summed = Counts(**{name: getattr(self._totals.counts, name) + getattr(counts, name) for name in names})
        self._totals = Totals(self._totals.requests + 1, summed)

    def _append(self, *, state: bool = False) -> list[AnyRecord]:
        """Append what waits in memory, with the file's guard held; the state that the file then has, if asked for.

        Raises OSError: then the file has none of it, and it waits on.
        """
        with self._guard:
            data = b"".join(self._buffer)
            self._buffer.clear()
            now = list(self._state()) if state else []
        try:
            _write(self._file, data)
        except OSError as error:
            with self._guard:
                self._buffer.insert(0, data)
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # part of a record would damage those that follow
            if is_disk_full(error) and not self.full:
                logger.error("the disk is full; work waits until the journal can be written", folder=str(self.folder))
                self.full = True
            raise
        self._size += len(data)
        if self.full and data:
            logger.info("the journal can be written again", folder=str(self.folder))
            self.full = False
        return now

    def _open(self) -> None:
        data = self._path.read_bytes() if self._path.exists() else b""
        records, self.damaged, self.torn_bytes = read_records(data)
        last = 0
        self.identity, self.since = "", 0
        for record in records:
            match record:
                case Opened():
                    last = max(last, record.epoch)
                    self.identity, self.since = record.journal, record.since
                case _:
                    self.damaged += not self._apply(record)
        known = max(last, self._stored_epoch())
        self.epoch = known + 1 if known else self._first_epoch
        if not self.identity:  # a file of an older version began before it had one
            self.identity, self.since = uuid.uuid4().hex, 0 if data else self.epoch
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
        self._buffer.clear()  # the new file says it all
        content = b"".join(map(frame, self._state()))
        self._file, self._size = self._replace(self._path, content), len(content)
        self._compact_at = _compact_at(self._file)

    def _apply(self, record: AnyRecord) -> bool:
        """Follow a record of the last epochs; False if what it speaks of is not known."""
        match record:
            case Begun():
                self._live[record.handle] = _Live(
                    record.id, record.attempt, Counts(), claim=record.claim, gateway=record.gateway
                )
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
                self._gateways[record.done.sequence] = record.gateway
                self._count(record.done.counts)
            case Totals():
                self._totals = record
            case Acked():
                self._done.pop(record.sequence, None)
                self._gateways.pop(record.sequence, None)
            case Refused():
                self._refuse(record.epochs)
        return True

    def _state(self) -> Iterator[AnyRecord]:
        """The records that say all that is still of interest."""
        yield Opened(self.epoch, self.identity, self.since)
        if self._fenced:
            yield Refused(list(self._fenced))
        for sequence in sorted(self._done):
            yield Ended(0, self._done[sequence], self._gateways[sequence])
        yield self._totals  # after those, which it includes
        for handle, live in self._live.items():
            yield Begun(handle, live.id, live.attempt, live.claim, live.gateway)
            yield Went([(handle, live.counts)])
            yield Heard(handle, live.delivered)

    def _compact(self, state: Iterable[AnyRecord], known: int) -> None:
        """Replace the file by one that begins with `state`, which is what its first `known` bytes amount to.

        The old file goes on growing until the new one has all of it, so that whichever a crash leaves is whole. What
        the old one got meanwhile is in the new one, but not yet on the disk: no `sync` has promised it. Where there is
        no room for a new one, the old one serves for as much again.
        """
        new = -1
        try:
            new = self._beside(self._path, b"".join(map(frame, state)))
            copied = _copy(self._file, new, known, self._size)  # most of it while others may write
            with self._file_guard:
                _copy(self._file, new, copied, self._size)
                compact_at, size = _compact_at(new), os.fstat(new).st_size
                self._put_in_place(self._path)  # nothing may fail between this and writing to it
                old, self._file, self._compact_at, self._size = self._file, new, compact_at, size
        except OSError as error:
            logger.warning("the journal cannot be made smaller", folder=str(self.folder), cause=str(error))
            if new >= 0:
                os.close(new)
            _new(self._path).unlink(missing_ok=True)
            self._compact_at = _compact_at(self._file)
            os.fsync(self._file)
        else:
            os.close(old)
            self._sync_folder()

    def _replace(self, path: Path, data: bytes) -> int:
        """Replace a file, at once or not at all, on the disk too; returns it, open for appending."""
        file = self._beside(path, data)
        try:
            self._put_in_place(path)
            self._sync_folder()
        except OSError:
            os.close(file)
            raise
        return file

    def _beside(self, path: Path, data: bytes) -> int:
        """A file with this content, on the disk, that is to take the place of `path`; open for appending."""
        file = os.open(_new(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            _write(file, data)
            os.fsync(file)
        except OSError:
            os.close(file)
            _new(path).unlink(missing_ok=True)
            raise
        return file

    def _put_in_place(self, path: Path) -> None:
        _new(path).replace(path)

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _refuse(self, epochs: Iterable[str]) -> None:
        self._fenced |= dict.fromkeys(epochs)
        while len(self._fenced) > _MOST_FENCED:
            del self._fenced[next(iter(self._fenced))]

    def _stored_epoch(self) -> int:
        """The epoch also stands in a file of its own, so that it grows even when the journal is lost."""
        try:
            return int((self.folder / "epoch").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _store_epoch(self) -> None:
        os.close(self._replace(self.folder / "epoch", f"{self.epoch}\n".encode()))

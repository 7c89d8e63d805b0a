"""The replica's journal: durable counts of what was done, even if the process or the machine dies.

Not to be confused with the gateways' view of it (`billing/replica_journals`) or with accounting journals.

Records are written before what they count is shown to anyone, so that the death of the process loses nothing. `sync`
brings them to the disk, and a `Done` is sent only after that, so that the death of the machine loses nothing either.
What had begun and not ended when the replica died is ended at the next start, with the reason `crash` and the counts as
last journaled. A `Done` stays in the journal until a gateway acknowledges it.

Thread-safe. What only notes what happened (`begin`, `progress`, `delivered`, `end`, `acknowledge`) never waits for the
disk; `write` waits until the operating system has the records, and only `sync` waits until the disk has them. A folder
belongs to one process, which holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from engine.errors import DiskFull, EngineError, StartError
from engine.server import atomic_files
from engine.server.journal_records import (
    Acked,
    AnyRecord,
    Begun,
    Delivered,
    Ended,
    Fenced,
    Opened,
    Progress,
    frame,
    read_records,
)
from engine.server.journal_state import JournalState
from protocol.requests import Counts, Done
from storage.disk_space import is_disk_full

logger = structlog.get_logger("engine.server.journal")

METRIC = "turnpike_engine_journal"
COMPACT_BYTES = 8 * 1024 * 1024
SEQUENCE_BITS = 32
"""Sequence numbers are (epoch << 32) + count: they grow across epochs, even if the end of the last epoch was lost."""
_EPOCHS_BEGIN = 1_767_225_600
"""2026-01-01: a first epoch is the seconds since then, so that sequence numbers fit 63 bits until 2094."""
_RECORD_REQUESTS = 1024
"""Requests in one `Progress` at most: records are bounded."""


def _compact_size(file: int) -> int:
    """The size at which a file is to be compacted: by then most of it may be obsolete."""
    return max(COMPACT_BYTES, 2 * os.fstat(file).st_size)


def _start_error(error: OSError, problem: str) -> StartError | DiskFull:
    """Why the journal cannot be used: for good, or until the disk has room."""
    return (DiskFull if is_disk_full(error) else StartError)(f"{problem}: {error.strerror}")


class Journal:
    """The journal in `folder`. `epoch` is the number of this start.

    `damaged` counts stretches of the last file that could not be read, `torn_bytes` the bytes of a torn record at its
    end. `identity` names this journal for ever, and stands in its file. Where that was lost another journal begins, so
    that a request which the new one does not know is not taken for one that never was. `since` is the epoch in which
    this journal began.
    """

    def __init__(self, folder: Path, first_epoch: int | None = None) -> None:
        """Open or make the journal. Raises StartError if the folder is not usable or another replica owns it, DiskFull.

        `first_epoch` is for a folder without a journal; by default it is made of the time. So a replica whose folder
        was lost neither looks older than it was, nor gives out a sequence number again.
        """
        self.folder = folder
        self._path = folder / "journal"
        # Taken in this order, where more than one is held:
        self._sync_lock = threading.Lock()
        """Held by the thread that syncs or compacts."""
        self._file_lock = threading.Lock()
        """Held while the file grows or is replaced, so that records stand in it in their order."""
        self._state_lock = threading.Lock()
        """Held for what is in memory, and never while waiting for the disk."""
        self._state = JournalState()
        self._sequence = 0
        self._handle = 0
        self._buffer: list[bytes] = []
        """Frames of records that are in the state and not in the file."""
        self._file = -1
        self._folder_lock = -1
        self._size = 0
        """Bytes of whole records in the file: part of a write that failed may follow."""
        self.full = False
        """Whether the disk had no room for the last write. Its records are kept for the next one."""
        self._compact_at = 0
        self.restored = 0
        """How often the folder was removed and made again."""
        self._first_epoch = int(time.time()) - _EPOCHS_BEGIN if first_epoch is None else first_epoch
        self._take_folder()
        try:
            self._open()
        except OSError as error:
            self.close()
            raise _start_error(error, f"{folder}: the journal cannot be opened") from error

    # ------------------------------------------------------------ what happened

    def begin(self, id: str, attempt: int, claim: bytes = b"", gateway_epoch: str = "") -> None:
        """A request of this gateway epoch was scheduled. If the replica dies, its `Done` will have this claim."""
        with self._state_lock:
            self._handle += 1
            self._record(Begun(self._handle, id, attempt, claim, gateway_epoch))

    def progress(self, counts: Iterable[tuple[str, int, Counts]]) -> None:
        """(id, attempt, counts) after a step. Requests that have not begun or have ended are ignored."""
        with self._state_lock:
            handles = self._state.handles
            went = [(handle, now) for id, attempt, now in counts if (handle := handles.get((id, attempt))) is not None]
            for at in range(0, len(went), _RECORD_REQUESTS):
                self._record(Progress(went[at : at + _RECORD_REQUESTS]))

    def delivered(self, id: str, attempt: int, delivered: int) -> None:
        """So many tokens have reached the client. Ignored for a request that has not begun or has ended."""
        with self._state_lock:
            handle = self._state.handles.get((id, attempt))
            if handle is not None and delivered > self._state.running[handle].delivered:
                self._record(Delivered(handle, delivered))

    def end(self, done: Done, gateway_epoch: str = "") -> Done:
        """A request of this gateway epoch ended. Returns `done` with its sequence number; send it only after `sync`."""
        with self._state_lock:
            return self._end(self._state.handles.get((done.id, done.attempt), 0), done, gateway_epoch)

    def acknowledge(self, sequence: int) -> None:
        """A gateway has made this `Done` durable: drop it. An unknown sequence is ignored."""
        with self._state_lock:
            if sequence in self._state.unacknowledged:
                self._record(Acked(sequence))

    def fence(self, gateway_epoch: str) -> None:
        """Refuse this gateway epoch from now on; durable after `sync`."""
        with self._state_lock:
            if gateway_epoch not in self._state.fenced:
                self._record(Fenced([gateway_epoch]))

    def is_fenced(self, gateway_epoch: str) -> bool:
        """Whether this gateway epoch is refused."""
        return gateway_epoch in self._state.fenced

    def known_of(self, gateway_epoch: str) -> list[tuple[str, int]]:
        """(id, attempt) of the requests of a gateway epoch that run, or ended and are not acknowledged.

        Among them are those of which an older version of the journal did not note the gateway epoch.
        """
        with self._state_lock:
            return self._state.requests_of(gateway_epoch)

    def unacknowledged(self) -> list[Done]:
        """Every `Done` that no gateway has acknowledged, in order of sequence."""
        with self._state_lock:
            return [done for _, done in sorted(self._state.unacknowledged.items())]

    def metrics(self) -> dict[str, float]:
        """Sums over the ended requests of all epochs, by Prometheus name: what their usage events add up to."""
        with self._state_lock:
            totals = self._state.totals
            waiting = len(self._state.unacknowledged)
        counted = {
            f"{METRIC}_{name}_tokens_total": float(getattr(totals.counts, name)) for name in Counts.__struct_fields__
        }
        return {
            f"{METRIC}_requests_total": totals.requests,
            f"{METRIC}_unacknowledged": waiting,
            f"{METRIC}_restored_total": self.restored,
        } | counted

    def _record(self, record: AnyRecord) -> None:
        self._state.apply(record)
        self._buffer.append(frame(record))

    def _end(self, handle: int, done: Done, gateway_epoch: str = "") -> Done:
        self._sequence += 1
        timeline = done.timeline
        numbered = msgspec.structs.replace(done, sequence=self._sequence, timeline=None)
        request = self._state.running.get(handle)
        self._record(Ended(handle, numbered, gateway_epoch if request is None else request.gateway_epoch))
        return numbered if timeline is None else msgspec.structs.replace(numbered, timeline=timeline)

    def _opened(self) -> Opened:
        return Opened(self.epoch, self.identity, self.since)

    # ------------------------------------------------------------ the file

    def write(self) -> None:
        """Hand all records to the operating system: from now on they outlive this process.

        Raises OSError; then the records are kept, and the next call writes them.
        """
        with self._file_lock:
            self._append()

    def sync(self) -> None:
        """Bring all that was written so far to the disk, compacting the file when it has grown. Raises OSError.

        What other threads write meanwhile does not wait, and is on the disk after the next `sync`.
        """
        with self._sync_lock:
            with self._file_lock:
                compact = self._size > self._compact_at
                state = self._append(state=compact)
                size = self._size
            if compact:
                self._compact(state, size)
            else:
                os.fsync(self._file)

    def wait_for_sync(self, seconds: float) -> None:
        """Wait while records are brought to the disk, for so many seconds at most: until then others leave it alone."""
        if self._sync_lock.acquire(timeout=seconds):
            self._sync_lock.release()

    def close(self) -> None:
        """Write what is left and unlock the folder."""
        with self._sync_lock, self._file_lock:
            if self._file >= 0:
                with contextlib.suppress(OSError):
                    self._append()
                    os.fsync(self._file)
                os.close(self._file)
                self._file = -1
            if self._folder_lock >= 0:
                os.close(self._folder_lock)
                self._folder_lock = -1

    @property
    def unwritten(self) -> bool:
        """Whether there are records that the operating system does not have."""
        return bool(self._buffer)

    @property
    def is_there(self) -> bool:
        """Whether the open file is the one that the next start would read. For a moment it is not, while another takes
        its place."""
        return atomic_files.is_same_file(self._path, self._file)

    def restore(self) -> bool:
        """Make the journal again from memory if its folder or file was removed; returns whether it was.

        Raises StartError, DiskFull or OSError if it cannot be made: then nothing that is counted is durable.
        """
        with self._sync_lock, self._file_lock:
            if self._file < 0 or self.is_there:
                return False
            if not atomic_files.is_same_file(self.folder / "lock", self._folder_lock):
                lock = self._folder_lock
                try:
                    self._take_folder()
                except EngineError:
                    self._folder_lock = lock
                    raise
                os.close(lock)
            self._store_epoch()
            with self._state_lock:
                buffer, self._buffer = self._buffer, []  # the state has it
                content = b"".join(map(frame, self._state.records(self._opened())))
            try:
                new = atomic_files.replace_file(self._path, content)
            except OSError:
                with self._state_lock:
                    self._buffer[:0] = buffer
                raise
            old, self._file = self._file, new
            self._size = len(content)
            os.close(old)
            self._compact_at = _compact_size(self._file)
            self.restored += 1
            self.full = False
        logger.error("the journal was removed while the replica ran, and is written again", folder=str(self.folder))
        return True

    def _append(self, *, state: bool = False) -> list[AnyRecord]:
        """Append the buffer, with the file's lock held. Returns the records of the state that the file then has, if
        wanted.

        Raises OSError; then the file has nothing of the buffer, which is kept.
        """
        with self._state_lock:
            data = b"".join(self._buffer)
            self._buffer.clear()
            records = list(self._state.records(self._opened())) if state else []
        try:
            atomic_files.write_all(self._file, data)
        except OSError as error:
            with self._state_lock:
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
        return records

    def _compact(self, state: Iterable[AnyRecord], size: int) -> None:
        """Replace the file by one that begins with `state`, which the first `size` bytes of the old one add up to.

        The old file grows until the new one has all of it, so that whichever a crash leaves is whole. What was written
        to the old one meanwhile is in the new one, but not yet on the disk: no `sync` has promised it. If the disk has
        no room for a new file, the old one is kept until it has doubled.
        """
        new = -1
        try:
            new = atomic_files.make_beside(self._path, b"".join(map(frame, state)))
            copied = atomic_files.copy_bytes(self._file, new, size, self._size)  # most of it while others may write
            with self._file_lock:
                atomic_files.copy_bytes(self._file, new, copied, self._size)
                compact_at, new_size = _compact_size(new), os.fstat(new).st_size
                atomic_files.put_in_place(self._path)  # nothing may fail between this and the next line
                old, self._file, self._compact_at, self._size = self._file, new, compact_at, new_size
        except OSError as error:
            logger.warning("the journal cannot be made smaller", folder=str(self.folder), cause=str(error))
            if new >= 0:
                os.close(new)
            atomic_files.drop_beside(self._path)
            self._compact_at = _compact_size(self._file)
            os.fsync(self._file)
        else:
            os.close(old)
            atomic_files.sync_folder(self.folder)

    # ------------------------------------------------------------ the start

    def _take_folder(self) -> None:
        """Make the folder if need be, and lock it. Raises StartError, DiskFull."""
        folder = self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._folder_lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _start_error(error, f"{folder}: the journal folder cannot be used") from error
        try:
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._folder_lock)
            self._folder_lock = -1
            raise StartError(
                f"{folder}: another replica uses this journal folder; give each its own --data-dir"
            ) from error

    def _open(self) -> None:
        data = self._path.read_bytes() if self._path.exists() else b""
        records, self.damaged, self.torn_bytes = read_records(data)
        last = 0
        self.identity, self.since = "", 0
        for record in records:
            if isinstance(record, Opened):
                last = max(last, record.epoch)
                self.identity, self.since = record.journal, record.since
            else:
                self.damaged += not self._state.apply(record)
        last = max(last, self._stored_epoch())
        self.epoch = last + 1 if last else self._first_epoch
        if not self.identity:  # a file of an older version began before journals had one
            self.identity, self.since = uuid.uuid4().hex, 0 if data else self.epoch
        self._store_epoch()
        if self.damaged:
            # Kept, so that an operator can see what was lost; the journal goes on without it.
            (self.folder / f"journal.damaged-{self.epoch}").write_bytes(data)
        self._sequence = self.epoch << SEQUENCE_BITS
        for handle, request in list(self._state.running.items()):
            self._end(handle, request.crashed())
        self._buffer.clear()  # the new file has the whole state
        content = b"".join(map(frame, self._state.records(self._opened())))
        self._file, self._size = atomic_files.replace_file(self._path, content), len(content)
        self._compact_at = _compact_size(self._file)

    def _stored_epoch(self) -> int:
        """The epoch in a file of its own, so that it grows even if the journal is lost; 0 without such a file."""
        try:
            return int((self.folder / "epoch").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _store_epoch(self) -> None:
        os.close(atomic_files.replace_file(self.folder / "epoch", f"{self.epoch}\n".encode()))

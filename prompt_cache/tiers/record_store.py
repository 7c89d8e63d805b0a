"""The store of KV records in a folder: sealed, bounded, findable after a restart; a bad record is a miss.

A record is one block of one layer group, in one file. All methods may be called from any thread. Those that touch the
disk say so, and belong in worker threads; the others wait for no disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog

from prompt_cache.kv.block_keys import BLOCK_TOKENS, KEY_BYTES
from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_files import Bytes, FolderScan, NotAFile, RecordFiles, reclaim
from prompt_cache.tiers.record_format import MOST_SCOPE_BYTES, BadRecord, Header, RecordFault, disk_bytes, record_bytes
from prompt_cache.tiers.record_index import RecordIndex
from prompt_cache.tiers.record_io import LONGEST_RETENTION_S, Place, RecordReader, RecordWriter, WritePace
from prompt_cache.tiers.sealing import Sealer
from prompt_cache.tiers.store_contents import US, DiskRoom, StoreContents
from prompt_cache.tiers.store_state import FolderLock, StoreState, StoreUnusable, state_folder
from prompt_cache.tiers.tombstones import Tombstones
from storage.disk_space import is_disk_full

logger = structlog.get_logger("prompt_cache.tiers")

_RECLAIMED_FILES, _FORGOTTEN_RECORDS = 200, 500
_CLOCK_STEP_S = 1.0  # a clock that was set back by so much shortens nothing
_GIVEN_UP = 16
"""Records of one's own that go when the disk turns out to be full."""


class RecordStore:
    """The records of one identity in `folder`.

    `state`: a folder beside it, for tombstones: what it holds must not be restored with old records; by default
    `folder` with `.state` after its name. `limit_bytes`: the most that all records hold on disk. `keep_free_share`:
    the share of the file system that stays free for others. `attention_tokens`: as `HitDensity`'s. `write_share`: the
    most of the time that writes go on; `wait_for_others`: as `WritePace`'s. `clock`: seconds since the Unix epoch.
    """

    def __init__(
        self,
        folder: Path,
        identity: StoreIdentity,
        *,
        limit_bytes: int,
        keep_free_share: float = 0.1,
        attention_tokens: float | None = None,
        state: Path | None = None,
        write_share: float = 0.5,
        wait_for_others: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.time,
        files: RecordFiles | None = None,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self._state_folder = state or state_folder(folder)
        self._clock = clock
        self._files = files or RecordFiles(folder, identity.name)
        sizes = [disk_bytes(record_bytes(group.block_bytes)) for group in identity.groups]
        total = max(1, limit_bytes * len(sizes) // sum(sizes))
        index = RecordIndex(total, max(1, BLOCK_TOKENS // len(sizes)), attention_tokens)
        self._contents = StoreContents(DiskRoom(folder, limit_bytes, keep_free_share, clock), index, clock)
        self._pace = WritePace(write_share, wait_for_others)
        self._sealer = Sealer()
        self._scan: FolderScan | None = None
        self._open = False

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Make and lock the folder, and read the tombstones. Takes milliseconds, however many records there are: they
        are found by `look` and `read` until `scan` is through. Raises StoreLocked, StoreUnusable."""
        self._folder_lock = FolderLock(self.folder)
        try:
            self._state = StoreState(self._state_folder)
            self._tombstones = Tombstones(self._state_folder, self._now(), self._state.sequence())
            unpublished = self._files.prepare(self.identity.description)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self._folder_lock.release()
            raise StoreUnusable(f"the cache folder {self.folder} cannot be used: {error}") from error
        files, sealer = self._files, self._sealer
        self._reader = RecordReader(files, self.identity, sealer, self._tombstones, self._clock)
        self._writer = RecordWriter(files, self.identity, sealer, self._state, pace=self._pace, clock=self._clock)
        self._contents.count("unpublished", unpublished)
        self._contents.count("damaged_tombstones", int(self._tombstones.damaged))
        self._scan = FolderScan(self._files, partial(self._failed, "a folder of cache records cannot be listed"))
        self._open = True

    def close(self) -> None:
        """Give the folder back. Calls after this find and write nothing."""
        if self._open:
            self._open, self._contents.closed = False, True
            self._writer.stop()
            self._tombstones.close()
            self._folder_lock.release()

    def scan(self, most: int = 1000) -> bool:
        """Look at up to `most` more files (disk). Returns whether all were seen. For a background thread."""
        scan = self._scan
        if scan is None or not self._open:
            return True
        for name in scan.names(most):
            if isinstance(name, Path):
                with contextlib.suppress(OSError):
                    name.unlink()
                self._contents.count("swept_foreign")
            elif not self._contents.knows(name):
                self._see(name)
        if scan.done:
            self._scan = None
        return scan.done

    def maintain(self) -> None:
        """What has to be done now and then, about once a second (disk): delete what expired, keep the file system's
        last tenth free, delete records of other identities, oldest first. For a background thread."""
        if not self._open:
            return
        self._discard(self._contents.expired(), "expired")
        self._evict(self._contents.excess())
        try:
            self._files.sync_folders()
            self._tombstones.maintain(self._now())
            files, size = reclaim(self._files, _RECLAIMED_FILES)
        except OSError as error:
            self._failed("the cache folder cannot be maintained", error)
        else:
            self._contents.count("reclaimed", files)
            self._contents.count("reclaimed_bytes", size)

    # ------------------------------------------------------------ reading

    def holds(self, scope: str, key: bytes, groups: Iterable[int]) -> bool:
        """Whether the records of this block in all these groups seem to be there, as far as they were seen by the scan
        or by `look`. Only `read` says whether they are good."""
        return all(self._contents.live(self._state.name(scope, key, group)) for group in groups)

    def look(self, blocks: Iterable[tuple[str, bytes]], groups: Sequence[int]) -> None:
        """See these blocks (scope, key) of a prompt before the scan does, up to the first that is not there (disk)."""
        for name in (self._state.name(scope, key, group) for scope, key in blocks for group in groups):
            if not self._contents.knows(name) and self._open and not self.scanned:
                self._see(name)
            if not self._contents.knows(name):
                return

    def read(
        self,
        access: ScopeAccess,
        key: bytes,
        groups: Sequence[int],
        *,
        into: Mapping[int, memoryview] | None = None,
        deadline: float | None = None,
    ) -> Mapping[int, Bytes] | RecordFault:
        """The payload of the block in each of these groups (disk), or why one is missing or fails a check.

        `into`: writable memory for each group's payload, which is then what is returned; after None its content means
        nothing. `deadline`: on the monotonic clock; what is not read by then is a miss and stays in the store. A record
        that fails a check is deleted and counted by cause. Raises nothing for what is on disk.
        """
        payloads: dict[int, Bytes] = {}
        names = {group: self._state.name(access.scope, key, group) for group in groups}
        for group, name in names.items():
            size = self.identity.groups[group].block_bytes
            payload: Bytes = bytearray(size) if into is None else into[group]
            view = memoryview(payload).cast("B")
            if len(view) != size:
                raise ValueError(f"into[{group}]: {len(view)} bytes, the group's blocks have {size}")
            if (cause := self._read(access, key, group, name, view, deadline=deadline)) is not None:
                return cause
            payloads[group] = payload
        self._contents.was_read(names.values(), sum(self.identity.groups[group].block_bytes for group in names))
        return payloads

    def _read(
        self, access: ScopeAccess, key: bytes, group: int, name: bytes, into: memoryview, *, deadline: float | None
    ) -> RecordFault | None:
        """Read one record; why not, if so."""
        known = self._contents.knows(name)
        # without retention there is no key either: nothing is read, and nothing that was written before is deleted
        if not self._open or (not known and self._scan is None) or access.retention <= 0:
            self._contents.count("miss_absent")
            return "absent"
        try:
            header = self._reader.read(access, key, group, name, into, deadline=deadline)
        except BadRecord as bad:
            cause: RecordFault = "lost" if known and bad.cause == "absent" else bad.cause
            self._contents.count(f"miss_{cause}")
            if cause not in ("absent", "late"):
                self._discard([name])
            return cause
        if not known:
            self._remember(name, header, access)
        return None

    # ------------------------------------------------------------ writing

    def write(
        self,
        access: ScopeAccess,
        key: bytes,
        payloads: Mapping[int, Bytes],
        *,
        position: int,
        before: tuple[str, bytes] | None = None,
        lease_until: float = 0.0,
    ) -> bool:
        """Seal and publish the block's record in each of these groups (disk, with fsync); whether all are there now.

        `position`: tokens before the block. `before`: scope and key of the block before it in its prompt, if any.
        `lease_until`: seconds since the Unix epoch, 0 without a lease. False, and counted by cause, when there is no
        room or the disk refuses. Raises ValueError for a payload that is not of the group's `block_bytes`, and for an
        access without retention (C5).
        """
        if access.retention <= 0:
            raise ValueError("a scope without retention never leaves the device (C5)")
        if len(key) != KEY_BYTES or len(access.scope.encode()) > MOST_SCOPE_BYTES:
            raise ValueError(f"a key of {len(key)} bytes, or a scope of more than {MOST_SCOPE_BYTES}")
        views = {group: memoryview(payload).cast("B") for group, payload in payloads.items()}
        for group, view in views.items():
            if len(view) != self.identity.groups[group].block_bytes:
                raise ValueError(f"payloads[{group}]: {len(view)} bytes, the group's blocks have another number")
        names = {group: self._state.name(access.scope, key, group) for group in views}
        parent = b"" if before is None else self._state.name(*before, len(self.identity.groups) - 1)
        for group, view in views.items():
            if not self._write(access, key, group, view, (position, lease_until, parent)):
                return False
            parent = names[group]
        return True

    def _write(self, access: ScopeAccess, key: bytes, group: int, payload: memoryview, place: Place) -> bool:
        """Write one record; whether it is there now."""
        name = self._state.name(access.scope, key, group)
        refusal, victims = self._contents.reserve(name, access, disk_bytes(record_bytes(len(payload))))
        self._discard(victims, "evictions")
        if refusal is not None:
            if refusal != "known":
                self._contents.count(f"refused_{refusal}")
            return refusal == "known"
        try:
            header = self._writer.write(access, key, group, name, payload, place=place)
        except OSError as error:
            full, obstructed = is_disk_full(error), isinstance(error, NotAFile)
            self._contents.count(f"refused_{'disk_full' if full else 'not_a_file' if obstructed else 'io_error'}")
            if not obstructed:  # a folder that has the record's name is there at each write
                logger.warning("a cache record cannot be written", folder=str(self.folder), cause=str(error))
            if full:  # others need room at once: sooner than the next look at the disk
                self._evict(_GIVEN_UP * disk_bytes(record_bytes(len(payload))))
            return False
        finally:
            self._contents.release(name)
        if header is None:
            return False
        if not self._remember(name, header, access):
            self._discard([name])
            self._contents.count("refused_purged")
            return False
        self._contents.count("writes")
        self._contents.count("written_bytes", header.payload)
        return True

    def lease(self, scope: str, keys: Iterable[bytes], until: float) -> None:
        """Leases on these blocks now end at `until`, or later if they did before: they are worth more until then."""
        self._contents.lease(self._names(scope, keys), until)

    # ------------------------------------------------------------ deleting

    def purge(self, scope: str, keys: Sequence[bytes]) -> int:
        """Delete these blocks, for ever (disk): a durable tombstone for each outlives their retention, so that no old
        copy of the folder brings them back. Returns how many records were deleted."""
        if keys and self._open:
            self._bury(scope, keys)
            return self._discard(list(self._names(scope, keys)), "purged")
        return 0

    def forget(self, scope: str) -> int:
        """Delete all that was written in this scope until now, as `purge` does. Returns how many records."""
        if not self._open:
            return 0
        self._bury(scope, None)
        self._sealer.forget(scope)
        return self._discard_all(self._contents.lasting(scope, 0.0), "purged")

    def shorten(self, scope: str, retention: float) -> int:
        """Delete what of a scope lives longer than `retention` seconds from now (disk), also when the scan finds it: it
        was written when more was allowed. Returns how many records were deleted."""
        if not self._open:
            return 0
        until = self._clock() + retention + _CLOCK_STEP_S
        if self._scan is not None:
            self._scan.shorten(scope, until)
        return self._discard_all(self._contents.lasting(scope, until), "shortened")

    def _discard_all(self, names: Sequence[bytes], counter: str) -> int:
        parts = range(0, len(names), _FORGOTTEN_RECORDS)  # others get their turn between them
        return sum(self._discard(names[at : at + _FORGOTTEN_RECORDS], counter) for at in parts)

    def _bury(self, scope: str, keys: Sequence[bytes] | None) -> None:
        until = self._now() + int(LONGEST_RETENTION_S * US)
        try:
            self._tombstones.add(scope, keys, self._state.sequence(), until)
        except OSError as error:
            self._failed("a purge is not on the disk yet", error)

    def give_back(self, size: int) -> int:
        """Delete records of about `size` bytes, and take no more than what is left for a minute (disk): somebody else
        needs room. Returns the bytes that were deleted."""
        self._contents.give_up(size)
        return self._evict(size)

    def _evict(self, size: int) -> int:
        freed = 0
        while freed < size and (victims := self._contents.forget_worst(size - freed)):
            self._discard(list(victims), "evictions")
            freed += sum(victims.values())
        return freed

    def _discard(self, names: Sequence[bytes], counter: str = "") -> int:
        """Delete these records; how many there were."""
        deleted = 0
        self._contents.remove(names)
        for name in names:
            try:
                deleted += self._files.delete(name)
            except OSError as error:
                self._failed("a cache record cannot be deleted", error)
        if counter:
            self._contents.count(counter, deleted)
        return deleted

    # ------------------------------------------------------------ figures

    @property
    def scanned(self) -> bool:
        """Whether the scan is through."""
        return self._scan is None

    @property
    def used_bytes(self) -> int:
        """What the records hold on disk, as far as they were seen."""
        return self._contents.used

    @property
    def records(self) -> int:
        """How many records there are, as far as they were seen."""
        return len(self._contents)

    @property
    def usage(self) -> Mapping[str, int]:
        """Bytes on disk by scope, as far as they were seen."""
        return self._contents.usage

    @property
    def counters(self) -> Mapping[str, int]:
        """What happened since `open`, by name: `reads`, `read_bytes`, `writes`, `written_bytes`, `evictions`,
        `expired`, `purged`, `shortened`, `reclaimed`, `miss_CAUSE`, `swept_CAUSE` and `refused_CAUSE`."""
        return self._contents.counters

    # ------------------------------------------------------------ inside

    def _see(self, name: bytes) -> None:
        """Look at the header of a record that an earlier start left."""
        try:
            header = self._reader.look(name, lambda header: self._state.name(header.scope, header.key, header.group))
        except BadRecord as bad:
            if bad.cause != "absent":  # deleted meanwhile
                self._contents.count(f"swept_{bad.cause}")
                self._discard([name])
            return
        if (scan := self._scan) is not None and scan.outlives(header.scope, header.expires / US):
            self._discard([name], "shortened")
        else:
            self._remember(name, header, None)

    def _remember(self, name: bytes, header: Header, access: ScopeAccess | None) -> bool:
        place = header.position // BLOCK_TOKENS * len(self.identity.groups) + header.group
        purged = partial(self._tombstones.covers, header.scope, header.key, header.sequence)
        return self._contents.remember(name, header, place, access, purged)

    def _names(self, scope: str, keys: Iterable[bytes]) -> Iterator[bytes]:
        groups = range(len(self.identity.groups))
        return (self._state.name(scope, key, group) for key in keys for group in groups)

    def _failed(self, event: str, error: OSError) -> None:
        self._contents.count("io_errors")
        logger.warning(event, folder=str(self.folder), cause=str(error))

    def _now(self) -> int:
        return int(self._clock() * US)

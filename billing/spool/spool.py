"""The spool: a durable queue of usage in front of the database. A client sees its usage only after it lies here.

Each owner (a gateway worker's epoch) writes files of its own, locked as long as it lives. The files of one that died
are adopted by whoever finds them next. A file that the settler has drained is deleted.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import structlog

from billing.spool.segments import Read, SpoolSegment, frame
from billing.usage import SpoolRecord, UsageEvent
from storage.database.base import new_id
from storage.database.batcher import BatcherClosed, MicroBatcher

log = structlog.get_logger(__name__)

SUFFIX = ".spool"
_MAX_BATCH = 1000
_MAX_KEPT = 10_000
_ROTATE_BYTES = 8 * 1024 * 1024
_OWNER = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class SpoolUnavailable(Exception):
    """The record is not durable: the disk is full, broken or gone. Trying again later may help."""


class SpoolBatch(msgspec.Struct, frozen=True):
    """Durable records of one segment, in order, up to `position`: `frames` whole ones, `corrupt` damaged stretches, and
    `torn` bytes at the end that are no whole one."""

    segment: SpoolSegment
    records: list[SpoolRecord]
    position: int
    frames: int
    corrupt: int = 0
    torn: int = 0


class _Group(msgspec.Struct):
    """What became durable together: between `start` and `end` of a segment, frames of these sizes.

    `records` is empty if too much was waiting to be kept in memory too. `oldest` is the first admission of the events.
    """

    segment: SpoolSegment
    start: int
    end: int
    sizes: list[int]
    records: list[SpoolRecord]
    oldest: int | None


def files_of(folder: Path, owner: str) -> list[Path]:
    """The files of an owner that are not dealt with yet, whoever does it."""
    return sorted(path for path in folder.glob(f"{owner}-*{SUFFIX}") if path.stem.rpartition("-")[0] == owner)


class Spool:
    """Appends settlements durably, many at a time, and hands them to one settler in order."""

    def __init__(self, folder: Path | str, owner: str, rotate_bytes: int = _ROTATE_BYTES) -> None:
        """Files appear in `folder` (made if missing) at the first append. Raises ValueError for an owner that is no
        file name, OSError if the folder cannot be made."""
        if _OWNER.fullmatch(owner) is None:
            raise ValueError(f"{owner!r} is no name for a spool's owner: letters, digits, - and _, at most 64")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.owner = owner
        self.corrupt = 0
        """Damaged stretches found so far, in our files and in adopted ones."""
        self.count = 0
        """Records that we appended, ever."""
        self.waiting = 0
        """Records that we appended and that are not dealt with yet; adopted files are counted in `bytes_waiting`."""
        self.appended = asyncio.Event()
        """Set whenever there may be something new to read."""
        self.synced_ns = 0
        """How long the last group of appends took to become durable."""
        self._rotate_bytes = rotate_bytes
        self._segments: list[SpoolSegment] = []
        self._groups: deque[_Group] = deque()
        """What waits of what we appended, in order: it need not be read back."""
        self._kept = 0
        """How many records these have."""
        self._encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
        self._decoder = msgspec.msgpack.Decoder(SpoolRecord)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._batcher: MicroBatcher[tuple[bytes, SpoolRecord], None] = MicroBatcher(self._flush, _MAX_BATCH)

    async def append(self, record: SpoolRecord) -> None:
        """Returns once the record is durable. Raises SpoolUnavailable, and then the record does not count."""
        try:
            await self._batcher.submit((frame(self._encoder.encode(record)), record))
        except OSError as error:
            raise SpoolUnavailable(f"cannot write to the spool: {error.strerror or type(error).__name__}") from error
        except BatcherClosed as error:
            raise SpoolUnavailable("the spool is closed") from error

    @staticmethod
    def orphans(folder: Path | str) -> list[SpoolSegment]:
        """The files in the folder whose owners are gone, locked by us now: adopt them, or release each."""
        paths = sorted(Path(folder).glob(f"*{SUFFIX}"))
        return [segment for segment in map(SpoolSegment.adopt, paths) if segment is not None]

    async def adopt_orphans(self) -> int:
        """Take over the files of owners that are gone; they are read before ours. Returns how many."""
        found = await asyncio.to_thread(self.orphans, self.folder)
        for segment in found:
            log.info("adopted the spool of a gateway that is gone", file=segment.path.name, bytes=segment.durable)
        self._segments[:0] = found
        if found:
            self.appended.set()
        return len(found)

    async def read(self, limit: int) -> SpoolBatch | None:
        """The next records to deal with, the oldest first; None if there are none. Ask again after `done`."""
        self.appended.clear()
        for segment in self._segments:
            if not segment.drained:
                kept = self._remembered(segment, limit)
                return kept or self._decode(segment, await asyncio.to_thread(segment.read, limit))
        self._discard_drained()
        return None

    def done(self, batch: SpoolBatch) -> None:
        """The batch is dealt with for good; a file that is drained by it is deleted."""
        segment = batch.segment
        segment.position = batch.position
        segment.corrupt += batch.corrupt
        self.corrupt += batch.corrupt
        if not segment.adopted:
            self.waiting -= batch.frames
            self._forget(segment)
        if batch.corrupt:
            log.error("damaged records in the spool; the file is kept", file=segment.path.name, stretches=batch.corrupt)
        if batch.torn:
            log.warning("cut an unfinished record off the spool", file=segment.path.name, bytes=batch.torn)
        self._discard_drained()

    @property
    def dealt_with(self) -> int:
        """How many records that we appended are dealt with: the first ones."""
        return self.count - self.waiting

    @property
    def bytes_waiting(self) -> int:
        """Bytes that are durable and not dealt with, adopted files included."""
        return sum(segment.durable - segment.position for segment in self._segments)

    @property
    def drained(self) -> bool:
        """Whether every durable record that we know of has been dealt with."""
        return all(segment.drained for segment in self._segments)

    @property
    def oldest(self) -> int | None:
        """When the first admitted request was admitted whose event we appended and is not dealt with; None if none."""
        return min((group.oldest for group in self._groups if group.oldest is not None), default=None)

    async def close(self) -> None:
        """Finish appends, delete what is drained, let go of the rest: the next start adopts it."""
        await self._batcher.close()
        self._thread.shutdown()
        for segment in self._segments:
            segment.closed = True
        self._discard_drained()
        for segment in self._segments:
            segment.release()
        self._segments.clear()

    def _remembered(self, segment: SpoolSegment, limit: int) -> SpoolBatch | None:
        """The next records, if we have them in memory as they are in the file."""
        records: list[SpoolRecord] = []
        position = segment.position
        for group in self._groups:
            if group.segment is not segment or group.start != position or not group.records:
                break
            taken = group.records[: limit - len(records)]
            records += taken
            position += sum(group.sizes[: len(taken)])
            if position < group.end or len(records) == limit:
                break
        return SpoolBatch(segment, records, position, len(records)) if records else None

    def _forget(self, segment: SpoolSegment) -> None:
        """Forget what lies before the segment's position."""
        groups, position = self._groups, segment.position
        while groups and groups[0].segment is segment and groups[0].start < position:
            group = groups.popleft()
            passed = 0
            while passed < len(group.records) and group.start < position:
                group.start += group.sizes[passed]
                passed += 1
            self._kept -= passed
            if position < group.end:
                group.sizes, group.records = group.sizes[passed:], group.records[passed:]
                groups.appendleft(group)
                return

    def _decode(self, segment: SpoolSegment, read: Read) -> SpoolBatch:
        records: list[SpoolRecord] = []
        corrupt = read.corrupt
        for payload in read.payloads:
            try:
                records.append(self._decoder.decode(payload))
            except msgspec.MsgspecError as error:
                corrupt += 1
                log.error("a record in the spool is whole and makes no sense", file=segment.path.name, error=str(error))
        return SpoolBatch(segment, records, read.position, len(read.payloads), corrupt, read.torn)

    def _discard_drained(self) -> None:
        for segment in [s for s in self._segments if s.closed and s.drained]:
            segment.discard()
            self._segments.remove(segment)

    async def _flush(self, items: list[tuple[bytes, SpoolRecord]]) -> list[Exception | None]:
        began = time.monotonic_ns()
        loop = asyncio.get_running_loop()
        segment = self._segments[-1] if self._segments and not self._segments[-1].closed else None
        if segment is None:
            segment = await loop.run_in_executor(self._thread, SpoolSegment.create, self._new_path())
            self._segments.append(segment)
        start = segment.durable
        await loop.run_in_executor(self._thread, segment.append, b"".join([framed for framed, _ in items]))
        records = [record for _, record in items] if self._kept < _MAX_KEPT else []
        oldest = min((record.admitted_at for _, record in items if isinstance(record, UsageEvent)), default=None)
        sizes = [len(framed) for framed, _ in items]
        self._groups.append(_Group(segment, start, segment.durable, sizes, records, oldest))
        self._kept += len(records)
        if segment.durable >= self._rotate_bytes:
            segment.closed = True
        self.synced_ns = time.monotonic_ns() - began
        self.count += len(items)
        self.waiting += len(items)
        self.appended.set()
        return [None] * len(items)

    def _new_path(self) -> Path:
        return self.folder.joinpath(f"{self.owner}-{new_id().hex}{SUFFIX}")

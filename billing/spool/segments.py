"""One file of the spool: framed records that a crash can cut short and a disk can damage, told apart when read.

A frame is a 4-byte mark, the payload's length, a CRC-32 of length and payload (both 4 bytes, little-endian), and the
payload. After damage the next whole frame is found by its mark, so that no good record is lost with a bad one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

import msgspec

from billing.spool import locked_files

HEADER = b"TPSPOOL1"
MARK = b"\xf5TP\xfa"
_FRAME = struct.Struct("<4sII")
MAX_PAYLOAD = 16 * 1024 * 1024
_CHUNK = 1024 * 1024


def frame(payload: bytes) -> bytes:
    """The frame of a payload."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a record of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    checksum = zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
    return _FRAME.pack(MARK, len(payload), checksum) + payload


class Read(msgspec.Struct, frozen=True):
    """What lies between two positions of a segment.

    `payloads`: of whole frames. `corrupt`: how many damaged stretches lie before a whole frame, or are as long as one.
    `torn`: how many bytes at the end are no whole frame. That append was cut short, and nobody was told that it is
    durable.
    """

    payloads: list[bytes]
    position: int
    corrupt: int
    torn: int


def scan(data: bytes, *, limit: int, last: bool) -> tuple[list[bytes], int, int, int]:
    """Payloads of at most `limit` frames in `data`, bytes consumed, damaged stretches, torn bytes.

    Unless `last`, an incomplete frame at the end is left for the next time, when more of it is there.
    """
    payloads: list[bytes] = []
    at = corrupt = 0
    while at < len(data) and len(payloads) < limit:
        size = _frame_size(data, at)
        if size > 0:
            payloads.append(data[at + _FRAME.size : at + size])
            at += size
            continue
        following = _next_frame(data, at + 1)
        if following is not None:
            corrupt += 1
            at = following
        elif not last:
            break
        elif size < 0:  # the frame claims more than there is: cut short
            return payloads, len(data), corrupt, len(data) - at
        else:
            return payloads, len(data), corrupt + 1, 0
    return payloads, at, corrupt, 0


def _frame_size(data: bytes, at: int) -> int:
    """The size of the whole frame at this place; -1 if it is cut off by the end of data, 0 if it is damaged."""
    if len(data) - at < _FRAME.size:
        return -1 if MARK.startswith(data[at : at + len(MARK)]) else 0
    mark, length, checksum = _FRAME.unpack_from(data, at)
    if mark != MARK or length > MAX_PAYLOAD:
        return 0
    end = at + _FRAME.size + length
    if end > len(data):
        return -1
    computed = zlib.crc32(memoryview(data)[at + _FRAME.size : end], zlib.crc32(length.to_bytes(4, "little")))
    return end - at if computed == checksum else 0


def _next_frame(data: bytes, start: int) -> int | None:
    at = data.find(MARK, start)
    while at >= 0:
        if _frame_size(data, at) > 0:
            return at
        at = data.find(MARK, at + 1)
    return None


class SpoolSegment:
    """A spool file that we hold the lock of. `durable` is its length as far as it is safely on the disk."""

    def __init__(self, path: Path, descriptor: int, durable: int, *, adopted: bool) -> None:
        self.path = path
        self.durable = durable
        self.adopted = adopted
        self.closed = adopted
        """Whether nothing will be appended any more."""
        self.position = len(HEADER)
        """Up to where the reader has dealt with it."""
        self.corrupt = 0
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path) -> SpoolSegment:
        """A new, locked, empty segment whose name is durable. Raises OSError."""
        return cls(path, locked_files.create(path, HEADER), len(HEADER), adopted=False)

    @classmethod
    def adopt(cls, path: Path) -> SpoolSegment | None:
        """A segment whose owner is gone, locked by us; None if its owner lives or it has just been dealt with."""
        descriptor = locked_files.take(path)
        if descriptor is None:
            return None
        try:
            os.fsync(descriptor)  # what its owner wrote and did not live to sync
            segment = cls(path, descriptor, os.fstat(descriptor).st_size, adopted=True)
            if os.pread(descriptor, len(HEADER), 0) != HEADER:
                segment.position = 0  # a damaged header costs no record: reading looks for the first frame
        except BaseException:
            os.close(descriptor)
            raise
        return segment

    def append(self, frames: bytes) -> None:
        """Append whole frames and sync them. Raises OSError: then none of them counts, and no more are taken."""
        try:
            locked_files.write_all(self._descriptor, frames)
            os.fdatasync(self._descriptor)
        except BaseException:
            self.closed = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.durable)
            raise
        self.durable += len(frames)

    def read(self, limit: int) -> Read:
        """At most `limit` records after `position`, which the caller moves on when it has dealt with them."""
        size = _CHUNK
        while True:
            ask = min(size, self.durable - self.position)
            data = os.pread(self._descriptor, ask, self.position)
            last = self.position + len(data) >= self.durable or len(data) < ask
            payloads, used, corrupt, torn = scan(data, limit=limit, last=last)
            if used or last:
                return Read(payloads, self.position + used, corrupt, torn)
            size *= 2

    @property
    def drained(self) -> bool:
        """Whether the reader has dealt with all of it."""
        return self.position >= self.durable

    def release(self) -> None:
        """Let go of the lock; what is not dealt with is for whoever adopts it."""
        os.close(self._descriptor)

    def discard(self) -> None:
        """Delete a drained segment; a damaged one is kept beside, for people to look at. Lets go of the lock."""
        if self.corrupt:
            self.path.rename(self.path.with_suffix(".corrupt"))
        else:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

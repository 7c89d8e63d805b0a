"""Reading and writing records: all of one is checked that is read, and what is written is whole or was never there.

A read checks header, place, age, tombstones and seal; what fails is a BadRecord. A write is header, sealed payload,
fsync, name. Writes are paced, so that others' fsyncs need not wait behind the cache's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import structlog

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_files import Bytes, NotAFile, RecordFiles
from prompt_cache.tiers.record_format import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TAG_BYTES,
    BadRecord,
    Header,
    chunks,
    unpack,
)
from prompt_cache.tiers.sealing import Sealer
from prompt_cache.tiers.store_state import StoreState
from prompt_cache.tiers.tombstones import Tombstones

logger = structlog.get_logger("prompt_cache.tiers")
LONGEST_RETENTION_S = 7 * 86_400.0
"""No record lives longer, whatever its scope's retention: so long tombstones have to be kept."""
Place: TypeAlias = tuple[int, float, bytes]
"""Tokens before a block, when the last lease on it ends, in seconds since the Unix epoch, and the name of the record
before it in its prompt, if any."""
MOST_YIELDED_S = 5.0
"""For so long others are waited for at a time, at most."""
_US = 1_000_000


class RecordReader:
    """Reads the records of one identity. May be used from any thread."""

    def __init__(
        self,
        files: RecordFiles,
        identity: StoreIdentity,
        sealer: Sealer,
        tombstones: Tombstones,
        clock: Callable[[], float],
    ) -> None:
        self._files, self._identity, self._sealer, self._tombstones = files, identity, sealer, tombstones
        self._clock = clock

    def read(
        self, access: ScopeAccess, key: bytes, group: int, name: bytes, into: memoryview, *, deadline: float | None
    ) -> Header:
        """Read the record of this block and layer group, in the file of this name. Raises BadRecord."""
        try:
            with self._files.opened(name) as (file, length):
                raw, header = self._header(file)
                self._check(header, length, access, key, group)
                opener = self._sealer.opener(access.data_key, access.scope, header.salt, raw, header.counter)
                buffer = memoryview(bytearray(min(header.payload, CHUNK_BYTES) + TAG_BYTES))
                offset = HEADER_BYTES
                for chunk in range(chunks(header.payload)):
                    if deadline is not None and time.monotonic() > deadline:
                        raise BadRecord("late")
                    part = into[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
                    sealed = buffer[: len(part) + TAG_BYTES]
                    if self._files.read(file, sealed, offset) < len(sealed):
                        raise BadRecord("truncated")
                    opener.open(chunk, sealed, part)
                    offset += len(sealed)
        except FileNotFoundError as error:
            raise BadRecord("absent") from error
        except NotAFile as error:
            raise BadRecord("not_a_file") from error
        except OSError as error:
            logger.warning("a cache record cannot be read", folder=str(self._files.folder), cause=str(error))
            raise BadRecord("io_error") from error
        self._check_age(header, access.retention)  # it may have been purged meanwhile
        return header

    def look(self, name: bytes, name_of: Callable[[Header], bytes]) -> Header:
        """The header of the record of this name, which has to be the one that `name_of` gives it; nothing is known
        about the payload yet. Raises BadRecord."""
        try:
            with self._files.opened(name) as (file, length):
                _, header = self._header(file)
        except FileNotFoundError as error:
            raise BadRecord("absent") from error
        except NotAFile as error:
            raise BadRecord("not_a_file") from error
        except OSError as error:
            raise BadRecord("io_error") from error
        self._check_identity(header)
        if name_of(header) != name:
            raise BadRecord("misplaced")
        if length != header.record_bytes:
            raise BadRecord("truncated")
        self._check_age(header)
        return header

    def _header(self, file: int) -> tuple[bytes, Header]:
        raw = bytearray(HEADER_BYTES)
        got = self._files.read(file, memoryview(raw), 0)
        return bytes(raw), unpack(bytes(raw[:got]))

    def _check(self, header: Header, length: int, access: ScopeAccess, key: bytes, group: int) -> None:
        """Raise BadRecord unless the header is of the record that was asked for, and that may still be read."""
        self._check_identity(header)
        size = self._identity.groups[group].block_bytes
        if (header.scope, header.key, header.group, header.payload) != (access.scope, key, group, size):
            raise BadRecord("misplaced")
        if length != header.record_bytes:
            raise BadRecord("truncated")
        self._check_age(header, access.retention)

    def _check_identity(self, header: Header) -> None:
        ours = self._identity
        if (header.model, header.numerics, header.layout) != ours.digests:
            raise BadRecord("other_identity")
        if (header.shard, header.shards) != (ours.shard, ours.shards) or header.group >= len(ours.groups):
            raise BadRecord("misplaced")

    def _check_age(self, header: Header, retention: float | None = None) -> None:
        now = int(self._clock() * _US)
        if header.expires <= now or (retention is not None and header.created + retention * _US <= now):
            raise BadRecord("expired")
        if self._tombstones.covers(header.scope, header.key, header.sequence):
            raise BadRecord("purged")


class RecordWriter:
    """Writes the records of one identity. May be used from any thread."""

    def __init__(
        self,
        files: RecordFiles,
        identity: StoreIdentity,
        sealer: Sealer,
        state: StoreState,
        *,
        pace: WritePace,
        clock: Callable[[], float],
    ) -> None:
        self._files, self._identity, self._sealer, self._state = files, identity, sealer, state
        self._pace, self._clock = pace, clock

    def write(
        self, access: ScopeAccess, key: bytes, group: int, name: bytes, payload: memoryview, *, place: Place
    ) -> Header | None:
        """Write and publish a record under this name; its header, None after `stop`. Raises OSError."""
        # The number is taken first: what is purged while it is written is older than the tombstone.
        header = self._header(access, key, group, place)
        raw = header.pack()

        def parts() -> Iterator[Bytes]:
            yield raw
            for sealed in self._sealer.seal(access.data_key, access.scope, raw, header.counter, payload):
                yield sealed
                self._pace.pause()

        with self._pace.writing() as going:
            if not going:
                return None
            self._files.publish(self._files.write(parts()), name)
        return header

    def stop(self) -> None:
        """Write no more."""
        self._pace.stop()

    def _header(self, access: ScopeAccess, key: bytes, group: int, place: Place) -> Header:
        created = int(self._clock() * _US)
        position, lease_until, parent = place
        return Header(
            *self._identity.digests,
            group=group,
            shard=self._identity.shard,
            shards=self._identity.shards,
            scope=access.scope,
            key=key,
            tokens=BLOCK_TOKENS,
            position=position,
            created=created,
            expires=created + int(min(access.retention, LONGEST_RETENTION_S) * _US),
            lease_until=int(lease_until * _US),
            sequence=self._state.sequence(),
            payload=self._identity.groups[group].block_bytes,
            salt=self._sealer.salt,
            counter=self._sealer.next_counter(),
            parent=parent,
        )


class WritePace:
    """One write at a time, and after each a pause, so that writes go on for `share` of the time at most.

    `wait_for_others`: waits while others need the disk, for so many seconds at most. What they took is then theirs
    once more: where they are slow, so much less is written.
    """

    def __init__(self, share: float, wait_for_others: Callable[[float], object] | None = None) -> None:
        if not 0 < share <= 1:
            raise ValueError("write_share is above 0 and at most 1")
        self._rest = 1 / share - 1
        self._wait_for_others = wait_for_others
        self._lock = threading.Lock()
        self._not_before = self._began = 0.0
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def writing(self) -> Iterator[bool]:
        """Wait for the turn; yields whether to write, False after `stop`."""
        with self._lock:
            stopped = self._stopped.wait(max(0.0, self._not_before - time.monotonic()))
            self._began = time.monotonic()
            try:
                yield not stopped
            finally:
                now = time.monotonic()
                self._not_before = now + (now - self._began) * self._rest

    def pause(self) -> None:
        """In the middle of one's turn, with nothing on its way to the disk: let others have it for their share."""
        self._stopped.wait((time.monotonic() - self._began) * self._rest)
        if self._wait_for_others is not None:
            asked = time.monotonic()
            self._wait_for_others(MOST_YIELDED_S)
            self._stopped.wait(time.monotonic() - asked)
        self._began = time.monotonic()

    def stop(self) -> None:
        """Let nobody write any more; what is being written is written without pauses."""
        self._stopped.set()

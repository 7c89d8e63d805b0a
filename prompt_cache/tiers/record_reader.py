"""Reads a record and checks all of it: header, place, age, tombstones, seal. What fails a check is a BadRecord."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_files import NotAFile, RecordFiles
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
from prompt_cache.tiers.tombstones import Tombstones

logger = structlog.get_logger("prompt_cache.tiers")
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

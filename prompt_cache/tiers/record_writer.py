"""Writes records: header, sealed payload, fsync, name. What it wrote is whole or was never there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_files import Bytes, RecordFiles
from prompt_cache.tiers.record_format import Header
from prompt_cache.tiers.sealing import Sealer
from prompt_cache.tiers.store_state import StoreState
from prompt_cache.tiers.write_pace import WritePace

LONGEST_RETENTION_S = 7 * 86_400.0
"""No record lives longer, whatever its scope's retention: so long tombstones have to be kept."""
_US = 1_000_000
Place: TypeAlias = tuple[int, float, bytes]
"""Tokens before a block, when the last lease on it ends, in seconds since the Unix epoch, and the name of the record
before it in its prompt, if any."""


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

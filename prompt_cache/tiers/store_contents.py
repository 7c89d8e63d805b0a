"""What a store holds and may still take: index, room, counters, behind one lock that is never held over the disk."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from prompt_cache.tiers.identity import ScopeAccess
from prompt_cache.tiers.record_format import Header, disk_bytes
from prompt_cache.tiers.record_index import RecordIndex

Refusal: TypeAlias = Literal["known", "closed", "limit", "keep_free", "reserved"]
"""Why a record is not written. `known`: it is there, or being written. `keep_free`: the disk's last tenth is reached.
`reserved`: what could be evicted for it is what others have reserved, or too much at once. `limit`: it is larger than a
limit, or its scope holds too much beyond its own to be evicted at once."""
_MOST_VICTIMS = 64
_EXPIRED_ROWS = 20_000
US = 1_000_000
_LOOK_S = 0.5
_YIELD_S = 60.0


class DiskRoom:
    """Room in a folder for a store with this limit. `keep_free_share`: of the file system. Not thread-safe."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        keep_free_share: float,
        clock: Callable[[], float] = time.time,
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        if limit_bytes < 0 or not 0 <= keep_free_share < 1:
            raise ValueError("limit_bytes is at least 0, keep_free_share from 0 to below 1")
        self._folder, self._limit, self._share = folder, limit_bytes, keep_free_share
        self._clock, self._statvfs = clock, statvfs
        self._looked_at: float | None = None
        self.free = 0
        """Bytes until the share of the file system is reached that stays free; negative beyond it."""
        self._yielded, self._yielded_until = limit_bytes, 0.0

    @property
    def limit(self) -> int:
        """The most that the store may hold now."""
        return min(self._limit, self._yielded) if self._clock() < self._yielded_until else self._limit

    def look(self) -> None:
        """Ask the file system, if that was half a second ago."""
        now = self._clock()
        if self._looked_at is not None and 0 <= now - self._looked_at < _LOOK_S:
            return
        try:
            disk = self._statvfs(self._folder)
            self.free = int((disk.f_bavail - disk.f_blocks * self._share) * disk.f_frsize)
        except OSError:
            self.free = 0
        self._looked_at = now  # after that: another thread may look meanwhile, and must not take the old figure for new

    def changed(self, size: int) -> None:
        """The store has written so many bytes, or deleted them if negative."""
        self.free -= size

    def give_up(self, limit: int) -> None:
        """Hold no more than this for a minute."""
        self._yielded, self._yielded_until = max(0, limit), self._clock() + _YIELD_S


class StoreContents:
    """The records of a store, in memory. May be used from any thread; nothing waits for a disk."""

    def __init__(self, room: DiskRoom, index: RecordIndex, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the Unix epoch."""
        self._room, self._index, self._clock = room, index, clock
        self._lock = threading.Lock()
        self._writing: dict[bytes, int] = {}
        self._counters: Counter[str] = Counter()
        self._expire_from = 0
        self.closed = False

    # ------------------------------------------------------------ figures

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        if by:
            with self._lock:
                self._counters[name] += by

    @property
    def counters(self) -> Mapping[str, int]:
        """What was counted, by name."""
        with self._lock:
            return dict(self._counters)

    @property
    def usage(self) -> Mapping[str, int]:
        """Bytes by scope."""
        with self._lock:
            return self._index.usage

    @property
    def used(self) -> int:
        """Bytes of all records."""
        return self._index.used

    def __len__(self) -> int:
        return len(self._index)

    # ------------------------------------------------------------ what is there

    def knows(self, name: bytes) -> bool:
        """Whether there is such a record, expired or not."""
        return name in self._index

    def live(self, name: bytes) -> bool:
        """Whether there is such a record that has not expired."""
        return not self.closed and self._index.live(name, self._clock())  # without the lock: asked for every block

    def remember(
        self, name: bytes, header: Header, place: int, access: ScopeAccess | None, purged: Callable[[], bool]
    ) -> bool:
        """Add a record, unless `purged` says that it was purged meanwhile; whether it did. `place`: how many records
        come before it in its prompt. `access`: what its scope keeps and may hold from now on, if that is known."""
        size = disk_bytes(header.record_bytes)
        with self._lock:
            if purged():
                return False
            if name not in self._index:
                self._room.changed(size)
            self._index.add(
                name,
                header.scope,
                size,
                expires=header.expires / US,
                place=place,
                parent=header.parent,
                lease_until=header.lease_until / US,
            )
            if access is not None:
                self._index.set_share(access.scope, access.reserve, access.limit)
            return True

    def remove(self, names: Iterable[bytes]) -> None:
        """Records are gone, or will be in a moment."""
        with self._lock:
            before = self._index.used
            for name in names:
                self._index.remove(name)
            self._room.changed(self._index.used - before)

    def was_read(self, names: Iterable[bytes], size: int) -> None:
        """These records were read, of `size` bytes in all."""
        with self._lock:
            for name in names:
                self._index.touch(name)
                self._counters["reads"] += 1
            self._counters["read_bytes"] += size

    def lease(self, names: Iterable[bytes], until: float) -> None:
        """Leases on these records end at `until`, in seconds since the Unix epoch."""
        with self._lock:
            for name in names:
                self._index.lease(name, until)

    def lasting(self, scope: str, until: float) -> list[bytes]:
        """The names of a scope's records that expire after `until`."""
        with self._lock:
            return self._index.lasting(scope, until)

    def expired(self) -> list[bytes]:
        """The names of expired records among the next 20,000 rows."""
        now = self._clock()
        with self._lock:
            names, self._expire_from = self._index.expired(now, self._expire_from, _EXPIRED_ROWS)
            return names

    # ------------------------------------------------------------ room

    def reserve(self, name: bytes, access: ScopeAccess, size: int) -> tuple[Refusal | None, list[bytes]]:
        """Take room for a record of `size` bytes on disk: why there is none, and the records that are forgotten for it
        and have to be deleted, in both cases. After None the caller has to `release` it."""
        self._room.look()
        now = self._clock()
        with self._lock:
            self._index.expire(now)
            self._index.set_share(access.scope, access.reserve, access.limit)
            refusal, victims = self._room_for(name, access, size, now)
            if refusal is None:
                self._writing[name] = size
            return refusal, victims

    def release(self, name: bytes) -> None:
        """The record was written, or not."""
        with self._lock:
            del self._writing[name]

    def _room_for(self, name: bytes, access: ScopeAccess, size: int, now: float) -> tuple[Refusal | None, list[bytes]]:
        flying = size + sum(self._writing.values())
        refusal: Refusal | None = None
        if self.closed:
            refusal = "closed"
        elif name in self._writing or self._index.live(name, now):
            refusal = "known"
        elif flying > self._room.limit or (access.limit is not None and size > access.limit):
            refusal = "limit"
        elif self._room.free < flying:
            refusal = "keep_free"
        return (refusal, []) if refusal is not None else self._victims(access, size, flying)

    def _victims(self, access: ScopeAccess, size: int, flying: int) -> tuple[Refusal | None, list[bytes]]:
        """Which records go for one more of this size: the scope's own beyond its limit, then anybody's. `flying`: its
        size and those of what is being written."""
        victims = self._index.give_up_beyond_limit(access.scope, size, _MOST_VICTIMS)
        self._room.changed(-sum(victims.values()))
        if access.limit is not None and self._index.used_by(access.scope) + size > access.limit:
            return "limit", list(victims)
        excess = self._index.used + flying - self._room.limit
        if excess > self._index.spare:
            return "reserved", list(victims)
        victims |= self._give_up(excess)
        return "reserved" if self._index.used + flying > self._room.limit else None, list(victims)

    def _give_up(self, size: int) -> dict[bytes, int]:
        given_up = self._index.give_up(size, _MOST_VICTIMS)
        self._room.changed(-sum(given_up.values()))
        return given_up

    def excess(self) -> int:
        """Bytes that have to go now: beyond the limit, or in the disk's last tenth."""
        self._room.look()
        with self._lock:
            return max(self._index.used - self._room.limit, -self._room.free)

    def give_up(self, size: int) -> None:
        """Hold less by `size` bytes than now, for a minute."""
        with self._lock:
            self._room.give_up(self._index.used - size)

    def forget_worst(self, size: int) -> dict[bytes, int]:
        """Forget some records that are worth the least, and that have to be deleted. Their names and bytes: `size` in
        all or somewhat more, or 64."""
        now = self._clock()
        with self._lock:
            self._index.expire(now)
            return self._give_up(size)

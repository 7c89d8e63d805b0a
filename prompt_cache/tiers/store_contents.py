"""What a store holds and may still take: index, room, counters, behind one lock that is never held over the disk."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

from prompt_cache.tiers.disk_room import DiskRoom
from prompt_cache.tiers.eviction import EvictionPolicy, RecordFacts
from prompt_cache.tiers.identity import ScopeAccess
from prompt_cache.tiers.record_format import Header, disk_bytes
from prompt_cache.tiers.record_index import RecordIndex

Refusal: TypeAlias = Literal["known", "closed", "limit", "keep_free", "reserved"]
"""Why a record is not written. `known`: it is there, or being written. `keep_free`: the disk's last tenth is reached.
`reserved`: what could be evicted for it is what others have reserved, or too much at once."""
_MOST_VICTIMS = 64
_EXPIRED_ROWS = 20_000
US = 1_000_000


class StoreContents:
    """The records of a store, in memory. May be used from any thread; nothing waits for a disk."""

    def __init__(self, room: DiskRoom, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the Unix epoch."""
        self._room, self._policy, self._clock = room, policy, clock
        self._index = RecordIndex()
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

    def remember(self, name: bytes, header: Header, reserve: int | None, valid: Callable[[], bool]) -> bool:
        """Add a record, if `valid` says that it was not purged meanwhile; whether it did. `reserve`: bytes that its
        scope keeps from now on."""
        size, created = disk_bytes(header.record_bytes), header.created / US
        expires, lease = header.expires / US, header.lease_until / US
        facts = RecordFacts(size, header.position, header.tokens, created, created, 0, expires, lease)
        with self._lock:
            if not valid():
                return False
            if name not in self._index:
                self._room.changed(size)
            self._index.add(name, header.scope, facts, reserve)
            return True

    def remove(self, names: Iterable[bytes]) -> None:
        """Records are gone, or will be in a moment."""
        with self._lock:
            for name in names:
                facts = self._index.facts(name)
                if facts is not None:
                    self._index.remove(name)
                    self._room.changed(-facts.size)

    def was_read(self, names: Iterable[bytes], size: int) -> None:
        """These records were read, of `size` bytes in all."""
        now = self._clock()
        with self._lock:
            for name in names:
                self._index.touch(name, now)
                self._counters["reads"] += 1
            self._counters["read_bytes"] += size

    def lease(self, names: Iterable[bytes], until: float) -> None:
        """Leases on these records end at `until`, in seconds since the Unix epoch."""
        with self._lock:
            for name in names:
                self._index.lease(name, until)

    def names_of(self, scope: str, most: int) -> list[bytes]:
        """The names of up to `most` records of a scope."""
        with self._lock:
            return self._index.names_of(scope, most)

    def expired(self) -> list[bytes]:
        """The names of expired records among the next 20,000 rows."""
        now = self._clock()
        with self._lock:
            names, self._expire_from = self._index.expired(now, self._expire_from, _EXPIRED_ROWS)
            return names

    # ------------------------------------------------------------ room

    def reserve(self, name: bytes, access: ScopeAccess, size: int) -> tuple[Refusal | None, list[bytes]]:
        """Take room for a record of `size` bytes on disk: why there is none, else the records that have to go for it.
        After None the caller has to `release` it."""
        self._room.look()
        now = self._clock()
        with self._lock:
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
        return (refusal, []) if refusal is not None else self._victims(access, size, flying, now)

    def _victims(self, access: ScopeAccess, size: int, flying: int, now: float) -> tuple[Refusal | None, list[bytes]]:
        """Which records go for one more of this size: the scope's own beyond its limit, then anybody's. `flying`: its
        size and those of what is being written."""
        victims: dict[bytes, int] = {}
        own = 0 if access.limit is None else self._index.used_by(access.scope) + size - access.limit
        if own > 0:
            victims = self._index.worst(self._policy, now, own, scope=access.scope, most=_MOST_VICTIMS)
            if sum(victims.values()) < own:
                return "limit", []
        excess = self._index.used + flying - self._room.limit - sum(victims.values())
        if excess > 0:
            others = self._index.worst(self._policy, now, excess, most=_MOST_VICTIMS, but=victims)
            if sum(others.values()) < excess:
                return "reserved", []
            victims |= others
        return None, list(victims)

    def excess(self) -> int:
        """Bytes that have to go now: beyond the limit, or in the disk's last tenth."""
        self._room.look()
        with self._lock:
            return max(self._index.used - self._room.limit, -self._room.free)

    def give_up(self, size: int) -> None:
        """Hold less by `size` bytes than now, for a minute."""
        with self._lock:
            self._room.give_up(self._index.used - size)

    def worst(self, size: int) -> dict[bytes, int]:
        """Some records that are worth the least, and their bytes: `size` in all or somewhat more, or 64."""
        now = self._clock()
        with self._lock:
            return self._index.worst(self._policy, now, size, most=_MOST_VICTIMS)

"""A record store in memory, whose reads tests can hold up and spoil."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from prompt_cache.tiers.identity import ScopeAccess
from prompt_cache.tiers.record_files import Bytes
from prompt_cache.tiers.record_format import RecordFault


class MemoryStore:
    """A store in memory. `gate`: reads wait until it is open; `write_gate`: writes do."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, bytes], dict[int, bytes]] = {}
        self.before: dict[tuple[str, bytes], tuple[str, bytes] | None] = {}
        """What each block was said to follow."""
        self.gate = threading.Event()
        self.gate.set()
        self.write_gate = threading.Event()
        self.write_gate.set()
        self.reads = 0
        self.closed = False
        self.damaged: set[bytes] = set()
        self.late: set[bytes] = set()
        """What is not read before the deadline."""
        self.shortened: dict[str, float] = {}
        self.full = False
        """Whether writes are refused."""
        self.writes = 0
        self.written_before_purge = 0
        """Blocks that had been written when the last purge came."""
        self.leases: dict[tuple[str, bytes], float] = {}
        """When the lease on each block ends, as it was said last."""
        self.scanned = True
        """Else `holds` knows only what was looked for: `seen`."""
        self.seen: set[tuple[str, bytes]] = set()
        self.look_gate = threading.Event()
        self.look_gate.set()

    def holds(self, scope: str, key: bytes, groups: Sequence[int]) -> bool:
        return (scope, key) in self.records and (self.scanned or (scope, key) in self.seen)

    def look(self, blocks: Iterable[tuple[str, bytes]], groups: Sequence[int]) -> None:
        self.look_gate.wait()
        self.seen.update(blocks)

    def read(
        self,
        access: ScopeAccess,
        key: bytes,
        groups: Sequence[int],
        *,
        into: Mapping[int, memoryview],
        deadline: float,
    ) -> Mapping[int, Bytes] | RecordFault:
        self.gate.wait()
        self.reads += 1
        record = self.records.get((access.scope, key))
        if record is None:
            return "absent"
        if key in self.late:
            return "late"
        if key in self.damaged:
            self.records.pop((access.scope, key), None)
            return "unsealed"
        for group in groups:
            into[group][:] = record[group]
        return into

    def write(
        self,
        access: ScopeAccess,
        key: bytes,
        payloads: Mapping[int, memoryview],
        *,
        position: int,
        before: tuple[str, bytes] | None,
        lease_until: float,
    ) -> bool:
        self.writes += 1
        self.write_gate.wait()
        if self.full:
            return False
        self.before[access.scope, key] = before
        self.leases[access.scope, key] = lease_until
        self.records[access.scope, key] = {group: bytes(payload) for group, payload in payloads.items()}
        return True

    def lease(self, scope: str, keys: Sequence[bytes], until: float) -> None:
        self.leases |= {(scope, key): until for key in keys if (scope, key) in self.records}

    def purge(self, scope: str, keys: Sequence[bytes]) -> int:
        self.written_before_purge = len(self.before)
        return sum(self.records.pop((scope, key), None) is not None for key in keys)

    def forget(self, scope: str) -> int:
        return self.purge(scope, [key for of, key in self.records if of == scope])

    def shorten(self, scope: str, retention: float) -> int:
        self.shortened[scope] = retention
        return 0

    def give_back(self, size: int) -> int:
        return 0

    def scan(self, most: int = 1) -> bool:
        return True

    def maintain(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    counters: Mapping[str, int] = {}
    used_bytes = 0

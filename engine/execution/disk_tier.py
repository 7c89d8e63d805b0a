"""The disk tier: threads that move blocks between host memory and the record store, off the step loop.

Readers fill blocks of host memory that nobody else uses, and one writer seals blocks that nobody changes meanwhile. It
purges too, after the block that it is writing and before all that waits; until then nobody finds what is to be purged.
The store's own chores (looking through its folder, expiry) are the writer's when it has nothing to write.

A store that does not answer costs nothing but its threads: nothing more is asked of it until it does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import structlog
import torch

from engine.execution.pending_purges import PendingPurges
from engine.kv_cache.checksums import BlockChecksums
from engine.kv_cache.memory import KvMemory
from engine.scheduling.tier import Tier, Transfer
from prompt_cache.placement.fetch_or_recompute import Place, TierRate
from prompt_cache.tiers.identity import TIER
from prompt_cache.tiers.record_format import DAMAGE
from prompt_cache.tiers.record_store import RecordStore

logger = structlog.get_logger("engine.execution.disk_tier")

DISK_RATE = TierRate(fixed_s=0.0005, bytes_per_s=1e9)
"""What is believed of a disk that was not calibrated, before blocks were read from it."""
READERS = 2
FETCH_BYTES = 64 << 20
"""Bytes that are read at a time for all requests together, at least `READERS` blocks."""
SAVES = 16
"""Blocks that wait to be written."""
STUCK_S = 2.0
"""A read that takes longer says that the disk does not answer."""
READ_DEADLINE_S = 5.0
MOST_LOOKS = 64
"""Prompts that wait to be looked for."""
MOST_LEASES = 16_384
"""Leases that wait to be told to the store: more are not."""
_COUNTERS = ("reads", "read_bytes", "writes", "written_bytes", "evictions")
_IDLE_S = 0.2
_SCAN_PAUSE_S = 0.002
_MAINTAIN_S = 1.0


class DiskTier(Tier):
    """Transfers between `store`, of `most_bytes`, and the host memories of the layer groups.

    Methods are called in the engine's thread, but for `look` and `give_back`, which any thread may call. `rate`:
    what was measured of the disk.
    """

    name: Place = TIER

    def __init__(
        self,
        store: RecordStore,
        memories: Sequence[KvMemory],
        checksums: Sequence[BlockChecksums],
        most_bytes: int = 0,
        rate: TierRate = DISK_RATE,
    ) -> None:
        self.store = store
        self.rate = rate
        self.wake: Callable[[], None] = lambda: None
        self._memories = tuple(memories)
        self._checksums = tuple(checksums)
        self._groups = tuple(range(len(memories)))
        self._block_bytes = max(1, sum(memory.group.block_bytes for memory in memories))
        self._most_blocks = most_bytes // self._block_bytes
        self._most_fetches = max(READERS, FETCH_BYTES // self._block_bytes)
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._fetched: deque[tuple[Transfer, list[int]]] = deque()
        self._saved: deque[Transfer] = deque()
        self._fetching = 0
        self._saving = 0
        self._purges = PendingPurges()
        self._leases: dict[tuple[str, bytes], float] = {}
        """When leases on blocks (scope, key) end, as the store is to be told."""
        self._looks: set[Callable[[], None]] = set()
        """What is called when something was looked for, of those that wait for it."""
        self._reading_since: dict[object, float] = {}
        """What the readers are at, and since when on the monotonic clock."""
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._read_all, name=f"kv-reader-{number}", daemon=True)
            for number in range(READERS)
        ]
        self._threads.append(threading.Thread(target=self._write_all, name="kv-writer", daemon=True))
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------ the engine's side

    @property
    def fetch_room(self) -> int:
        return 0 if self._stuck else self._most_fetches - self._fetching

    @property
    def save_room(self) -> int:
        return SAVES - self._saving

    @property
    def blocks(self) -> tuple[int, int]:
        held = self.store.used_bytes // self._block_bytes
        return held, max(held, self._most_blocks)

    def holds(self, scope: str, key: bytes) -> bool:
        return self.store.holds(scope, key, self._groups) and not self._purges.cover(scope, key)

    def fetch(self, transfer: Transfer) -> None:
        self._fetching += 1
        self._reads.put(partial(self._read, transfer, time.monotonic()))

    def look(self, blocks: Callable[[], Iterable[tuple[str, bytes]]], looked: Callable[[], None]) -> bool:
        # Only until the store's folder was looked through: then `holds` knows all.
        if self.store.scanned or self._stuck or len(self._looks) >= MOST_LOOKS:
            return False
        self._looks.add(looked)
        self._reads.put(partial(self._look, blocks, looked))
        return True

    def save(self, transfer: Transfer) -> None:
        self._saving += 1
        self._writes.put(partial(self._write, transfer))

    def fetched(self) -> Sequence[Transfer]:
        if not self._fetched:
            return ()
        ended = []
        while self._fetched:
            transfer, sums = self._fetched.popleft()
            for group, total in enumerate(sums):
                self._checksums[group].enter_sum(transfer.block[group], total)
            ended.append(transfer)
        self._fetching -= len(ended)
        return ended

    def saved(self) -> Sequence[Transfer]:
        if not self._saved:
            return ()
        ended = [self._saved.popleft() for _ in range(len(self._saved))]
        self._saving -= len(ended)
        return ended

    def lease(self, scope: str, key: bytes, until: float) -> None:
        pending = self._leases.get((scope, key))
        if pending is not None or len(self._leases) < MOST_LEASES:
            self._leases[scope, key] = max(until, pending or 0.0)

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        self._purges.add(scope, keys)
        self._writes.put(self._chore)

    def forget(self, scope: str) -> None:
        self._purges.add(scope, None)
        self._writes.put(self._chore)

    def shorten(self, scope: str, retention: float) -> None:
        self._writes.put(lambda: void(self.store.shorten(scope, retention)))

    def give_back(self, size: int) -> None:
        self._writes.put(lambda: void(self.store.give_back(size)))

    def close(self, seconds: float) -> None:
        self._stopping.set()
        for _ in range(READERS):
            self._reads.put(None)
        self._writes.put(None)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self.store.close()

    @property
    def figures(self) -> Mapping[str, float]:
        counters = self.store.counters
        return {
            "bytes": self.store.used_bytes,
            **{f"{name}_total": counters.get(name, 0) for name in _COUNTERS},
            "misses_total": sum(n for name, n in counters.items() if name.startswith("miss_")),
            "refused_total": sum(n for name, n in counters.items() if name.startswith("refused_")),
        }

    @property
    def _stuck(self) -> bool:
        since = min(self._reading_since.copy().values(), default=None) if self._reading_since else None
        return since is not None and time.monotonic() - since > STUCK_S

    # ------------------------------------------------------------ threads

    def _read_all(self) -> None:
        while (task := self._reads.get()) is not None:
            if self._stopping.is_set():
                return
            self._reading_since[task] = time.monotonic()
            try:
                task()
            except Exception:
                logger.exception("the disk tier could not read")
            finally:
                del self._reading_since[task]

    def _read(self, transfer: Transfer, asked_at: float) -> None:
        sums: list[int] = []
        try:
            into = {group: self._bytes(group, transfer) for group in self._groups}
            deadline = time.monotonic() + READ_DEADLINE_S
            got = self.store.read(transfer.access, transfer.key, self._groups, into=into, deadline=deadline)
            if isinstance(got, str):
                transfer.loss = "late" if got == "late" else "corrupted" if got in DAMAGE else None
            else:
                with torch.inference_mode():
                    sums = [
                        self._checksums[group].of_host(self._memories[group].data[transfer.block[group]])
                        for group in self._groups
                    ]
                transfer.ok = True
        finally:
            transfer.took_s = time.monotonic() - asked_at
            self._fetched.append((transfer, sums))
            self.wake()

    def _look(self, blocks: Callable[[], Iterable[tuple[str, bytes]]], looked: Callable[[], None]) -> None:
        try:
            self.store.look(blocks(), self._groups)
        finally:
            self._looks.discard(looked)
            looked()

    def _write(self, transfer: Transfer) -> None:
        try:
            if transfer.cancelled:
                return
            payloads = {group: self._bytes(group, transfer) for group in self._groups}
            transfer.ok = self.store.write(
                transfer.access,
                transfer.key,
                payloads,
                position=transfer.position,
                before=transfer.before,
                lease_until=transfer.lease_until,
            )
        finally:
            self._saved.append(transfer)
            self.wake()

    def _write_all(self) -> None:
        scanned, maintained = False, 0.0
        while True:
            try:
                task = self._writes.get(timeout=_IDLE_S if scanned else _SCAN_PAUSE_S)
            except queue.Empty:
                task = self._chore
            self._tell()
            if task is None:
                return
            try:
                task()
                if not scanned:
                    scanned = self.store.scan(64)
                if time.monotonic() - maintained >= _MAINTAIN_S:
                    maintained = time.monotonic()
                    self.store.maintain()
            except Exception:
                logger.exception("the disk tier could not write")

    def _tell(self) -> None:
        """Purge, before all else: a process that dies until then has purged nothing. Then tell of leases."""
        try:
            while (purge := self._purges.first()) is not None:
                scope, keys = purge
                if keys is None:
                    self.store.forget(scope)
                else:
                    self.store.purge(scope, keys)
                self._purges.ran(scope, keys)
            while self._leases:
                (scope, key), until = self._leases.popitem()
                self.store.lease(scope, (key,), until)
        except Exception:
            logger.exception("the disk tier could not purge")

    def _chore(self) -> None:
        """Nothing is to be written."""

    def _bytes(self, group: int, transfer: Transfer) -> memoryview:
        return self._memories[group].bytes_of(transfer.block[group]).numpy().data


def void(_: object) -> None:
    """Take a result that nobody needs."""

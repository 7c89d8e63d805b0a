"""Other eviction orders for `cache_replay`, each through the same pool and leaf-first like the shipped one.

Sources: LFU and LRU as everywhere; GDSF (Cherkasova 1998) with equal sizes and costs; ARC (Megiddo and Modha, FAST
2003); S3-FIFO (Yang et al., SOSP 2023); Belady (1966), which knows the future.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from benchmarks.cache_traces import Trace
from prompt_cache.placement.eviction_order import EvictionOrder
from prompt_cache.placement.hit_density import HitDensity

Rank = tuple[float, ...]


class _Ranked(EvictionOrder):
    """Gives up the queued entry of the least rank. Ranks change only while an entry is not queued."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.rank: list[Rank] = [()] * total
        self.key: list[bytes] = [b""] * total
        self.uses = [0] * total
        self.clock = 0
        self._serials = 0
        self._queued = [0] * total
        self._heap: list[tuple[Rank, int, int]] = []

    def _inserted(self, entry: int, key: bytes, scope: str, depth: int) -> None:
        self.key[entry] = key
        self.uses[entry] = 0

    def _touched(self, entries: Sequence[int]) -> None:
        for entry in entries:
            self.uses[entry] += 1

    def _released(self, entries: Sequence[int]) -> None:
        self.clock += 1
        for entry in entries:
            self.rank[entry] = self.ranked(entry)

    def ranked(self, entry: int) -> Rank:
        """Its rank from now on."""
        return (self.clock,)

    def _queue(self, entry: int, *, first: bool) -> None:
        self._serials += 1
        self._queued[entry] = self._serials
        heapq.heappush(self._heap, (self.rank[entry], -self._serials if first else self._serials, entry))

    def _unqueue(self, entry: int) -> None:
        self._queued[entry] = 0

    def _least(self) -> int | None:
        while self._heap:
            _, serial, entry = self._heap[0]
            if self._queued[entry] == abs(serial):
                return entry
            heapq.heappop(self._heap)
        return None


class Lfu(_Ranked):
    """The least often used, and of these the least recently."""

    def ranked(self, entry: int) -> Rank:
        return (self.uses[entry], self.clock)


class Gdsf(_Ranked):
    """Uses, and what the last given up was worth: what is not used any more ages."""

    _level = 0.0

    def ranked(self, entry: int) -> Rank:
        return (self._level + self.uses[entry] + 1.0,)

    def _dropped(self, entry: int) -> None:
        self._level = max(self._level, self.rank[entry][0])


class Belady(_Ranked):
    """What is used again last, or never, goes first."""

    def __init__(self, total: int, trace: Trace) -> None:
        super().__init__(total)
        self._uses_of: dict[bytes, list[int]] = {}
        for number, prompt in enumerate((prompt for prompt in trace.prompts if prompt.blocks), 1):
            for block in prompt.blocks:
                self._uses_of.setdefault(key_of(block), []).append(number)
        for uses in self._uses_of.values():
            uses.reverse()

    def ranked(self, entry: int) -> Rank:
        uses = self._uses_of[self.key[entry]]
        while uses and uses[-1] <= self.clock:
            uses.pop()
        return (-uses[-1] if uses else float("-inf"),)


class S3Fifo(EvictionOrder):
    """A small queue for what is new, a main one for what was used again, a memory of what the small one gave up."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._key: list[bytes] = [b""] * total
        self._frequency = [0] * total
        self._main = bytearray(total)
        self._serial_of = [0] * total
        self._serials = 0
        self._sizes = [0, 0]
        self._small = max(1, total // 10)
        self._most_ghosts = total
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._queues: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._queued = bytearray(total)

    def _inserted(self, entry: int, key: bytes, scope: str, depth: int) -> None:
        self._key[entry], self._frequency[entry] = key, 0
        self._enter(entry, 1 if self._ghosts.pop(key, 0) is None else 0)

    def _enter(self, entry: int, main: int) -> None:
        self._serials += 1
        self._serial_of[entry], self._main[entry] = self._serials, main
        self._sizes[main] += 1

    def _touched(self, entries: Sequence[int]) -> None:
        for entry in entries:
            self._frequency[entry] = min(3, self._frequency[entry] + 1)

    def _dropped(self, entry: int) -> None:
        self._sizes[self._main[entry]] -= 1
        if not self._main[entry]:
            self._ghosts[self._key[entry]] = None
            if len(self._ghosts) > self._most_ghosts:
                self._ghosts.popitem(last=False)

    def _queue(self, entry: int, *, first: bool) -> None:
        self._queued[entry] = 1
        heapq.heappush(self._queues[self._main[entry]], (self._serial_of[entry], entry))

    def _unqueue(self, entry: int) -> None:
        self._queued[entry] = 0

    def _head(self, main: int) -> int | None:
        queue = self._queues[main]
        while queue:
            serial, entry = queue[0]
            if self._queued[entry] and self._serial_of[entry] == serial and self._main[entry] == main:
                return entry
            heapq.heappop(queue)
        return None

    def _least(self) -> int | None:
        while True:
            main = 0 if self._sizes[0] > self._small else 1
            entry = self._head(main)
            if entry is None:
                main = 1 - main
                entry = self._head(main)
            if entry is None or not self._frequency[entry]:
                return entry
            self._sizes[main] -= 1
            self._frequency[entry] = 0 if not main else self._frequency[entry] - 1
            self._enter(entry, 1)
            self._queue(entry, first=False)


class Arc(EvictionOrder):
    """Two lists, used once and more often, whose sizes follow what their memories of the given up say."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._total = total
        self._key: list[bytes] = [b""] * total
        self._often = bytearray(total)
        self._stamp = [0] * total
        self._clock = 0
        self._sizes = [0, 0]
        self._target = 0.0
        self._ghosts: tuple[OrderedDict[bytes, None], OrderedDict[bytes, None]] = (OrderedDict(), OrderedDict())
        self._lists: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._queued = bytearray(total)

    def _inserted(self, entry: int, key: bytes, scope: str, depth: int) -> None:
        self._key[entry] = key
        once, often = self._ghosts
        self._often[entry] = key in once or key in often
        if key in once:
            self._target = min(self._total, self._target + max(1.0, len(often) / max(1, len(once))))
            del once[key]
        elif key in often:
            self._target = max(0.0, self._target - max(1.0, len(once) / max(1, len(often))))
            del often[key]
        self._sizes[self._often[entry]] += 1

    def _touched(self, entries: Sequence[int]) -> None:
        for entry in entries:
            if not self._often[entry]:
                self._sizes[0] -= 1
                self._sizes[1] += 1
                self._often[entry] = 1

    def _released(self, entries: Sequence[int]) -> None:
        self._clock += 1
        for entry in entries:
            self._stamp[entry] = self._clock

    def _dropped(self, entry: int) -> None:
        often = self._often[entry]
        self._sizes[often] -= 1
        ghosts = self._ghosts[often]
        ghosts[self._key[entry]] = None
        if len(ghosts) > self._total - (0 if often else self._sizes[0]):
            ghosts.popitem(last=False)

    def _queue(self, entry: int, *, first: bool) -> None:
        self._queued[entry] = 1
        heapq.heappush(self._lists[self._often[entry]], (self._stamp[entry], entry))

    def _unqueue(self, entry: int) -> None:
        self._queued[entry] = 0

    def _oldest(self, often: int) -> int | None:
        waiting = self._lists[often]
        while waiting:
            stamp, entry = waiting[0]
            if self._queued[entry] and self._stamp[entry] == stamp and self._often[entry] == often:
                return entry
            heapq.heappop(waiting)
        return None

    def _least(self) -> int | None:
        often = 0 if self._sizes[0] > self._target else 1
        entry = self._oldest(often)
        return self._oldest(1 - often) if entry is None else entry


def key_of(block: int) -> bytes:
    """The key under which the pool knows a trace's block."""
    return block.to_bytes(16, "big", signed=True)


POLICIES: Mapping[str, Callable[[int, Trace], EvictionOrder]] = {
    "lru": lambda total, trace: _Ranked(total),
    "lfu": lambda total, trace: Lfu(total),
    "s3fifo": lambda total, trace: S3Fifo(total),
    "gdsf": lambda total, trace: Gdsf(total),
    "arc": lambda total, trace: Arc(total),
    "turnpike": lambda total, trace: HitDensity(total, trace.block),
    "belady": Belady,
}
"""Name -> the order for a pool of so many blocks. Belady needs the whole trace, the others do not look at it."""
ONLINE = tuple(name for name in POLICIES if name != "belady")

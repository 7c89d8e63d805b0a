"""The shipped eviction order: keep what promises the most reads for its room, by what the tier itself has seen.

Known of an entry, and decided when it comes to rest:

- how often it was read (`uses`);
- its *extension*: how many new blocks the request that used it last added to what was known. A turn of a chat adds a
  few, another document for the same instructions adds many, and the blocks before it are read again less often;
- how long ago that was.

`reuse_hazard` learns from these how likely a read is. What was given up is remembered for a while (*ghosts*, bounded),
so that the reads it would have had count as evidence, and so that it is known as read before when it comes back. Most
prompts are never read again: their blocks are worth least, so that they go first, often at once. This is the admission
control; no block is refused, as the request that computed it had the room anyway.

The worth is multiplied by what recomputing costs, if the model's cost is given: a token deep in a prompt attends to all
before it. All entries of a tier have equal bytes, so bytes do not appear. A lease alive multiplies it too: for what was
promised at the read price, a loss is ours.

Per entry the work is O(1); giving one up takes O(log n) in the number of (class, tick) pairs with entries.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from prompt_cache.placement.eviction_order import NO_PARENT, EvictionOrder
from prompt_cache.placement.reuse_hazard import BIN_OF_AGE, BINS, TICKS, ReuseHazard

_LEAST_TICK = 16
"""A tick is at least so many entries."""
_WEIGH_EVERY = 8
"""Ticks between two weighings."""
_GHOSTS_PER_ENTRY = 3
_MOST_GHOSTS = 500_000
LEASE_WEIGHT = 2.0
"""What a lease alive multiplies an entry's worth by."""
_USES = (0, 1, 2, 3, 3, 4, 4, 4, 4, *[5] * 8, *[6] * 16, 7)
"""reads -> the class's first number; more reads are not counted."""
_MOST_USES = len(_USES) - 1
_EXTENSIONS = (1536, 3584, 7680)
"""Below so many new tokens an extension is in each class but the last: the second part of a class's number."""
_DEPTHS = (0, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
"""From so many tokens before it on an entry is in each class of recompute cost."""


class _Lane:
    """The queued entries of one class and share, by the tick in which they came to rest."""

    __slots__ = ("by_tick", "share", "ticks", "weight", "which")

    def __init__(self, which: int, weight: float, share: _Share) -> None:
        self.which = which
        self.weight = weight
        self.share = share
        self.ticks: list[int] = []
        self.by_tick: dict[int, OrderedDict[int, None]] = {}


class _Share:
    """Scopes that are given room together: one with limits of its own, or all without. In entries, or in their sizes
    where they have some."""

    __slots__ = ("held", "lanes", "largest", "limit", "reserve")

    def __init__(self, reserve: int = 0, limit: int | None = None) -> None:
        self.reserve = reserve
        self.limit = limit
        self.held = 0
        self.largest = 1
        """The size of its largest entry."""
        self.lanes: dict[tuple[int, float], _Lane] = {}

    @property
    def protected(self) -> bool:
        """Whether others cannot take from it now."""
        return self.keeps(0)

    def keeps(self, taken: int) -> bool:
        """Whether others could not take from it any more once so much was taken."""
        return self.reserve > 0 and self.held - taken < self.reserve + self.largest

    def grow(self, size: int) -> None:
        """An entry of this size is one of its own now."""
        self.held += size
        self.largest = max(self.largest, size)


class _Ends:
    """A lane's ticks, from both ends: worth rises to the age at which most are read and falls after it, so that it is
    least at either end."""

    __slots__ = ("_first", "_last", "lane")

    def __init__(self, lane: _Lane) -> None:
        self.lane = lane
        self._first, self._last = 0, len(lane.ticks) - 1

    def next(self, *, youngest: bool) -> int | None:
        """The youngest or the oldest tick that was not returned yet, None if all were."""
        if self._first > self._last:
            return None
        if youngest:
            self._last -= 1
            return self.lane.ticks[self._last + 1]
        self._first += 1
        return self.lane.ticks[self._first - 1]


_Offer: TypeAlias = tuple[float, int, int, _Share, Iterator[int], Callable[[], None] | None]
"""(worth, tick, number, share, entries in their order, what offers those after them)"""


class HitDensity(EvictionOrder):
    """Gives up the entry with the least expected reads for its room.

    `total`: the tier's capacity in entries. `entry_tokens`: tokens in an entry. `attention_tokens`: how deep in a
    prompt a token costs twice the first one's computation, as attention grows with depth; None where that is unknown,
    and all tokens cost the same.

    `sizes`: what an entry counts against reserves and limits, kept by the tier; None for 1 each. Then there are no
    entries at first: a tier that counts in bytes does not know how many it will have, and calls `grow`. `total` is then
    an estimate.
    """

    def __init__(
        self,
        total: int,
        entry_tokens: int = 64,
        attention_tokens: float | None = None,
        *,
        sizes: Sequence[int] | None = None,
    ) -> None:
        entries = total if sizes is None else 0
        super().__init__(entries)
        self._sizes = sizes
        self._hazard = ReuseHazard(total, _USES[-1] + 1, len(_EXTENSIONS) + 1)
        self._tick_entries = max(_LEAST_TICK, total // TICKS)
        self._now = 0
        self._tick_at = self._tick_entries
        """After how many inserts the next tick passes."""
        self._uses = bytearray(entries)
        self._class = [0] * entries
        self._tick = [0] * entries
        self._key: list[bytes] = [b""] * entries
        self._depth: list[int] | None = None if attention_tokens is None else [0] * entries
        self._recompute = [] if attention_tokens is None else [1.0 + depth / attention_tokens for depth in _DEPTHS]
        """What recomputing costs in each class of depth, in costs of the first token."""
        self._depth_bounds = [depth // entry_tokens for depth in _DEPTHS]
        self._ghosts: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()
        """key -> (uses, class, tick) when it was given up, the oldest first."""
        self._most_ghosts = min(_GHOSTS_PER_ENTRY * total, max(total, _MOST_GHOSTS))
        self._shared = _Share()
        self._shares: dict[str, _Share] = {}
        """scope -> its own share, if it has a reserve or a limit"""
        self._share: list[_Share] = [self._shared] * entries
        self._lane: list[_Lane | None] = [None] * entries
        self._leases: dict[int, float] = {}
        self._last_lease_end = 0.0
        """entry -> when the last lease on it ends"""
        self._lease_ends: list[tuple[float, Sequence[int]]] = []
        """A heap of (end, entries); those with a later end by now are passed over."""
        self._leased = 0
        """Entries in that heap, those passed over included."""
        self._candidates: list[tuple[float, int, int, _Lane]] = []
        """A heap of (worth, tick, serial number, lane): the oldest and the youngest entries of each lane, and perhaps
        others and some that are gone."""
        self._proposals = 0
        lengths = range(-(-_EXTENSIONS[-1] // entry_tokens))
        self._extensions = [sum(length * entry_tokens >= bound for bound in _EXTENSIONS) for length in lengths]
        """new entries -> class of extension; more are in the last one."""

    def grow(self, more: int) -> None:
        """As `EvictionOrder.grow`."""
        super().grow(more)
        self._uses += bytes(more)
        self._class += [0] * more
        self._tick += [0] * more
        if self._depth is not None:
            self._depth += [0] * more
        self._key += [b""] * more
        self._share += [self._shared] * more
        self._lane += [None] * more

    @property
    def remembered(self) -> int:
        """How many entries that were given up it remembers."""
        return len(self._ghosts)

    # ------------------------------------------------------------ leases and shares

    def retain(self, entries: Sequence[int], until: float) -> None:
        """As `EvictionOrder.retain`."""
        changed = [entry for entry in entries if self._leases.get(entry, 0.0) < until]
        if changed:
            self._requeue(changed, lambda entry: self._leases.__setitem__(entry, until))
            heapq.heappush(self._lease_ends, (until, changed))
            self._leased += len(changed)
            self._last_lease_end = max(until, self._last_lease_end if len(self._leases) > len(changed) else 0.0)
        if self._leased > 4 * len(self._class) + 1000:  # many were renewed: forget the earlier ends
            self._lease_ends = sorted((end, [entry]) for entry, end in self._leases.items())
            self._leased = len(self._leases)

    @property
    def leases(self) -> tuple[int, float]:
        """As `EvictionOrder.leases`; the end may be that of an entry that was removed meanwhile."""
        return len(self._leases), self._last_lease_end if self._leases else 0.0

    def expire(self, now: float) -> None:
        """As `EvictionOrder.expire`."""
        while self._lease_ends and self._lease_ends[0][0] <= now:
            end, entries = heapq.heappop(self._lease_ends)
            self._leased -= len(entries)
            ended = [entry for entry in entries if self._leases.get(entry) == end]
            self._requeue(ended, self._leases.__delitem__)

    def set_share(self, scope: str, reserve: int, limit: int | None, entries: Sequence[int]) -> None:
        """As `EvictionOrder.set_share`."""
        own = self._shares.get(scope)
        for entry in entries if reserve > 0 else ():
            self.sole(entry)
        if reserve <= 0 and limit is None:
            self._move(entries, self._shared)
            self._shares.pop(scope, None)
        elif own is None:
            self._shares[scope] = own = _Share(reserve, limit)
            self._move(entries, own)
        else:
            own.reserve, own.limit = reserve, limit
        self._candidates = []

    def excess(self, scope: str, coming: int = 0) -> int | None:
        """As `EvictionOrder.excess`."""
        share = self._shares.get(scope)
        if share is None or share.limit is None or share.held + coming <= share.limit:
            return None
        entry = self._least_of([share])
        if entry is not None:
            self._give_up(entry, [], 1)
        return entry

    def duplicated(self, entry: int) -> None:
        """As `EvictionOrder.duplicated`, but where a scope has a reserve: what it holds there is its own."""
        if not self._share[entry].reserve:
            super().duplicated(entry)

    def _move(self, entries: Sequence[int], share: _Share) -> None:
        def move(entry: int) -> None:
            size = self._size(entry)
            self._share[entry].held -= size
            self._share[entry] = share
            share.grow(size)

        self._requeue(entries, move)

    def _size(self, entry: int) -> int:
        return 1 if self._sizes is None else self._sizes[entry]

    def _requeue(self, entries: Iterable[int], change: Callable[[int], object]) -> None:
        """Change what decides the lane of entries, queued or not."""
        for entry in entries:
            queued = self._lane[entry] is not None
            if queued:
                self._unqueue(entry)
            change(entry)
            if queued:
                self._queue(entry, first=False)

    # ------------------------------------------------------------ evidence

    def _inserted(self, entry: int, key: bytes, scope: str, depth: int) -> None:
        self._key[entry] = key
        if key in self._ghosts:
            uses, which, tick = self._ghosts.pop(key)
            self._hazard.read(which, self._now - tick)
            self._uses[entry] = min(uses + 1, _MOST_USES)
        else:
            self._uses[entry] = 0
        share = self._shared
        size = 1 if self._sizes is None else self._sizes[entry]
        if self._shares and scope in self._shares:
            share = self._shares[scope]
            protected = share.protected
            share.grow(size)
            if protected and self._candidates and not share.protected:  # others can take from it now
                for lane in share.lanes.values():
                    self._propose_ends(lane)
        else:
            share.held += size
        self._share[entry] = share
        if self._depth is not None:
            if depth < 0:
                parent = self._parent[entry]
                depth = self._depth[parent] + 1 if parent >= 0 else 0
            self._depth[entry] = depth
        if self._inserts >= self._tick_at:
            self._advance()

    def _touched(self, entries: Sequence[int]) -> None:
        resting, uses, classes, ticks = self._resting, self._uses, self._class, self._tick
        which, tick, count = -1, -1, 0
        for entry in entries:
            if resting[entry]:
                if classes[entry] != which or ticks[entry] != tick:
                    if count:
                        self._hazard.read(which, self._now - tick, count)
                    which, tick, count = classes[entry], ticks[entry], 0
                count += 1
            if uses[entry] < _MOST_USES:
                uses[entry] += 1
        if count:
            self._hazard.read(which, self._now - tick, count)

    def _released(self, entries: Sequence[int]) -> None:
        uses, classes, ticks, now = self._uses, self._class, self._tick, self._now
        added = 0
        for entry in reversed(entries):
            if uses[entry]:
                break
            added += 1
        extension = self._extensions[added] if added < len(self._extensions) else len(_EXTENSIONS)
        before, count, which = -1, 0, 0
        for entry in entries:
            if uses[entry] != before:
                if count:
                    self._hazard.enter(which, count)
                before, count = uses[entry], 0
                which = _USES[before] * (len(_EXTENSIONS) + 1) + extension
            count += 1
            classes[entry] = which
            ticks[entry] = now
        if count:
            self._hazard.enter(which, count)

    def _dropped(self, entry: int) -> None:
        # Here only for what is removed: `_give_up` does not ask.
        self._share[entry].held -= self._size(entry)
        self._leases.pop(entry, None)
        if self._resting[entry]:
            self._hazard.lose(self._class[entry], self._now - self._tick[entry])

    def _forget_ghosts(self) -> None:
        """Forget the oldest hundredth, as reads of what is forgotten cannot be seen."""
        lost: dict[tuple[int, int], int] = {}
        for _ in range(max(1, self._most_ghosts // 100)):
            _, (_, which, tick) = self._ghosts.popitem(last=False)
            lost[which, tick] = lost.get((which, tick), 0) + 1
        for (which, tick), count in lost.items():
            self._hazard.lose(which, self._now - tick, count)

    def _advance(self) -> None:
        """A tick passed: ages changed, and with them what is worth least."""
        self._tick_at = self._inserts + self._tick_entries
        self._now += 1
        self._hazard.tick()
        if self._now % _WEIGH_EVERY == 0:
            self._hazard.weigh()
        self._candidates = []

    # ------------------------------------------------------------ the queue

    def _lane_of(self, entry: int) -> _Lane:
        share, which, weight = self._share[entry], self._class[entry], self._weight(entry)
        lane = share.lanes.get((which, weight))
        if lane is None:
            lane = share.lanes[which, weight] = _Lane(which, weight, share)
        return lane

    def _weight(self, entry: int) -> float:
        weight = 1.0
        if self._depth is not None:
            weight = self._recompute[bisect_right(self._depth_bounds, self._depth[entry]) - 1]
        if self._leases and entry in self._leases:
            weight *= LEASE_WEIGHT
        return weight

    def _queue(self, entry: int, *, first: bool) -> None:
        lane = self._lane[entry] = self._lane_of(entry)
        tick = self._tick[entry]
        queue = lane.by_tick.get(tick)
        if queue is None:
            queue = lane.by_tick[tick] = OrderedDict()
            insort(lane.ticks, tick)
            if self._candidates:
                self._propose(lane, tick)
        queue[entry] = None
        if first:
            queue.move_to_end(entry, last=False)

    def _unqueue(self, entry: int) -> None:
        lane = self._lane[entry]
        assert lane is not None
        self._lane[entry] = None
        tick = self._tick[entry]
        queue = lane.by_tick[tick]
        del queue[entry]
        if not queue:
            del lane.by_tick[tick]
            del lane.ticks[bisect_left(lane.ticks, tick)]
            if self._candidates:
                self._propose_ends(lane)

    def _give_up(self, entry: int, given_up: list[int], count: int) -> None:
        """The entry, and those before it that are its like and that nothing else follows: they are worth as little."""
        self._withdraw(entry)
        parents, followers, serials = self._parent, self._followers, self._serial
        ghosts, most, classes, ticks = self._ghosts, self._most_ghosts, self._class, self._tick
        plain = not (self._shares or self._expected or self._duplicates or self._leases or self._depth)
        while True:
            self._share[entry].held -= 1 if self._sizes is None else self._sizes[entry]
            which, tick = classes[entry], ticks[entry]
            ghosts[self._key[entry]] = (self._uses[entry], which, tick)
            if len(ghosts) > most:
                self._forget_ghosts()
            given_up.append(entry)
            parent = parents[entry]
            if (
                parent < 0
                or followers[parent] != 1
                or self._parent_serial[entry] != serials[parent]
                or len(given_up) >= count
                or not self._resting[parent]
                or classes[parent] != which
                or ticks[parent] != tick
                or not (plain or self._alike(entry, parent))
            ):
                self._leases.pop(entry, None)
                self._forget(entry)
                return
            # As `_forget` and `_queue`, and then `_withdraw`, of the parent.
            self._resting[entry] = 0
            serials[entry] = 0
            parents[entry] = NO_PARENT
            followers[parent] = 0
            if not plain:
                self._leases.pop(entry, None)
                self._expected.pop(entry, None)
                self._duplicates.pop(entry, None)
            entry = parent

    def coming(self, count: int) -> list[int]:
        """As `EvictionOrder.coming`: what `victims` would do, without doing it. O(log n) an entry."""
        found = dict.fromkeys(itertools.islice(self._offered_duplicates, count))
        if len(found) < count == 1:
            entry = self._least()
            return [] if entry is None else [entry]
        parents, serials, followers, expected = self._parent, self._serial, self._followers, self._expected
        left: dict[int, int] = {}
        """entry -> how many entries that follow it are not found"""
        taken: dict[_Share, int] = {}
        number = itertools.count()
        heap: list[_Offer] = []

        def offer(ends: _Ends, *, youngest: bool) -> None:
            tick, lane = ends.next(youngest=youngest), ends.lane
            if tick is not None:
                further = partial(offer, ends, youngest=youngest)
                worth, entries = self._worth(lane, tick), iter(lane.by_tick[tick])
                offered: _Offer = (worth, tick, next(number), lane.share, entries, further)
                heapq.heappush(heap, offered)

        for share in (self._shared, *self._shares.values()):
            for lane in share.lanes.values():
                ends = _Ends(lane)
                offer(ends, youngest=False)
                offer(ends, youngest=True)
        while heap and len(found) < count:
            _, tick, _, share, entries, further = heap[0]
            kept = share.keeps(taken.get(share, 0))
            entry = None if kept else next(entries, None)
            if entry is None:
                heapq.heappop(heap)
                if not kept and further is not None:
                    further()
                continue
            which, weight = self._class[entry], self._weight(entry)
            while True:
                found[entry] = None
                taken[share] = taken.get(share, 0) + self._size(entry)
                parent = parents[entry]
                if parent < 0 or self._parent_serial[entry] != serials[parent] or len(found) >= count:
                    break
                left[parent] = left.get(parent, followers[parent]) - 1
                if left[parent] or not self._resting[parent] or parent in expected or parent in self._duplicates:
                    break
                alike = self._class[parent] == which and self._tick[parent] == tick and self._weight(parent) == weight
                if not alike or self._share[parent] is not share or share.keeps(taken[share]):
                    tick = self._tick[parent]
                    worth = self._worth_at(self._class[parent], self._weight(parent), tick)
                    heapq.heappush(heap, (worth, tick, next(number), self._share[parent], iter((parent,)), None))
                    break
                entry = parent
        return list(found)

    def _alike(self, entry: int, parent: int) -> bool:
        """Whether these, of one class and tick, are in the same lane, and nobody waits for them."""
        return (
            self._share[entry] is self._share[parent]
            and not self._share[parent].protected
            and (not self._expected or (entry not in self._expected and parent not in self._expected))
            and (not self._duplicates or (entry not in self._duplicates and parent not in self._duplicates))
            and (not self._leases or (entry in self._leases) == (parent in self._leases))
            and (self._depth is None or self._weight(entry) == self._weight(parent))
        )

    def _propose_ends(self, lane: _Lane) -> None:
        """Worth rises to the age at which most are read and falls after it, so that it is least at either end."""
        if lane.ticks:
            self._propose(lane, lane.ticks[0])
            if len(lane.ticks) > 1:
                self._propose(lane, lane.ticks[-1])

    def _propose(self, lane: _Lane, tick: int) -> None:
        self._proposals += 1
        heapq.heappush(self._candidates, (self._worth(lane, tick), tick, self._proposals, lane))

    def _worth(self, lane: _Lane, tick: int) -> float:
        return self._worth_at(lane.which, lane.weight, tick)

    def _worth_at(self, which: int, weight: float, tick: int) -> float:
        age = self._now - tick
        return weight * self._hazard.worth[which][BIN_OF_AGE[age] if age < len(BIN_OF_AGE) else BINS]

    def _least(self) -> int | None:
        for built in (bool(self._candidates), True):
            if not built:
                self._propose_all()
            while self._candidates:
                _, tick, _, lane = self._candidates[0]
                queue = lane.by_tick.get(tick)
                if queue is not None and not lane.share.protected:
                    return next(iter(queue))
                heapq.heappop(self._candidates)
        return None

    def _propose_all(self) -> None:
        for share in (self._shared, *self._shares.values()):
            if not share.protected:
                for lane in share.lanes.values():
                    self._propose_ends(lane)

    def _last_resort(self) -> int | None:
        """An entry of a reserve: what is running cannot wait, but what is cached can be computed again."""
        return self._least_of(self._shares.values())

    def _least_of_scope(self, scope: str) -> int | None:
        share = self._shares.get(scope)
        return None if share is None else self._least_of([share])

    def _least_of(self, shares: Iterable[_Share]) -> int | None:
        """The entry worth least in these shares."""
        ends = [
            (self._worth(lane, tick), tick, number, lane)
            for share in shares
            for number, lane in enumerate(share.lanes.values())
            for tick in lane.ticks[:1] + lane.ticks[-1:]
        ]
        if not ends:
            return None
        _, tick, _, lane = min(ends, key=lambda end: end[:3])
        return next(iter(lane.by_tick[tick]))

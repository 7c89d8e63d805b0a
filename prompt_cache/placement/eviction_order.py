"""In which order a tier gives up what it holds: what pools and stores ask, and the rule that every order keeps: the end
of a prefix goes before its beginning.

An *entry* is a small whole number that the tier chose for a block or a record, below its capacity. An entry is *in use*
or *resting*; only resting ones are given up. Its *parent* is the entry of the block before it. As an entry is never
given up before those that follow it, what is held stays closed under prefixes: nothing is held that cannot be found.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

NO_PARENT = -1


class EvictionOrder:
    """Knows which entries may be given up: resting ones that no held entry follows. A subclass orders these.

    Duplicates are given up first, entries that a waiting request will read last; among either, the one that could be
    given up for the longest time goes first. Sequences of entries go from the front of a prompt to its end.
    """

    def __init__(self, entries: int) -> None:
        self._parent = [NO_PARENT] * entries
        self._followers = [0] * entries
        """How many held entries have this one as their parent."""
        self._inserts = 0
        self._serial = array("Q", [0]) * entries
        """The insertion index: an entry that was removed and used again is another parent."""
        self._parent_serial = array("Q", [0]) * entries
        self._resting = bytearray(entries)
        self._expected: dict[int, None] = {}
        self._awaited: OrderedDict[int, None] = OrderedDict()
        """Expected entries that could be given up."""
        self._duplicates: dict[int, None] = {}
        self._offered_duplicates: OrderedDict[int, None] = OrderedDict()
        """Those that could be given up."""

    # ------------------------------------------------------------ what the subclass says

    def _inserted(self, entry: int, key: bytes, scope: str, depth: int) -> None:
        """An entry was inserted; its parent is known."""

    def _touched(self, entries: Sequence[int]) -> None:
        """Entries are about to be in use."""

    def _released(self, entries: Sequence[int]) -> None:
        """Entries are about to rest."""

    def _dropped(self, entry: int) -> None:
        """An entry is about to be no longer held: given up, or removed."""

    @abstractmethod
    def _queue(self, entry: int, *, first: bool) -> None:
        """This may be given up from now on. `first`: what followed it was just given up, so that it is as old."""

    @abstractmethod
    def _unqueue(self, entry: int) -> None:
        """This may no longer be given up."""

    @abstractmethod
    def _least(self) -> int | None:
        """The queued entry of the least value, None if none is queued or all that are should be kept longer."""

    def _last_resort(self) -> int | None:
        """A queued entry that should be kept, for when there is nothing else."""
        return None

    def _least_of_scope(self, scope: str) -> int | None:
        """The queued entry of the least value in the scope's own share, None if it has no share."""
        return None

    def grow(self, more: int) -> None:
        """From now on there are so many more entries."""
        self._parent += [NO_PARENT] * more
        self._followers += [0] * more
        for serials in (self._serial, self._parent_serial):
            serials.extend(array("Q", [0]) * more)
        self._resting += bytes(more)

    # ------------------------------------------------------------ the interface

    def insert(self, entry: int, parent: int, key: bytes, scope: str, depth: int = -1) -> None:
        """The entry now holds the block with this key. It is in use. `parent`: an entry, or `NO_PARENT`. `depth`: how
        many entries lie before it in the prompt; -1 for one more than its parent's."""
        self._inserts += 1
        self._serial[entry] = self._inserts
        self._followers[entry] = 0
        self._parent[entry] = parent
        if parent >= 0:
            self._parent_serial[entry] = self._serial[parent]
            if not self._followers[parent] and self._resting[parent]:
                self._withdraw(parent)
            self._followers[parent] += 1
        self._inserted(entry, key, scope, depth)

    def link(self, entry: int, parent: int) -> None:
        """The block before this entry, which was not held when it was inserted, is now: `parent`."""
        self._parent[entry], self._parent_serial[entry] = parent, self._serial[parent]
        if self._resting[parent] and not self._followers[parent]:
            self._withdraw(parent)
        self._followers[parent] += 1

    def touch(self, entries: Sequence[int]) -> None:
        """A request reads these: they are in use from now on."""
        self._touched(entries)
        resting, followers = self._resting, self._followers
        for entry in entries:
            if resting[entry]:
                if not followers[entry]:
                    self._withdraw(entry)
                resting[entry] = 0

    def release(self, entries: Sequence[int]) -> None:
        """Nobody uses these any more."""
        self._released(entries)
        resting, followers = self._resting, self._followers
        for entry in reversed(entries):
            resting[entry] = 1
            if not followers[entry]:
                self._offer(entry)

    def remove(self, entry: int) -> None:
        """The tier no longer holds this (purged): it is nobody's parent any more."""
        if self._resting[entry] and not self._followers[entry]:
            self._withdraw(entry)
        self._dropped(entry)
        self._forget(entry)

    def victims(self, count: int) -> list[int]:
        """Give up so many entries, those of the least value, and return them in that order; fewer if the others are in
        use."""
        return self._victims(count, lambda: next(iter(self._awaited)) if self._awaited else self._last_resort())

    def spare_victims(self, count: int, scope: str) -> list[int]:
        """The same for what this scope can do without: none that a waiting request will read, and none that would be
        taken from another scope's reserve."""
        return self._victims(count, lambda: self._least_of_scope(scope))

    def _victims(self, count: int, otherwise: Callable[[], int | None]) -> list[int]:
        """`otherwise`: says which one goes when nothing is left that is worth least and nobody's reserve."""
        given_up: list[int] = []
        while len(given_up) < count:
            entry = next(iter(self._offered_duplicates)) if self._offered_duplicates else self._least()
            if entry is None:
                entry = otherwise()
            if entry is None:
                break
            self._give_up(entry, given_up, count)
        return given_up

    def coming(self, count: int) -> list[int]:
        """The entries that `victims` would give up now, in about that order, at most so many. They are kept.

        None that a waiting request will read, and none that would be taken from a reserve. May be fewer than there are.
        Without a subclass's say the first one alone.
        """
        entry = next(iter(self._offered_duplicates)) if self._offered_duplicates else self._least()
        return [] if entry is None else [entry][:count]

    def expect(self, entry: int) -> None:
        """A waiting request will read this: give it up after all others."""
        self._mark(entry, self._expected, marked=True)

    def dismiss(self, entry: int) -> None:
        """Nobody waits for this any more."""
        self._mark(entry, self._expected, marked=False)

    def duplicated(self, entry: int) -> None:
        """A nearer tier has this too, and will not give it up soon: give it up before all others."""
        self._mark(entry, self._duplicates, marked=True)

    def sole(self, entry: int) -> None:
        """No nearer tier has this, or not for long: it counts as any other."""
        self._mark(entry, self._duplicates, marked=False)

    def retain(self, entries: Sequence[int], until: float) -> None:
        """A lease on these lasts until then, in the seconds that `expire` is told."""

    @property
    def leases(self) -> tuple[int, float]:
        """How many entries are under a lease that has not ended, and when the last of these leases ends."""
        return 0, 0.0

    def expire(self, now: float) -> None:
        """It is `now`: leases that ended before no longer count."""

    def set_share(self, scope: str, reserve: int, limit: int | None, entries: Sequence[int]) -> None:
        """From now on others do not take the last `reserve` entries of the scope, which holds at most `limit`.

        `entries`: what it holds now, in use or not.
        """

    def excess(self, scope: str, coming: int = 0) -> int | None:
        """Give up an entry of a scope that holds more than its limit, or will with what is `coming`, and return it.
        None if it does not, or if all of them are in use."""
        return None

    # ------------------------------------------------------------ inside

    def _mark(self, entry: int, marks: dict[int, None], *, marked: bool) -> None:
        """Change what decides when an entry's turn comes."""
        if (entry in marks) == marked:
            return
        queued = self._resting[entry] and not self._followers[entry]
        if queued:
            self._withdraw(entry)
        if marked:
            marks[entry] = None
        else:
            del marks[entry]
        if queued:
            self._offer(entry)

    def _give_up(self, entry: int, given_up: list[int], count: int) -> None:
        """Give up one entry, and perhaps those before it that are worth as little, until there are `count`."""
        self._withdraw(entry)
        self._dropped(entry)
        self._forget(entry)
        given_up.append(entry)

    def _offer(self, entry: int, *, first: bool = False) -> None:
        if entry in self._expected:
            self._awaited[entry] = None
        elif entry in self._duplicates:
            self._offered_duplicates[entry] = None
        else:
            self._queue(entry, first=first)

    def _withdraw(self, entry: int) -> None:
        if entry in self._expected:
            del self._awaited[entry]
        elif entry in self._duplicates:
            del self._offered_duplicates[entry]
        else:
            self._unqueue(entry)

    def _forget(self, entry: int) -> None:
        """The entry is held no longer; its parent may be next."""
        self._resting[entry] = 0
        self._expected.pop(entry, None)
        self._duplicates.pop(entry, None)
        parent = self._parent[entry]
        self._parent[entry] = NO_PARENT
        self._serial[entry] = 0
        if parent >= 0 and self._parent_serial[entry] == self._serial[parent]:
            self._followers[parent] -= 1
            if not self._followers[parent] and self._resting[parent]:
                self._offer(parent, first=True)

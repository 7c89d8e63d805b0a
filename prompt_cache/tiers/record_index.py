"""What a store knows of its records in memory: columns of numbers, so that a million of them fit; docs/cache-on-disk.md
says how many bytes each takes. And which of them go when there is no room: the placement of the other tiers decides.

A record is an entry of the eviction order. A prompt's records are a chain, block after block and in a block group after
group, so that its end goes before its beginning, and at most one block of it is incomplete. The records of the prompt
that is being written are its *run*. They come to rest together, so that the order learns how many there are, and count
against every bound meanwhile; they are given up only when nothing else can be.

Not thread-safe: its store locks.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from prompt_cache.placement.eviction_order import NO_PARENT
from prompt_cache.placement.hit_density import HitDensity

_LEAST_ROWS, _PART = 256, 8
"""So many rows are added at a time, or this part of those that there are."""


class _Scope:
    """A scope's rows, in no order, and what they hold. `reserve`, `limit`: bytes."""

    __slots__ = ("limit", "name", "reserve", "rows", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = array("I")
        self.used = 0
        self.reserve = 0
        self.limit: int | None = None


class RecordIndex:
    """Name → row of facts; scope → rows and bytes; the order in which rows are given up.

    `total`: about how many records there is room for. `entry_tokens`: tokens of one. `attention_tokens`: as
    `HitDensity`'s.
    """

    def __init__(self, total: int, entry_tokens: int = 64, attention_tokens: float | None = None) -> None:
        self._rows: dict[bytes, int] = {}
        self._names: list[bytes | None] = []
        self._free: list[int] = []
        self._scopes: dict[str, _Scope] = {}
        self._reserved: dict[str, _Scope] = {}
        """Those with a reserve."""
        self._scope_of: list[_Scope | None] = []
        self._slots, self._places = array("I"), array("I")
        """A row's place among its scope's, and the record's in its prompt."""
        self._sizes = array("I")
        self._expires = array("d")
        self._order = HitDensity(total, entry_tokens, attention_tokens, sizes=self._sizes)
        self._run: dict[int, None] = {}
        """The rows of the prompt that is being written, in order: they come to rest together."""
        self._orphans: dict[bytes, set[int]] = {}
        """name -> the rows that follow the record of this name, which is not here"""
        self._lacking: dict[int, bytes] = {}
        """row -> the name that it waits for"""
        self.used = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: bytes) -> bool:
        return name in self._rows

    @property
    def usage(self) -> Mapping[str, int]:
        """Bytes by scope."""
        return {name: scope.used for name, scope in self._scopes.items() if scope.used}

    def used_by(self, scope: str) -> int:
        """The bytes of a scope."""
        known = self._scopes.get(scope)
        return 0 if known is None else known.used

    @property
    def spare(self) -> int:
        """Bytes that nobody has reserved."""
        return self.used - sum(min(scope.used, scope.reserve) for scope in self._reserved.values())

    def live(self, name: bytes, now: float) -> bool:
        """Whether there is such a record that has not expired."""
        row = self._rows.get(name)
        return row is not None and self._expires[row] > now

    # ------------------------------------------------------------ in and out

    def add(
        self,
        name: bytes,
        scope: str,
        size: int,
        *,
        expires: float,
        place: int = 0,
        parent: bytes = b"",
        lease_until: float = 0.0,
    ) -> None:
        """Add a record, or replace what is known of it. `expires`, `lease_until`: seconds since the Unix epoch.
        `place`: how many records come before it in its prompt; `parent`: the name of the last of these, if any."""
        self.remove(name)
        row = self._free.pop() if self._free else self._new_row()
        known = self._scopes.get(scope)
        if known is None:
            known = self._scopes[scope] = _Scope(scope)
        self._rows[name], self._names[row], self._scope_of[row] = row, name, known
        self._slots[row] = len(known.rows)
        known.rows.append(row)
        known.used += size
        self.used += size
        self._sizes[row], self._places[row], self._expires[row] = size, place, expires
        before = self._before(row, parent)
        if before not in self._run or before != next(reversed(self._run)):
            self._settle()
        self._order.insert(row, before, name, scope, place)
        self._run[row] = None
        for follower in self._orphans.pop(name, ()):
            del self._lacking[follower]
            if self._places[follower] > place:
                self._order.link(follower, row)
        self.lease(name, lease_until)

    def _new_row(self) -> int:
        first = len(self._names)
        more = max(_LEAST_ROWS, first // _PART)
        self._names += [None] * more
        self._scope_of += [None] * more
        for numbers in (self._slots, self._places, self._sizes, self._expires):
            numbers.frombytes(bytes(more * numbers.itemsize))
        self._order.grow(more)
        self._free = list(range(first + more - 1, first, -1))
        return first

    def _before(self, row: int, parent: bytes) -> int:
        """The row of the record before this one. What a header says was not unsealed: no circle may come of it."""
        before = self._rows.get(parent, NO_PARENT) if parent else NO_PARENT
        if before < 0 and parent:
            self._orphans.setdefault(parent, set()).add(row)
            self._lacking[row] = parent
        return before if before < 0 or self._places[before] < self._places[row] else NO_PARENT

    def remove(self, name: bytes) -> bool:
        """Forget a record; whether it was known."""
        row = self._rows.get(name)
        if row is None:
            return False
        if row in self._run:
            self._settle()
        self._order.remove(row)
        self._drop(row)
        return True

    def _drop(self, row: int) -> tuple[bytes, int]:
        """Forget a row that the order has forgotten; its name and size."""
        name, scope, size = self._names[row], self._scope_of[row], self._sizes[row]
        assert name is not None
        assert scope is not None
        del self._rows[name]
        slot, last = self._slots[row], scope.rows.pop()
        if last != row:
            scope.rows[slot] = last
            self._slots[last] = slot
        scope.used -= size
        self.used -= size
        self._names[row] = self._scope_of[row] = None
        self._free.append(row)
        if (parent := self._lacking.pop(row, None)) is not None:
            followers = self._orphans[parent]
            followers.discard(row)
            if not followers:
                del self._orphans[parent]
        if not scope.rows:
            self._set_share(scope, 0, None)
            del self._scopes[scope.name]
        return name, size

    # ------------------------------------------------------------ what the order is told

    def touch(self, name: bytes) -> None:
        """A record was read."""
        row = self._rows.get(name)
        if row is not None:
            if row in self._run:
                self._settle()
            self._order.touch((row,))
            self._order.release((row,))

    def lease(self, name: bytes, until: float) -> None:
        """A lease on a record ends at `until`, in seconds since the Unix epoch."""
        row = self._rows.get(name)
        if row is not None and until > 0:
            self._order.retain((row,), until)

    def expire(self, now: float) -> None:
        """It is `now`: leases that have ended no longer count."""
        self._order.expire(now)

    def set_share(self, scope: str, reserve: int, limit: int | None) -> None:
        """From now on others do not take the last `reserve` bytes of a scope, which holds at most `limit`. A scope
        without records is nobody's."""
        known = self._scopes.get(scope)
        if known is not None and (known.reserve, known.limit) != (reserve, limit):
            self._set_share(known, reserve, limit)

    def _set_share(self, scope: _Scope, reserve: int, limit: int | None) -> None:
        if (scope.reserve, scope.limit) != (reserve, limit):
            scope.reserve, scope.limit = reserve, limit
            self._order.set_share(scope.name, reserve, limit, scope.rows)
        if reserve > 0:
            self._reserved[scope.name] = scope
        else:
            self._reserved.pop(scope.name, None)

    def _settle(self) -> None:
        """The prompt that was being written is whole, or as whole as it gets."""
        if self._run:
            self._order.release(list(self._run))
            self._run.clear()

    # ------------------------------------------------------------ groups of records

    def lasting(self, scope: str, until: float) -> list[bytes]:
        """The names of a scope's records that expire after `until`."""
        known = self._scopes.get(scope)
        rows = () if known is None else (row for row in known.rows if self._expires[row] > until)
        return [name for row in rows if (name := self._names[row]) is not None]

    def expired(self, now: float, first: int, most: int) -> tuple[list[bytes], int]:
        """The names of expired records among `most` rows from row `first` on, and the row where to go on."""
        until = min(first + most, len(self._names))
        names = [
            name for row in range(first, until) if (name := self._names[row]) is not None and self._expires[row] <= now
        ]
        return names, 0 if until == len(self._names) else until

    def give_up(self, size: int, most: int) -> dict[bytes, int]:
        """Forget the records that are worth the least, `size` bytes or somewhat more, `most` of them at most, none
        within its scope's reserve. Their names and sizes."""
        given_up: dict[bytes, int] = {}
        while size > 0 and len(given_up) < most:
            if rows := self._order.spare_victims(1, ""):
                name, held = self._drop(rows[0])
                given_up[name] = held
                size -= held
            elif self._run:
                self._settle()
            else:
                break
        return given_up

    def give_up_beyond_limit(self, scope: str, coming: int, most: int) -> dict[bytes, int]:
        """The same of one scope, until it has room for so many bytes more within its limit."""
        given_up: dict[bytes, int] = {}
        while len(given_up) < most and self._is_beyond_limit(scope, coming):
            if (row := self._order.excess(scope, coming)) is not None:
                name, held = self._drop(row)
                given_up[name] = held
            elif self._run:
                self._settle()
            else:
                break
        return given_up

    def _is_beyond_limit(self, scope: str, coming: int) -> bool:
        known = self._scopes.get(scope)
        return known is not None and known.limit is not None and known.used + coming > known.limit

"""What a store knows of its records in memory: columns of numbers, so that a million of them fit (~200 bytes each).

Not thread-safe: its store locks.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate

from prompt_cache.tiers.eviction import EvictionPolicy, RecordFacts

_SAMPLE, _TAKEN = 48, 6
"""So many records are drawn, and the worst of them evicted."""
_FRUITLESS = 8
"""After so many samples without a record that may go, what is left is what scopes have reserved."""


class _Scope:
    """A scope's rows, in no order, and what they hold."""

    __slots__ = ("name", "reserve", "rows", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = array("I")
        self.used = 0
        self.reserve = 0


class RecordIndex:
    """Name → row of facts; scope → rows and bytes."""

    def __init__(self, random_numbers: random.Random | None = None) -> None:
        self._random = random_numbers or random.Random()  # noqa: S311 - draws samples, no secrets
        self._rows: dict[bytes, int] = {}
        self._names: list[bytes | None] = []
        self._free: list[int] = []
        self._scopes: dict[str, _Scope] = {}
        self._scope_of: list[_Scope | None] = []
        self._slots, self._sizes, self._positions, self._tokens, self._uses = (array("I") for _ in range(5))
        self._created, self._last_used, self._expires, self._leases = (array("d") for _ in range(4))
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

    def live(self, name: bytes, now: float) -> bool:
        """Whether there is such a record that has not expired."""
        row = self._rows.get(name)
        return row is not None and self._expires[row] > now

    # ------------------------------------------------------------ in and out

    def add(self, name: bytes, scope: str, facts: RecordFacts, reserve: int | None = None) -> None:
        """Add a record, or replace what is known of it. `reserve`: what the scope keeps from now on."""
        self.remove(name)
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._names)
            self._names.append(None)
            self._scope_of.append(None)
            for column in (self._slots, self._sizes, self._positions, self._tokens, self._uses):
                column.append(0)
            for times in (self._created, self._last_used, self._expires, self._leases):
                times.append(0.0)
        known = self._scopes.get(scope)
        if known is None:
            known = self._scopes[scope] = _Scope(scope)
        if reserve is not None:
            known.reserve = reserve
        self._rows[name], self._names[row], self._scope_of[row] = row, name, known
        self._slots[row] = len(known.rows)
        known.rows.append(row)
        known.used += facts.size
        self.used += facts.size
        self._sizes[row], self._positions[row], self._tokens[row] = facts.size, facts.position, facts.tokens
        self._uses[row], self._created[row], self._last_used[row] = facts.uses, facts.created, facts.last_used
        self._expires[row], self._leases[row] = facts.expires, facts.lease_until

    def remove(self, name: bytes) -> bool:
        """Forget a record; whether it was known."""
        row = self._rows.pop(name, None)
        if row is None:
            return False
        known, size = self._scope_of[row], self._sizes[row]
        assert known is not None
        slot, last = self._slots[row], known.rows.pop()
        if last != row:
            known.rows[slot] = last
            self._slots[last] = slot
        known.used -= size
        self.used -= size
        self._names[row] = self._scope_of[row] = None
        self._free.append(row)
        if not known.rows:
            del self._scopes[known.name]
        return True

    def touch(self, name: bytes, now: float) -> None:
        """A record was read."""
        row = self._rows.get(name)
        if row is not None:
            self._uses[row] = min(self._uses[row] + 1, 1 << 31)
            self._last_used[row] = now

    def lease(self, name: bytes, until: float) -> None:
        """A lease on a record ends at `until`."""
        row = self._rows.get(name)
        if row is not None:
            self._leases[row] = max(self._leases[row], until)

    def facts(self, name: bytes) -> RecordFacts | None:
        """What is known of a record."""
        row = self._rows.get(name)
        return None if row is None else self._facts(row)

    # ------------------------------------------------------------ groups of records

    def names_of(self, scope: str, most: int) -> list[bytes]:
        """The names of up to `most` records of a scope."""
        known = self._scopes.get(scope)
        return [] if known is None else [name for row in known.rows[:most] if (name := self._names[row]) is not None]

    def expired(self, now: float, first: int, most: int) -> tuple[list[bytes], int]:
        """The names of expired records among `most` rows from row `first` on, and the row where to go on."""
        until = min(first + most, len(self._names))
        names = [
            name for row in range(first, until) if (name := self._names[row]) is not None and self._expires[row] <= now
        ]
        return names, 0 if until == len(self._names) else until

    def worst(
        self,
        policy: EvictionPolicy,
        now: float,
        size: int,
        *,
        scope: str | None = None,
        most: int = 64,
        but: Collection[bytes] = (),
    ) -> dict[bytes, int]:
        """The names and sizes of up to `most` records that are worth the least, until they are `size` bytes in all; of
        one scope, or of those that hold more than their reserve; none of `but`.

        They are the worst of samples, so the time does not depend on how many there are, nor on the policy's idea.
        """
        chosen: dict[bytes, int] = {}
        gone: Counter[str] = Counter()
        for rows in self._samples(scope, gone) if size > 0 else ():
            rows.sort(key=lambda row: policy.value(self._facts(row), now))
            before = len(chosen)
            for row in rows:
                known, name, held = self._scope_of[row], self._names[row], self._sizes[row]
                assert known is not None
                assert name is not None
                kept = scope is None and known.used - gone[known.name] - held < known.reserve
                if kept or name in chosen or name in but:
                    continue
                chosen[name] = held
                gone[known.name] += held
                size -= held
                if size <= 0 or len(chosen) >= most:
                    return chosen
                if len(chosen) - before >= _TAKEN:
                    break
        return chosen

    def _samples(self, scope: str | None, gone: Mapping[str, int]) -> Iterator[list[int]]:
        """Rows drawn at random from the scopes that hold more than their reserve, by how much more; the same row may
        come more than once. `gone`: the bytes of each scope that are chosen. Ends when nothing is chosen for long."""
        drawn, fruitless = self._random.randrange, 0
        while fruitless < _FRUITLESS:
            before = sum(gone.values())
            if scope is None:
                scopes = list(self._scopes.values())
                weights = [max(0, one.used - gone.get(one.name, 0) - one.reserve) for one in scopes]
            else:
                scopes = [one] if (one := self._scopes.get(scope)) is not None else []
                weights = [one.used - gone.get(one.name, 0) for one in scopes]
            sums = list(accumulate(weights))
            if not sums or not sums[-1]:
                return
            rows = set()
            for _ in range(_SAMPLE):
                of = scopes[bisect(sums, drawn(sums[-1]))].rows
                rows.add(of[drawn(len(of))])
            yield list(rows)
            fruitless = 0 if sum(gone.values()) > before else fruitless + 1

    # ------------------------------------------------------------ inside

    def _facts(self, row: int) -> RecordFacts:
        return RecordFacts(
            self._sizes[row],
            self._positions[row],
            self._tokens[row],
            self._created[row],
            self._last_used[row],
            self._uses[row],
            self._expires[row],
            self._leases[row],
        )

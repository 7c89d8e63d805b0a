"""The prefixes that a gateway believes a replica to hold: those of requests that were sent there, by it or by others.

A prefix has a name for each of some of its positions (`gateway.fleet.prefix_names`). The map forgets names in the order
of their last use, as far as the replica has room for; names under a live lease last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from protocol.replicas import TIERS, Tier

Name: TypeAlias = Hashable
_LEAST_ROOM, _LESS, _MORE = 0.1, 0.97, 1.002
"""The part of the replica's room that is believed in: at least, after a miss, and after a prefix that was there."""
_SHORT = 0.75
"""A replica that read less than this part of what it was believed to hold has missed."""


@dataclass(slots=True)
class _Entry:
    tokens: int
    stored: int
    """How many tokens the map had stored when it was used last."""
    until: float
    """When the last lease on it ends, by the clock of leases; 0 for none."""


class PrefixMap:
    """One replica's prefixes. `room`: tokens of KV by tier, the nearest first."""

    def __init__(self, room: Mapping[Tier, int]) -> None:
        self.room = room
        self._entries: OrderedDict[Name, _Entry] = OrderedDict()
        self._tokens = self._stored = 0
        self._trust = 1.0

    def __len__(self) -> int:
        return len(self._entries)

    def find_held(self, names: Sequence[Name]) -> int:
        """How many of a prompt's first names are held. A name is held only where those before it are."""
        entries = self._entries
        if not names or names[0] not in entries:
            return 0
        low, high = 1, len(names)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if names[middle - 1] in entries else (low, middle - 1)
        return low

    def tier_of(self, name: Name) -> Tier:
        """Where a held prefix probably lies: the longer ago its last use, the farther away."""
        age, room = self._stored - self._entries[name].stored, 0.0
        tiers = [tier for tier in TIERS if self.room.get(tier)] or [TIERS[0]]
        for tier in tiers:
            room += self.room.get(tier, 0) * self._trust
            if age < room:
                return tier
        return tiers[-1]

    def store(self, names: Sequence[Name], ends: Sequence[int], *, until: float = 0.0, leased: int = 0) -> None:
        """A prompt goes to the replica. `ends`: tokens up to each name; a lease on the first `leased` tokens lives
        until `until`."""
        entries, before = self._entries, 0
        new: list[tuple[Name, _Entry]] = []
        for name, end in zip(names, ends, strict=True):
            entry = entries.get(name)
            if entry is None:
                entry = entries[name] = _Entry(end - before, 0, 0.0)
                self._tokens += entry.tokens
                self._stored += entry.tokens
            if end <= leased:
                entry.until = max(entry.until, until)
            new.append((name, entry))
            before = end
        for name, entry in reversed(new):  # the end of a prefix is forgotten before its beginning
            entry.stored = self._stored
            entries.move_to_end(name)

    def trim(self, now: float) -> None:
        """Forget what has no room, leases that live at `now` last."""
        most = sum(self.room.values()) * self._trust
        spared = len(self._entries) if self._tokens > most else 0
        while self._tokens > most and self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.until > now and spared > 0:
                self._entries.move_to_end(name)
            else:
                del self._entries[name]
                self._tokens -= entry.tokens
            spared -= 1

    def correct(self, believed: int, read: int) -> None:
        """The replica has read `read` tokens of a prompt of which it was believed to hold `believed`."""
        if believed:
            factor = _LESS if read < believed * _SHORT else _MORE
            self._trust = min(1.0, max(_LEAST_ROOM, self._trust * factor))

    def names_held_only_here(self, others: Sequence[PrefixMap]) -> list[Name]:
        """The names that none of the `others` holds, the longest unused first."""
        return [name for name in self._entries if not any(name in other._entries for other in others)]

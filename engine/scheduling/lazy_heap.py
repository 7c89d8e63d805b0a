"""A priority queue with lazy deletion: stale entries are dropped when they come to the top, or all at once.

Removing an entry from the middle of a heap needs a search, so stale ones stay until they come to the top. Below a valid
entry they could pile up without bound; so when the heap has doubled since its last sweep, all stale entries are removed
at once, at a constant amortized cost for each push.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

SPARED = 64
"""A heap with fewer entries than this is not swept."""


class LazyHeap(Generic[Entry]):
    """Entries in order, the least first. An entry is stale once `stands` is false for it.

    Holds at most twice as many entries as were valid at the last sweep, and `SPARED` more.
    """

    __slots__ = ("_entries", "_room", "_stands")

    def __init__(self, stands: Callable[[Entry], bool]) -> None:
        self._entries: list[Entry] = []
        self._room = SPARED
        self._stands = stands

    def __len__(self) -> int:
        """How many entries are held, stale ones included."""
        return len(self._entries)

    def push(self, entry: Entry) -> None:
        """Add an entry."""
        heapq.heappush(self._entries, entry)
        if len(self._entries) > self._room:
            self._entries = list(filter(self._stands, self._entries))
            heapq.heapify(self._entries)
            self._room = 2 * len(self._entries) + SPARED

    def first(self) -> Entry | None:
        """The least valid entry; None if there is none."""
        entries = self._entries
        while entries:
            if self._stands(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def standing(self) -> Iterator[Entry]:
        """All valid entries, in no order."""
        return filter(self._stands, self._entries)

    def pop(self) -> Entry:
        """Remove the entry that `first` has just returned."""
        return heapq.heappop(self._entries)

    def replace(self, entry: Entry) -> None:
        """Replace the entry that `first` has just returned."""
        heapq.heapreplace(self._entries, entry)

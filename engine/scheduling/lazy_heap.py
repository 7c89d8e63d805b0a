"""A heap whose entries lapse: nobody takes out what has lost its meaning, and still it does not pile up.

To take an entry out of the middle of a heap costs a search for it, so what lapses stays where it is, and is dropped
when it comes to the top. That alone has no bound: below an entry that stands for long, others lapse and never come
there. So when most may have lapsed all of these are swept out at once, which costs each push a constant share.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

SPARED = 64
"""So many lapsed entries are never worth a sweep."""


class LazyHeap(Generic[Entry]):
    """Entries in order, the least first; those for which `stands` is false count for nothing, from then on.

    It holds at most twice as many entries as stood at its last sweep, and `SPARED`.
    """

    __slots__ = ("_entries", "_room", "_stands")

    def __init__(self, stands: Callable[[Entry], bool]) -> None:
        self._entries: list[Entry] = []
        self._room = SPARED
        self._stands = stands

    def __len__(self) -> int:
        """How many entries are held, lapsed ones too."""
        return len(self._entries)

    def push(self, entry: Entry) -> None:
        """Put an entry in."""
        heapq.heappush(self._entries, entry)
        if len(self._entries) > self._room:
            self._entries = list(filter(self._stands, self._entries))
            heapq.heapify(self._entries)
            self._room = 2 * len(self._entries) + SPARED

    def first(self) -> Entry | None:
        """The least entry that stands; None if none does."""
        entries = self._entries
        while entries:
            if self._stands(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def standing(self) -> Iterator[Entry]:
        """All entries that stand, in no order."""
        return filter(self._stands, self._entries)

    def pop(self) -> Entry:
        """Take out what `first` has just shown."""
        return heapq.heappop(self._entries)

    def replace(self, entry: Entry) -> None:
        """Put an entry in the place of what `first` has just shown."""
        heapq.heapreplace(self._entries, entry)

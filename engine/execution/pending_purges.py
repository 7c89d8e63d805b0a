"""Purges that a tier was told of and has not run yet: nobody is to find what they are of."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

MOST_BLOCKS = 20_000
"""Blocks of a scope that wait to be purged: with more, the whole scope is."""
MOST_OF_ALL = 16 * MOST_BLOCKS
"""Blocks of all scopes that wait: with more, the whole scope is purged that has the most of them."""


class PendingPurges:
    """Blocks and scopes that are to be purged. May be used from any thread.

    Nothing is saved while a purge runs. So one that is added while the same one runs is done with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[bytes] | None] = {}
        """scope -> keys; None for all of it"""

    def cover(self, scope: str, key: bytes) -> bool:
        """Whether a block is among them."""
        with self._lock:
            keys = self._waiting.get(scope, ())
            return keys is None or key in keys

    def add(self, scope: str, keys: Collection[bytes] | None) -> None:
        """These are to be purged; None for the whole scope."""
        with self._lock:
            known = self._waiting.setdefault(scope, set())
            if known is None:
                return
            known.update(keys or ())
            if keys is None or len(known) > MOST_BLOCKS:
                self._waiting[scope] = None
            waiting = {of: len(blocks) for of, blocks in self._waiting.items() if blocks is not None}
            if sum(waiting.values()) > MOST_OF_ALL:  # one is enough: it has no fewer than were added
                self._waiting[max(waiting, key=waiting.__getitem__)] = None

    def first(self) -> tuple[str, Sequence[bytes] | None] | None:
        """What to purge next, if anything."""
        with self._lock:
            for scope, keys in self._waiting.items():
                return scope, None if keys is None else tuple(keys)
            return None

    def ran(self, scope: str, keys: Sequence[bytes] | None) -> None:
        """These are purged."""
        with self._lock:
            left = self._waiting[scope]
            if left is not None:
                left.difference_update(keys or ())
            if keys is None or left == set():
                del self._waiting[scope]

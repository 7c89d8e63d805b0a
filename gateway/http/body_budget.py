"""Limits the bytes of request bodies that a worker holds at once, shared evenly between tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from gateway.errors import RateLimited

MOST_BYTES = 128 * 1024 * 1024
"""The limit of one worker. A tenant may use it divided by the number of tenants whose bodies are being read."""


class BodyBudget:
    """Counts bytes as they arrive. Used from one event loop."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._held: Counter[Hashable] = Counter()

    @contextmanager
    def share(self, tenant: Hashable) -> Iterator[BodyShare]:
        """The bytes of one body of the tenant, which are given back at the end of the context."""
        share = BodyShare(self, tenant)
        try:
            yield share
        finally:
            self._held[tenant] -= share.taken
            if not self._held[tenant]:
                del self._held[tenant]

    def take(self, tenant: Hashable, size: int) -> None:
        """Count `size` more bytes. Raises RateLimited if the tenant would hold more than its share."""
        tenants = len(self._held) + (tenant not in self._held)
        if self._held[tenant] + size > self._most // tenants:
            if not self._held[tenant]:
                del self._held[tenant]  # the look-up made an entry
            raise RateLimited("Too many bytes of your requests are being read at once; send them one after the other.")
        self._held[tenant] += size


class BodyShare:
    """The bytes of one body that were counted."""

    def __init__(self, budget: BodyBudget, tenant: Hashable) -> None:
        self._budget = budget
        self._tenant = tenant
        self.taken = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises RateLimited."""
        self._budget.take(self._tenant, size)
        self.taken += size

"""How many bytes of request bodies a worker holds at once: in all, and how many of them a tenant may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from gateway.errors import RateLimited

MOST_BYTES = 128 * 1024 * 1024
"""Of one worker, while a single tenant sends; each may have an even part of it when several do."""


class BodyBudget:
    """Counts bytes while they come. Called from one event loop."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._held: Counter[Hashable] = Counter()

    @contextmanager
    def share(self, tenant: Hashable) -> Iterator[BodyShare]:
        """What one body of the tenant takes, until it is parsed."""
        share = BodyShare(self, tenant)
        try:
            yield share
        finally:
            self._held[tenant] -= share.taken
            if not self._held[tenant]:
                del self._held[tenant]

    def take(self, tenant: Hashable, size: int) -> None:
        """Raises RateLimited if the tenant would hold more than an even part."""
        tenants = len(self._held) + (tenant not in self._held)
        if self._held[tenant] + size > self._most // tenants:
            if not self._held[tenant]:
                del self._held[tenant]  # looking it up made an entry
            raise RateLimited(
                "Too many bytes of your requests are being read at once; try again soon.", retry_after=1.0
            )
        self._held[tenant] += size


class BodyShare:
    """The bytes that one body holds."""

    def __init__(self, budget: BodyBudget, tenant: Hashable) -> None:
        self._budget = budget
        self._tenant = tenant
        self.taken = 0

    def take(self, size: int) -> None:
        """Hold so many more. Raises RateLimited."""
        self._budget.take(self._tenant, size)
        self.taken += size

"""Limits the bytes of requests that a worker holds until they are prompts, shared evenly between tenants.

A body counts as it arrives. From then on the request counts as what it becomes: its texts in memory, those of earlier
responses that it goes on from, and their rendered form.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from gateway.errors import RateLimited

MOST_BYTES = 128 * 1024 * 1024
"""The limit of one worker. A tenant may use it divided by the number of tenants whose requests are being prepared."""
_LARGE_BYTES = 4 * 1024 * 1024
"""After a request that held as much, freed memory is returned to the system."""
_RETURN_S = 1.0
_SMALL_SHARE = 8
"""This part of a tenant's share is left for others of its requests, however large one becomes."""


class BodyBudget:
    """Counts bytes. Used from one event loop."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._held: Counter[Hashable] = Counter()
        self._freed = asyncio.Event()

    @contextmanager
    def share(self, tenant: Hashable) -> Iterator[BodyShare]:
        """The bytes of one request of the tenant, which are given back at the end of the context."""
        share = BodyShare(self, tenant)
        try:
            yield share
        finally:
            self._held[tenant] -= share.taken
            if not self._held[tenant]:
                del self._held[tenant]
            if share.taken >= _LARGE_BYTES:
                self._freed.set()

    def take(self, tenant: Hashable, size: int) -> None:
        """Count `size` more bytes. Raises RateLimited if the tenant would hold more than its share."""
        if self._held[tenant] + size > self._fair_share(tenant):
            if not self._held[tenant]:
                del self._held[tenant]  # the look-up made an entry
            raise RateLimited("Too many bytes of your requests are being read at once; send them one after the other.")
        self._held[tenant] += size

    def growth(self, tenant: Hashable, taken: int, size: int) -> int:
        """How many bytes more a request counts that has taken `taken` and becomes `size`. It never becomes more than
        most of its tenant's share: so it is admitted where it is the only one, and small ones are beside it."""
        share = self._fair_share(tenant)
        return max(0, min(size, share - share // _SMALL_SHARE) - taken)

    async def return_memory(self) -> None:
        """Return the memory of large requests to the system after they have gone, until cancelled."""
        while True:
            await self._freed.wait()
            await asyncio.sleep(_RETURN_S)
            self._freed.clear()
            await asyncio.to_thread(_return_freed_memory)

    def _fair_share(self, tenant: Hashable) -> int:
        return self._most // (len(self._held) + (tenant not in self._held))


class BodyShare:
    """The bytes of one request that were counted."""

    def __init__(self, budget: BodyBudget, tenant: Hashable) -> None:
        self._budget = budget
        self._tenant = tenant
        self.taken = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises RateLimited."""
        self._budget.take(self._tenant, size)
        self.taken += size

    def load(self, size: int) -> None:
        """Count stored content of `size` bytes, before it is loaded, as what it becomes: sealed, opened and decoded.
        Raises RateLimited."""
        self.take(size)
        self.grow_to(self.taken + 2 * size)

    def grow_to(self, size: int) -> None:
        """Count the request as the `size` bytes that it becomes in memory. Raises RateLimited."""
        self.take(self._budget.growth(self._tenant, self.taken, size))


def _return_freed_memory() -> None:
    """Return freed memory to the system. glibc would keep it for what is allocated later, and much of it for good."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

"""Bounds what lines of all batches take in one gateway while they run: how many there are, and their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LINES = 64
BYTES = 16 * 1024 * 1024
"""A line takes several times its length while it is read; one that is longer than this runs alone."""


class LinePlaces:
    """Gives places in the order in which they were asked for: a long line waits behind no shorter ones."""

    def __init__(self, lines: int = LINES, most: int = BYTES) -> None:
        self._lines = asyncio.Semaphore(lines)
        self._turn = asyncio.Lock()
        self._freed = asyncio.Condition()
        self._most = self._left = most

    @asynccontextmanager
    async def take(self, length: int) -> AsyncIterator[None]:
        """Wait for the place of a line of `length` bytes, and have it during the context."""
        size = min(length, self._most)
        async with self._lines:
            async with self._turn, self._freed:
                await self._freed.wait_for(lambda: self._left >= size)
                self._left -= size
            try:
                yield
            finally:
                async with self._freed:
                    self._left += size
                    self._freed.notify_all()

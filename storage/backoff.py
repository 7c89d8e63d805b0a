"""Waiting a little longer after each failure, and not a moment longer once there is something else to do."""

from __future__ import annotations

import asyncio
import contextlib


class Backoff:
    """Delays that double from `first` to `last` seconds, until `reset`."""

    def __init__(self, first: float = 0.05, last: float = 2.0) -> None:
        self._first, self._last = first, last
        self._next = first

    def reset(self) -> None:
        """The attempt succeeded: the next failure waits `first` again."""
        self._next = self._first

    async def wait(self, interrupt: asyncio.Event | None = None) -> None:
        """Wait this failure's delay, or until `interrupt` is set."""
        delay = self._next
        self._next = min(2 * delay, self._last)
        if interrupt is None:
            await asyncio.sleep(delay)
        else:
            await pause(delay, interrupt)


async def pause(seconds: float, interrupt: asyncio.Event) -> None:
    """Wait so long, or until `interrupt` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await interrupt.wait()

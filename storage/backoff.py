"""Exponential back-off: delays between attempts that double from a first to a longest one."""

from __future__ import annotations

import asyncio
import contextlib


class Backoff:
    """Delays that double from `first` to `longest` seconds, until `reset`."""

    def __init__(self, first: float = 0.05, longest: float = 2.0) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def reset(self) -> None:
        """An attempt succeeded: the next failure waits `first` again."""
        self._next = self._first

    def next_delay(self) -> float:
        """Seconds to wait after one more failure."""
        delay = self._next
        self._next = min(2 * delay, self._longest)
        return delay

    async def wait(self, interrupt: asyncio.Event | None = None) -> None:
        """Wait the next delay, or until `interrupt` is set."""
        delay = self.next_delay()
        if interrupt is None:
            await asyncio.sleep(delay)
        else:
            await pause(delay, interrupt)


async def pause(seconds: float, interrupt: asyncio.Event) -> None:
    """Wait for so many seconds, or until `interrupt` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await interrupt.wait()

"""Time as this process lives it: while it was stopped, nobody else was silent.

A virtual machine that is paused, a SIGSTOP or a starved container stops us, not the replicas: what they said meanwhile
lies in the socket, and is read a moment after the timers that would have given them up.
"""

from __future__ import annotations

import asyncio
import time


class AwakeClock:
    """Seconds since it was made, of which a pause of this process counts as two ticks at most.

    `tick`: seconds between two looks; it stands still two ticks after the last one.
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._awake = 0.0
        self._looked = time.monotonic()

    def now(self) -> float:
        """Seconds."""
        return self._awake + min(time.monotonic() - self._looked, 2 * self._tick)

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            self._awake, self._looked = self.now(), time.monotonic()
            await asyncio.sleep(self._tick)

"""The lines of a batch that are to be run here, in which order and when."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from batch_store.records import Line


class QueuedLine(Struct, frozen=True):
    """A line. `begun`: an earlier worker may have run it; `faults`: how often it failed here by a fault of ours."""

    line: Line
    begun: bool = False
    faults: int = 0


class LineQueue:
    """New lines come first; one that has to wait lets others go before it. `take` fetches the next new lines."""

    def __init__(self, begun: Sequence[Line], take: Callable[[], Awaitable[list[Line]]]) -> None:
        self._take = take
        self._new: deque[QueuedLine] = deque()
        self._numbers = itertools.count()
        self._later: list[tuple[float, int, QueuedLine]] = []
        self._all_taken = False
        for line in begun:
            self.put(QueuedLine(line, begun=True), 0.0)

    def put(self, queued: QueuedLine, after_s: float) -> None:
        """Let a line be run later."""
        heapq.heappush(self._later, (time.monotonic() + after_s, next(self._numbers), queued))

    async def next(self) -> QueuedLine | None:
        """The next line that may be run now; None if there is none at present. Raises what `take` raises."""
        if self._later and self._later[0][0] <= time.monotonic():
            return heapq.heappop(self._later)[2]
        if not self._new and not self._all_taken:
            lines = await self._take()
            self._all_taken = not lines
            self._new += map(QueuedLine, lines)
        return self._new.popleft() if self._new else None

    @property
    def empty(self) -> bool:
        """Whether there is none, now or later, but for those that are being run."""
        return self._all_taken and not self._new and not self._later

    def unbegun(self) -> list[Line]:
        """Those of which it is certain that they do not run."""
        waiting = [*self._new, *(queued for _, _, queued in self._later)]
        return [queued.line for queued in waiting if not queued.begun]

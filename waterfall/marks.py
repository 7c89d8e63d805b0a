"""Marks: what has just ended in the life of a request, and when. All that the way of a request pays for its waterfall.

A mark costs a tenth of a microsecond: a clock is read and two numbers are kept. What they mean is worked out when
somebody looks (`waterfall.bars`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.trace_context import TraceContext

_clock: Callable[[], int] = time.monotonic_ns

# What ended at a mark. Numbers are stored: a new one goes to the end, and none changes its meaning.
RECEIVED = 0
AUTH = 1
BODY = 2
PARSE = 3
RENDER = 4
PLAN = 5
PRICE = 6
LIMITS = 7
SCOPE_KEYS = 8
HOLD = 9
PREFIX_WAIT = 10
ROUTE = 11
"""It was sent to a replica: an attempt begins."""
BEGAN = 12
"""The replica said that it was scheduled."""
FIRST_TOKEN = 13
PROMISE = 14
DONE = 15
"""The replica's last word came: an attempt ends."""
LOST = 16
"""The replica was lost: an attempt ends."""
RETRY = 17
READER = 18
SPOOL = 19
EXPLAIN = 20
ANSWER = 21
SETTLE = 22
END = 23


class Marks:
    """The marks of one request, as (what ended, nanoseconds of the monotonic clock) in one flat list.

    `received_at`: when the first was made, in microseconds since the Unix epoch. `taken`: whether a task records them.
    `answered`: whether the response is over. `trace`: the request's place in a trace, None if nothing is traced;
    `caller`: the id of the span that called it, if one did.
    """

    __slots__ = ("answered", "at", "caller", "received_at", "taken", "trace")

    def __init__(self) -> None:
        self.received_at = time.time_ns() // 1000
        self.at = [RECEIVED, _clock()]
        self.taken = False
        self.answered = False
        self.trace: TraceContext | None = None
        self.caller = ""

    def mark(self, what: int) -> None:
        """This has just ended."""
        self.at += (what, _clock())

    def follow(self, earlier: Marks) -> None:
        """These come after the marks of the HTTP request that this one is a part of."""
        self.received_at = earlier.received_at
        self.at = earlier.at + self.at[2:]

    @property
    def elapsed(self) -> int:
        """Microseconds since the first mark."""
        return (_clock() - self.at[1]) // 1000

    def offsets_of(self, times: tuple[int, ...]) -> tuple[int, ...]:
        """These nanoseconds of the monotonic clock as microseconds since the first mark."""
        return tuple((at - self.at[1]) // 1000 for at in times)

    def offsets(self) -> tuple[int, ...]:
        """The marks with microseconds since the first, flat as they are."""
        at = self.at
        first = at[1]
        offsets = at.copy()
        for index in range(1, len(at), 2):
            offsets[index] = (at[index] - first) // 1000
        return tuple(offsets)

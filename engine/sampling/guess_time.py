"""The time that guesses about grammars may take before a step, of all requests together.

A grammar comes from a client: what may follow in it can take long to find out, and everybody in the step waits. Where
the time is over the others get no guess, and they are asked first before the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

STEP_S = 0.005
"""Seconds of CPU time of all guesses before a step. A usual one takes 0.01 ms."""
Answer = TypeVar("Answer")


class GuessTime:
    """`seconds` of CPU time before each step, which requests (by arrival) get in turns. The last guess may exceed it:
    its own bound is the guide's."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds
        self._first = 0
        """The arrival from which on requests are asked first: where the last step had no time left."""

    def turns(self, arrivals: Collection[int]) -> Sequence[int]:
        """A step begins: the order in which these requests are to ask."""
        first, self._first, self._left = self._first, 0, self._seconds
        return sorted(arrivals, key=lambda arrival: (arrival < first, arrival))

    def guess(self, arrival: int, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        """What `ask` answers if there is time left."""
        if self._left <= 0:
            self._first = self._first or arrival
            return otherwise
        began = time.thread_time()
        answer = ask()
        self._left -= time.thread_time() - began
        return answer

"""The requests that one response answers, one for each prompt: they are sent, and where one fails not billed, together.

An answer that is not streamed is given whole or not at all, so nothing of it counts as delivered before all of it is
there. Of a streamed one the parts come one after the other: what comes before the part that failed has been given.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.errors import GatewayError


class Part(Protocol):
    """One of the requests."""

    @property
    def ended_badly(self) -> bool:
        """Whether it cannot end well any more."""
        ...

    def fail_beside(self, failure: GatewayError) -> None:
        """End it because one that is answered with it failed so."""
        ...


class AnswerParts:
    """Keeps `count` requests together. Whoever waits here is let go, too, once it has ended otherwise and `wake` was
    called."""

    def __init__(self, count: int = 1, *, streamed: bool = False) -> None:
        self._count = count
        self._streamed = streamed
        self._going: list[Part] = []
        """Those that run and may still be given out, in the order of the answer."""
        self._admitted = self._answered = 0
        self._changed = asyncio.Event()

    def join(self, part: Part) -> None:
        """One more begins."""
        self._going.append(part)

    async def admitted(self, part: Part) -> None:
        """Its money is held: wait until that of all others is."""
        self._admitted += 1
        self.wake()
        while self._admitted < self._count and not part.ended_badly:
            await self._changed.wait()

    async def answered(self, part: Part) -> None:
        """It has ended well: wait until all others have, if the answer is given whole."""
        self._answered += 1
        self.wake()
        while not self._streamed and self._answered < self._count and not part.ended_badly:
            await self._changed.wait()

    def failed(self, part: Part, failure: GatewayError) -> None:
        """The client is told that this part failed: end all those that cannot be given out without it."""
        if part in self._going:
            given = self._streamed and self._admitted == self._count
            first = self._going.index(part) + 1 if given else 0
            ended, self._going = self._going[first:], self._going[:first]
            for other in ended:
                if other is not part:
                    other.fail_beside(failure)

    def ended(self, part: Part) -> None:
        """Forget it: it has ended."""
        if part in self._going:
            self._going.remove(part)

    def wake(self) -> None:
        """Let those that wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

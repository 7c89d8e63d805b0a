"""How long requests wait for a database that does not answer.

A database that is down says so at once; one that is stopped, or behind a network that swallows everything, says nothing
for as long as its connections last. Whoever waits is told after a few seconds. What they waited for is never
interrupted: only so does a connection stay whole, and does somebody hear what came of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from storage.database.database import DatabaseUnavailable

Result = TypeVar("Result")


class Patience:
    """Waits at most `seconds` for each of several things of one kind.

    When the oldest has been waiting for longer, and nothing was answered since it was begun, nothing new is begun but
    one every `seconds`: what would only wait does not pile up. What `witness` was answered counts too: where it asks
    the same database all the time, one slow question keeps no other from being asked.
    """

    def __init__(self, seconds: float, witness: Patience | None = None) -> None:
        self.seconds = seconds
        self._witness = witness
        self._waiting: dict[object, float] = {}
        """When each was begun, the oldest first."""
        self._answered = self._tried = -seconds

    def check(self) -> None:
        """Raise DatabaseUnavailable if nothing new shall be begun now."""
        now = time.monotonic()
        oldest = next(iter(self._waiting.values()), now)
        answered = self._answered if self._witness is None else max(self._answered, self._witness._answered)
        silent = oldest < now - self.seconds and answered < oldest
        if silent and now - self._tried < self.seconds:
            raise _silent()
        self._tried = now

    async def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` returns or raises. Raises DatabaseUnavailable after so many seconds; the work goes on."""
        try:
            self.check()
        except DatabaseUnavailable:
            work.close()
            raise
        return await self.wait_for(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin the work, for one or several who `wait_for` it."""
        return asyncio.create_task(self._heard(work))

    async def wait_for(self, task: asyncio.Task[Result]) -> Result:
        """What a task that has begun returns or raises. Raises DatabaseUnavailable as `wait` does."""
        try:
            done, _ = await asyncio.wait([task], timeout=self.seconds)
        except asyncio.CancelledError:
            task.add_done_callback(_forget)
            raise
        if not done:
            task.add_done_callback(_forget)
            raise _silent()
        return task.result()

    @contextmanager
    def waiting(self, overdue: Callable[[], None]) -> Iterator[None]:
        """While this lasts, something is waited for that has begun; `overdue` is called after so many seconds."""
        mark = object()
        self._waiting[mark] = time.monotonic()
        timer = asyncio.get_running_loop().call_later(self.seconds, overdue)
        answered = True
        try:
            yield
        except (DatabaseUnavailable, asyncio.CancelledError):
            answered = False
            raise
        finally:
            timer.cancel()
            del self._waiting[mark]
            if answered:
                self._answered = time.monotonic()

    async def _heard(self, work: Coroutine[Any, Any, Result]) -> Result:
        with self.waiting(_nothing):
            return await work


def _nothing() -> None:
    pass


def _forget(task: asyncio.Task[Any]) -> None:
    """Look at what came too late, so that nobody is told that no one has."""
    if not task.cancelled():
        task.exception()


def _silent() -> DatabaseUnavailable:
    return DatabaseUnavailable("the database does not answer")

"""A circuit breaker for a database that does not answer.

A database that is down fails at once; one that is stopped, or behind a network that drops packets, is silent for as
long as its connections last. Callers then get an error after a few seconds. Their work is never interrupted, so that
connections stay in a known state and the outcome is not lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from storage.database.database import DatabaseUnavailable

Result = TypeVar("Result")


async def until_available(ask: Callable[[], Coroutine[Any, Any, Result]], pause: float) -> Result:
    """What `ask` returns; it is asked again after `pause` seconds for as long as it raises DatabaseUnavailable."""
    while True:
        try:
            return await ask()
        except DatabaseUnavailable:
            await asyncio.sleep(pause)


class CircuitBreaker:
    """Waits at most `seconds` for each piece of work of one kind.

    The circuit opens when the oldest unfinished work has waited for longer, and nothing was answered since it began.
    While it is open, one piece of work is let through every `seconds` as a probe, and all else is refused. Answers to
    `witness` count too: it asks the same database all the time, so a single slow query does not open the circuit.
    """

    def __init__(self, seconds: float, witness: CircuitBreaker | None = None) -> None:
        self.seconds = seconds
        self._witness = witness
        self._waiting: dict[object, float] = {}
        """unfinished work -> when it began, the oldest first"""
        self._answered = self._tried = -seconds

    def check(self) -> None:
        """Raise DatabaseUnavailable if new work is refused now. Whoever asks begins nothing, and takes no probe."""
        now = time.monotonic()
        oldest = next(iter(self._waiting.values()), now)
        answered = self._answered if self._witness is None else max(self._answered, self._witness._answered)
        silent = oldest < now - self.seconds and answered < oldest
        if silent and now - self._tried < self.seconds:
            raise _silent()

    def enter(self) -> None:
        """As `check`, for work that is `waiting` from now on: while the circuit is open it is the probe."""
        self.check()
        self._tried = time.monotonic()

    async def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` returns or raises. Raises DatabaseUnavailable if it is refused, or late; late work goes on."""
        return await self.wait_for(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin the work; one or several callers may `wait_for` it. Raises DatabaseUnavailable if it is refused."""
        try:
            self.enter()
        except DatabaseUnavailable:
            work.close()
            raise
        return asyncio.create_task(self._heard(work))

    async def wait_for(self, task: asyncio.Task[Result]) -> Result:
        """What a task of `begin` returns or raises. Raises DatabaseUnavailable if it is late."""
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
        """Count the body as work; `overdue` is called if it takes more than `seconds`."""
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
    """Retrieve a late task's exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _silent() -> DatabaseUnavailable:
    return DatabaseUnavailable("the database does not answer")

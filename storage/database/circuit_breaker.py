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
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from storage.database.database import DatabaseUnavailable

Result = TypeVar("Result")


async def until_available(ask: Callable[[], Coroutine[Any, Any, Result]], pause: float) -> Result:
    """What `ask` returns; it is asked again after `pause` seconds for as long as it raises DatabaseUnavailable."""
    while True:
        try:
            return await ask()
        except DatabaseUnavailable:
            await asyncio.sleep(pause)


class _Work:
    """A piece of work. `since`: when it began to wait for the database; None while it does something else."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.outer = _current.get()
        self.since: float | None = None
        self._breaker = breaker

    def resume(self) -> None:
        """It waits for the database from now on."""
        self.since = self._breaker._waiting[self] = time.monotonic()

    def pause(self) -> None:
        """It waits for something else, or has ended."""
        self.since = None
        self._breaker._waiting.pop(self, None)


_current: ContextVar[_Work | None] = ContextVar("work", default=None)


@contextmanager
def beside_the_database() -> Iterator[None]:
    """The body is no waiting for the database, such as for a turn to hash a password: breakers do not count it."""
    works, work = [], _current.get()
    while work is not None:
        if work.since is not None:
            works.append(work)
        work = work.outer
    for work in works:
        work.pause()
    try:
        yield
    finally:
        for work in works:
            work.resume()


class CircuitBreaker:
    """Waits at most `seconds` for each piece of work of one kind.

    The circuit opens when the oldest unfinished work has waited for longer, and nothing was answered since it began.
    While it is open, one piece of work is let through every `seconds` as a probe, and all else is refused. Answers to
    `witness` count too: it asks the same database all the time, so a single slow query does not open the circuit.
    """

    def __init__(self, seconds: float, witness: CircuitBreaker | None = None) -> None:
        self.seconds = seconds
        self._witness = witness
        self._waiting: dict[_Work, float] = {}
        """unfinished work -> since when it waits for the database, the oldest first"""
        self._works: WeakKeyDictionary[asyncio.Task[Any], _Work] = WeakKeyDictionary()
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
        """As `check`, for work that is `waiting` from now on, or waits for what another began: while the circuit is
        open it is the probe."""
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
        started = _Work(self)
        task = asyncio.create_task(self._heard(work, started))
        self._works[task] = started
        return task

    async def wait_for(self, task: asyncio.Task[Result]) -> Result:
        """What a task of `begin` returns or raises. Raises DatabaseUnavailable if it is late."""
        timeout = self.seconds
        try:
            while timeout > 0:
                done, _ = await asyncio.wait([task], timeout=timeout)
                if done:
                    return task.result()
                since = self._works[task].since
                timeout = self.seconds if since is None else since + self.seconds - time.monotonic()
        except asyncio.CancelledError:
            task.add_done_callback(_forget)
            raise
        task.add_done_callback(_forget)
        raise _silent()

    @contextmanager
    def waiting(self, overdue: Callable[[], None]) -> Iterator[None]:
        """Count the body as work; `overdue` is called if it takes more than `seconds`."""
        with self._counted(_Work(self), overdue):
            yield

    @contextmanager
    def _counted(self, work: _Work, overdue: Callable[[], None]) -> Iterator[None]:
        work.resume()
        token = _current.set(work)
        timer = asyncio.get_running_loop().call_later(self.seconds, overdue)
        answered = True
        try:
            yield
        except (DatabaseUnavailable, asyncio.CancelledError):
            answered = False
            raise
        finally:
            timer.cancel()
            _current.reset(token)
            work.pause()
            if answered:
                self._answered = time.monotonic()

    async def _heard(self, work: Coroutine[Any, Any, Result], started: _Work) -> Result:
        with self._counted(started, _nothing):
            return await work


def _nothing() -> None:
    pass


def _forget(task: asyncio.Task[Any]) -> None:
    """Retrieve a late task's exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _silent() -> DatabaseUnavailable:
    return DatabaseUnavailable("the database does not answer")

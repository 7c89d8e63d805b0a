"""A circuit breaker for a database that does not answer.

A database that is down fails at once; one that is stopped, or behind a network that drops packets, is silent for as
long as its connections last. Callers then get an error after a few seconds. Their work is never interrupted, so that
connections stay in a known state and the outcome is not lost.

`wait` is for one question. `guard` is for a whole handler of a request: `Database` tells it of each session, so each
gets the breaker's seconds, and a handler that was given up begins no further one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from storage.database.database import DatabaseUnavailable, present_work

Result = TypeVar("Result")


async def until_available(ask: Callable[[], Coroutine[Any, Any, Result]], pause: float) -> Result:
    """What `ask` returns; it is asked again after `pause` seconds for as long as it raises DatabaseUnavailable."""
    while True:
        try:
            return await ask()
        except DatabaseUnavailable:
            await asyncio.sleep(pause)


class _Work:
    """A piece of work. `since`: when it began to wait for the database; None while it does something else. `guarded`:
    it is a whole handler, which asks the database by sessions."""

    def __init__(self, breaker: CircuitBreaker, *, guarded: bool = False) -> None:
        self.since: float | None = None
        self.task: asyncio.Task[Any] | None = None
        self.given_up = False
        self._breaker = breaker
        self._guarded = guarded
        self._asked = self._ended = False

    def resume(self) -> None:
        """It waits for the database from now on."""
        self.pause()
        if not self._ended:
            self.since = self._breaker._waiting[self] = time.monotonic()

    def pause(self) -> None:
        """It waits for something else."""
        self.since = None
        self._breaker._waiting.pop(self, None)

    def end(self, *, answered: bool) -> None:
        """It has ended. What is no handler was a question to the database itself."""
        self.pause()
        self._ended = True
        if answered and not self._guarded:
            self._breaker._answered = time.monotonic()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """The body is a session. Raises DatabaseUnavailable if the circuit is open, or nobody waits for the work any
        more."""
        self._ask()
        answered = True
        try:
            yield
        except (DatabaseUnavailable, asyncio.CancelledError):
            answered = False
            raise
        finally:
            if answered and self._guarded:
                self._breaker._answered = time.monotonic()
                self._restart()

    def _ask(self) -> None:
        if not self._guarded or self._ended:
            return
        if self.given_up and self.task is asyncio.current_task():
            raise _silent()
        if not self._asked:
            self._breaker.enter()
            self._asked = True
        self._restart()

    def _restart(self) -> None:
        if self.since is not None:
            self.resume()


@contextmanager
def beside_the_database() -> Iterator[None]:
    """The body is no waiting for the database, such as for a turn to hash a password: breakers do not count it."""
    work = present_work.get()
    if work is None or work.since is None:
        yield
        return
    work.pause()
    try:
        yield
    finally:
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

    async def guard(self, handler: Coroutine[Any, Any, Result]) -> Result:
        """What the handler of a request returns or raises; its sessions of `Database` are counted, and may be refused.
        Raises DatabaseUnavailable if it is late: it opens no session after the present one then."""
        work = _Work(self, guarded=True)
        try:
            return await self.wait_for(self._start(handler, work))
        finally:
            work.given_up = True

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin the work; one or several callers may `wait_for` it. Raises DatabaseUnavailable if it is refused."""
        try:
            self.enter()
        except DatabaseUnavailable:
            work.close()
            raise
        return self._start(work, _Work(self))

    def _start(self, coroutine: Coroutine[Any, Any, Result], work: _Work) -> asyncio.Task[Result]:
        work.task = asyncio.create_task(self._heard(coroutine, work))
        self._works[work.task] = work
        return work.task

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
        with beside_the_database():  # for whoever began this: one breaker counts a wait
            work.resume()
            token = present_work.set(work)
            timer = asyncio.get_running_loop().call_later(self.seconds, overdue)
            answered = True
            try:
                yield
            except (DatabaseUnavailable, asyncio.CancelledError):
                answered = False
                raise
            finally:
                timer.cancel()
                present_work.reset(token)
                work.end(answered=answered)

    async def _heard(self, coroutine: Coroutine[Any, Any, Result], work: _Work) -> Result:
        with self._counted(work, _nothing):
            return await coroutine


def _nothing() -> None:
    pass


def _forget(task: asyncio.Task[Any]) -> None:
    """Retrieve a late task's exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _silent() -> DatabaseUnavailable:
    return DatabaseUnavailable("the database does not answer")

"""A Lua script in Redis, called with a deadline and behind a circuit breaker: whoever calls it has another way to go.

Redis has the script in its cache and forgets it at a restart or SCRIPT FLUSH; then it is sent again. After several
calls in a row that failed the circuit is open: nothing is asked for a while, then one call is let through as a probe.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from storage.bus import InvalidRedisUrl

log = structlog.get_logger(__name__)

TIMEOUT_S = 0.05
_FAILURES = 3
"""So many failed calls in a row open the circuit."""
_PROBE_S = 1.0
_TURNS = 3
"""Turns of the event loop after the deadline in which an answer that has arrived is read: a busy loop is not a slow
Redis."""

Call = tuple[str, Sequence[bytes | int]]
"""The key of a call, which decides its cluster slot, and its arguments."""


class ScriptUnavailable(Exception):
    """Redis did not answer in time, or the circuit is open. A call may have been carried out nevertheless."""


class RedisScript:
    """One script. `timeout`: seconds that a round trip may take; `clock` gives seconds."""

    def __init__(
        self, url: str, text: str, *, timeout: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Does not connect yet. Raises InvalidRedisUrl."""
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._timeout = timeout
        self._clock = clock
        self._failures = 0
        self._tried = -_PROBE_S
        try:
            self._client = Redis.from_url(
                url, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0), protocol=2, decode_responses=False
            )
        except ValueError as error:
            raise InvalidRedisUrl from error

    @property
    def open(self) -> bool:
        """Whether the circuit is open: Redis failed of late."""
        return self._failures >= _FAILURES

    @property
    def asks(self) -> bool:
        """Whether a call would be tried now."""
        return not self.open or self._clock() - self._tried >= _PROBE_S

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """What each call returns, in one round trip. Raises ScriptUnavailable."""
        if not self.asks:
            raise ScriptUnavailable("the circuit is open")
        self._tried = self._clock()
        task = asyncio.create_task(self._run(calls))
        try:
            await asyncio.wait({task}, timeout=self._timeout)
            for _ in range(_TURNS):
                if task.done():
                    break
                await asyncio.sleep(0)
        finally:
            if not task.done():
                task.cancel()  # redis-py closes the connection, so that no later call reads this one's answer
        if not task.done():
            raise self._failed("TimeoutError")
        try:
            answers = task.result()
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise self._failed(type(error).__name__) from error
        if self.open:
            log.info("Redis answers again")
        self._failures = 0
        return answers

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _run(self, calls: Sequence[Call]) -> list[Any]:
        try:
            return await self._once(calls)
        except exceptions.ConnectionError:  # a pooled connection may be dead since Redis restarted
            return await self._once(calls)

    async def _once(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [await self._one(*calls[0])]
        pipeline = self._client.pipeline(transaction=False)
        for key, arguments in calls:
            pipeline.evalsha(self._sha, 1, key, *arguments)
        answers = list(await pipeline.execute(raise_on_error=False))
        for index, answer in enumerate(answers):
            if isinstance(answer, exceptions.NoScriptError):
                key, arguments = calls[index]
                answers[index] = await self._one(key, arguments)
            elif isinstance(answer, Exception):
                raise answer
        return answers

    async def _one(self, key: str, arguments: Sequence[bytes | int]) -> Any:
        client: Any = self._client
        try:
            return await client.evalsha(self._sha, 1, key, *arguments)
        except exceptions.NoScriptError:
            return await client.eval(self._text, 1, key, *arguments)

    def _failed(self, cause: str) -> ScriptUnavailable:
        self._failures += 1
        if self._failures == _FAILURES:
            log.warning("Redis does not answer; what it counted is counted here until it does", cause=cause)
        return ScriptUnavailable(cause)

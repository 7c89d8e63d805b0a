"""What was read of the database, cached while nobody changes it: keys, sessions, limits.

Who changes something announces it on the bus, and what the message concerns is forgotten. What was read may be
TRUSTED_SHARED_S old while a bus announces what other processes change, and TRUSTED_ALONE_S while none does. That is
judged when it is used, so that what was read before the bus was lost ages at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from storage.bus import Bus
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable

TRUSTED_SHARED_S, TRUSTED_ALONE_S = 30.0, 0.5
_CAPACITY = 10_000

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class CacheLife:
    """For how long what was read of the database is trusted. `seconds`: where a bus announces changes; by default
    TRUSTED_SHARED_S if it reaches other processes."""

    def __init__(self, bus: Bus, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._bus = bus
        self._announced = seconds if seconds is not None else TRUSTED_SHARED_S if bus.shared else TRUSTED_ALONE_S

    @property
    def seconds(self) -> float:
        """How old what was read may be at present."""
        return self._announced if self._bus.connected else min(self._announced, TRUSTED_ALONE_S)

    def trusts(self, read_at: float) -> bool:
        """Whether what was read at this moment of the clock may be used."""
        return self.now() < read_at + self.seconds


class AnnouncedCache(Generic[Key, Value]):
    """Values that `read` reads of the database by key, None where there is none. That there is none is trusted for
    TRUSTED_ALONE_S at most: what is new is not announced.

    `ttl`: as for CacheLife. `timeout`: seconds to wait for the database. Call `listen` before use and `close` after.
    """

    def __init__(
        self,
        bus: Bus,
        read: Callable[[Key], Coroutine[Any, Any, Value | None]],
        *,
        ttl: float | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.breaker = CircuitBreaker(timeout)
        self._bus = bus
        self._read = read
        self._life = CacheLife(bus, ttl, clock)
        self._values: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._absent: OrderedDict[Key, tuple[float, None]] = OrderedDict()
        """Apart, so that guessed keys cannot evict values."""
        self._loads: dict[Key, asyncio.Task[Value | None]] = {}
        self._changes = 0

    async def listen(self, topic: str, concerned: Callable[[bytes], Iterable[Key]]) -> None:
        """Forget the keys that a message of this topic concerns."""
        await self._bus.subscribe(topic, lambda payload: self.forget(concerned(payload)), self.forget_all)

    async def close(self) -> None:
        """Wait for what is being read."""
        if self._loads:
            await asyncio.wait(self._loads.values())

    async def get(self, key: Key) -> Value | None:
        """The key's value, read if what is cached is too old. Raises DatabaseUnavailable."""
        read_at, value = self._values.get(key, (-math.inf, None))
        if value is not None and self._life.trusts(read_at):
            return value
        read_at, _ = self._absent.get(key, (-math.inf, None))
        if self._life.trusts(read_at) and self._life.now() < read_at + TRUSTED_ALONE_S:
            return None
        return await self.load(key)

    def peek(self, key: Key) -> Value | None:
        """The key's value if one is cached, though it be twice as old as is trusted: then it is read in the background.
        None: `load` it."""
        read_at, value = self._values.get(key, (-math.inf, None))
        if value is None or self._life.trusts(read_at):
            return value
        if not self._life.trusts(read_at + self._life.seconds):
            return None
        with suppress(DatabaseUnavailable):
            self._loading(key)
        return value

    async def load(self, key: Key) -> Value | None:
        """Read the key's value, once for all who ask. Raises DatabaseUnavailable."""
        return await self.breaker.wait_for(self._loading(key))

    def cached(self) -> dict[Key, Value]:
        """All that is cached, however old."""
        return {key: value for key, (_, value) in self._values.items()}

    def replace(self, key: Key, value: Value) -> None:
        """Keep this value in place of what was read; it is as old as that."""
        if key in self._values:
            self._values[key] = (self._values[key][0], value)

    def forget(self, keys: Iterable[Key]) -> None:
        """What these keys have changed: it is read again, and so is what is being read."""
        self._changes += 1
        for key in keys:
            self._values.pop(key, None)

    def forget_all(self) -> None:
        """Messages may have been missed: anything may have changed."""
        self._changes += 1
        self._values.clear()

    def _loading(self, key: Key) -> asyncio.Task[Value | None]:
        """The reading of a value. Raises DatabaseUnavailable while the database is silent."""
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self.breaker.begin(self._load(key))
            task.add_done_callback(lambda done: self._loaded(key, done))
        else:
            self.breaker.enter()
        return task

    def _loaded(self, key: Key, task: asyncio.Task[Value | None]) -> None:
        del self._loads[key]
        if not task.cancelled():
            task.exception()  # whoever waited has it; one in the background is tried again

    async def _load(self, key: Key) -> Value | None:
        while True:
            changes, read_at = self._changes, self._life.now()
            value = await self._read(key)
            if changes == self._changes:  # else what was read may be older than the change
                break
        if value is None:
            self._values.pop(key, None)
            _keep(self._absent, key, (read_at, None))
        else:
            _keep(self._values, key, (read_at, value))
        return value


Entry = TypeVar("Entry")


def _keep(entries: OrderedDict[Key, Entry], key: Key, entry: Entry) -> None:
    entries[key] = entry
    entries.move_to_end(key)
    if len(entries) > _CAPACITY:
        entries.popitem(last=False)

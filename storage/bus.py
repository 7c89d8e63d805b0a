"""The message bus between processes (Redis publish and subscribe), for news such as a revoked API key.

It may lose messages. A subscriber is told that there was a gap, and must then drop its caches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from storage.backoff import Backoff
from storage.reported_error import ReportedError

log = structlog.get_logger(__name__)

SETTING = "TURNPIKE_REDIS_URL"

Callback = Callable[[bytes], None]
OnGap = Callable[[], None]

_PUBLISH_TIMEOUT = 0.05
_CONNECT_TIMEOUT = 0.5
_PING_INTERVAL = 1.0
_SILENCE_LIMIT = 2.5
"""Seconds of silence, with unanswered pings, after which the connection counts as lost."""
_LONGEST_RETRY_S = 1.0


class BusUnavailable(Exception):
    """The message was not published: Redis did not accept it in time."""


class InvalidRedisUrl(ReportedError, ValueError):
    """The Redis URL is malformed. The message names the setting and never the URL, which may hold a password."""

    def __init__(self) -> None:
        super().__init__(f"{SETTING}: expected redis://host:port/number")


class Bus(Protocol):
    """Publishes messages to all subscribers of a topic, in every process that shares the bus."""

    shared: bool
    """Whether it reaches other processes."""

    @property
    def connected(self) -> bool:
        """Whether messages of other processes are received now."""

    async def publish(self, topic: str, payload: bytes) -> None:
        """Send the payload to all current subscribers. Raises BusUnavailable."""

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        """Call `callback` with every payload from now on, and `on_gap` when some may have been missed."""

    async def close(self) -> None:
        """Drop all subscriptions and close connections."""


async def announce(bus: Bus, topic: str, payload: bytes) -> bool:
    """Tell every process that something changed. False if the bus was down: then caches notice when they expire."""
    try:
        await bus.publish(topic, payload)
    except BusUnavailable:
        log.warning("the bus is down: a change is noticed when caches expire", topic=topic)
        return False
    return True


class _Subscriptions:
    """topic -> callbacks. A callback that raises is logged and does not affect others."""

    def __init__(self) -> None:
        self._by_topic: dict[str, list[tuple[Callback, OnGap]]] = {}

    @property
    def topics(self) -> list[str]:
        return list(self._by_topic)

    def add(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        self._by_topic.setdefault(topic, []).append((callback, on_gap))

    def clear(self) -> None:
        self._by_topic.clear()

    def deliver(self, topic: str, payload: bytes) -> None:
        for callback, _ in self._by_topic.get(topic, ()):
            try:
                callback(payload)
            except Exception:
                log.exception("bus callback failed", topic=topic)

    def gap(self) -> None:
        for topic, subscribers in self._by_topic.items():
            for _, on_gap in subscribers:
                try:
                    on_gap()
                except Exception:
                    log.exception("bus gap callback failed", topic=topic)


class LocalBus:
    """A bus within one process."""

    shared = False
    connected = True

    def __init__(self) -> None:
        self._subscriptions = _Subscriptions()

    async def publish(self, topic: str, payload: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._subscriptions.deliver, topic, payload)

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        self._subscriptions.add(topic, callback, on_gap)

    async def close(self) -> None:
        self._subscriptions.clear()


class RedisBus:
    """A bus over Redis. Publishing fails fast; listening reconnects with back-off and reports gaps."""

    shared = True

    def __init__(self, url: str) -> None:
        """Does not connect yet. Raises InvalidRedisUrl."""
        if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
            raise InvalidRedisUrl
        self._publisher = self._client(url, _PUBLISH_TIMEOUT)
        self._listener = self._client(url, None)
        self._subscriptions = _Subscriptions()
        self._pubsub: Any = None
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    @staticmethod
    def _client(url: str, timeout: float | None) -> Redis:
        try:
            return Redis.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=_CONNECT_TIMEOUT,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise InvalidRedisUrl from error

    @property
    def connected(self) -> bool:
        """Whether messages of other processes are received now."""
        return self._listening.is_set() or not self._subscriptions.topics

    async def publish(self, topic: str, payload: bytes) -> None:
        # A pooled connection may be dead since Redis restarted; the second attempt then gets a new one.
        for last in (False, True):
            try:
                await self._publisher.publish(topic, payload)
                return
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                if last or isinstance(error, (exceptions.TimeoutError, TimeoutError)):
                    raise BusUnavailable(type(error).__name__) from error

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        """Returns once Redis has confirmed it, or after half a second; then `on_gap` is called when it has."""
        new = topic not in self._subscriptions.topics
        self._subscriptions.add(topic, callback, on_gap)
        if self._task is None:
            self._task = asyncio.create_task(self._listen())
        elif new and self._listening.is_set():
            self._listening.clear()
            with contextlib.suppress(exceptions.RedisError, OSError):
                await self._pubsub.subscribe(topic)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await self._listening.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._subscriptions.clear()
        await self._publisher.aclose()
        await self._listener.aclose()

    async def _listen(self) -> None:
        backoff, first = Backoff(longest=_LONGEST_RETRY_S), True
        while True:
            try:
                async with self._listener.pubsub() as pubsub:
                    async with asyncio.timeout(_CONNECT_TIMEOUT):
                        await pubsub.subscribe(*self._subscriptions.topics)
                    self._pubsub = pubsub
                    backoff.reset()
                    await self._receive(pubsub, gap=not first)
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                log.warning("lost the message bus, connecting again", cause=type(error).__name__)
            self._listening.clear()
            self._pubsub = None
            first = False
            await backoff.wait()

    async def _receive(self, pubsub: Any, *, gap: bool) -> None:
        """Deliver messages until the connection is lost. `gap`: report one once every topic is subscribed again."""
        loop = asyncio.get_running_loop()
        checked = pinged = loop.time()
        silent = 0.0
        confirmed: set[str] = set()
        while True:
            message = await pubsub.get_message(timeout=_PING_INTERVAL)
            now = loop.time()
            # A pause of this process is not silence of Redis, whose messages meanwhile are in the socket's buffer.
            silent, checked = silent + min(now - checked, 2 * _PING_INTERVAL), now
            if message is not None:
                silent = 0.0
                if message["type"] == "message":
                    self._subscriptions.deliver(message["channel"].decode(), message["data"])
                elif message["type"] == "subscribe":
                    confirmed.add(message["channel"].decode())
            if not self._listening.is_set() and confirmed.issuperset(self._subscriptions.topics):
                self._listening.set()
                if gap:
                    self._subscriptions.gap()
                    gap = False
            if silent > _SILENCE_LIMIT:
                raise TimeoutError
            if now - pinged >= _PING_INTERVAL:
                pinged = now
                await pubsub.ping()

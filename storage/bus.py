"""Telling the other processes something at once, such as that a key was revoked. Lossy by design: who misses a message
is told that there was a gap, and drops what it had remembered."""

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

from storage.reported_error import ReportedError

log = structlog.get_logger(__name__)

SETTING = "TURNPIKE_REDIS_URL"

Callback = Callable[[bytes], None]
OnGap = Callable[[], None]

_PUBLISH_TIMEOUT = 0.05
_CONNECT_TIMEOUT = 0.5
_PING_INTERVAL = 1.0
_SILENCE_LIMIT = 2.5
"""Without any word from Redis for this long, pings unanswered, the connection counts as lost."""
_FIRST_RETRY, _LAST_RETRY = 0.05, 1.0


class BusUnavailable(Exception):
    """The message was not published: Redis did not take it in time."""


class InvalidRedisUrl(ReportedError, ValueError):
    """The Redis URL is malformed. The message names the setting and never the URL, which may hold a password."""

    def __init__(self) -> None:
        super().__init__(f"{SETTING}: expected redis://host:port/number")


class Bus(Protocol):
    """Publish to every subscriber of a topic, in every process that shares the bus."""

    shared: bool
    """Whether it reaches other processes."""

    @property
    def connected(self) -> bool:
        """Whether what others publish is heard now."""

    async def publish(self, topic: str, payload: bytes) -> None:
        """Send the payload to all who listen now. Raises BusUnavailable."""

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        """Call `callback` with every payload from now on, and `on_gap` when some may have been missed."""

    async def close(self) -> None:
        """Call nobody any more, and let go of connections."""


class _Subscriptions:
    """Who listens to what. A callback that raises is logged and harms nobody else."""

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
    """The twin inside one process."""

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
    """Redis's publish and subscribe. Publishing fails fast; listening reconnects by itself and reports the gap."""

    shared = True

    def __init__(self, url: str) -> None:
        """Connects to nothing yet. Raises InvalidRedisUrl."""
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
        """Whether what others publish is heard now."""
        return self._listening.is_set() or not self._subscriptions.topics

    async def publish(self, topic: str, payload: bytes) -> None:
        # A pooled connection may have died with the last Redis; the second try then gets a new one.
        for last in (False, True):
            try:
                await self._publisher.publish(topic, payload)
                return
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                if last or isinstance(error, (exceptions.TimeoutError, TimeoutError)):
                    raise BusUnavailable(type(error).__name__) from error

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        """Returns once Redis confirmed it, or after half a second without Redis: then `on_gap` tells when it is up."""
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
        delay, first = _FIRST_RETRY, True
        while True:
            try:
                async with self._listener.pubsub() as pubsub:
                    async with asyncio.timeout(_CONNECT_TIMEOUT):
                        await pubsub.subscribe(*self._subscriptions.topics)
                    self._pubsub = pubsub
                    delay = _FIRST_RETRY
                    await self._receive(pubsub, gap=not first)
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                log.warning("lost the message bus, connecting again", cause=type(error).__name__, delay_s=delay)
            self._listening.clear()
            self._pubsub = None
            first = False
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_RETRY)

    async def _receive(self, pubsub: Any, *, gap: bool) -> None:
        """Deliver messages until the connection is lost. A gap is reported once every topic is subscribed again."""
        loop = asyncio.get_running_loop()
        looked = pinged = loop.time()
        silent = 0.0
        confirmed: set[str] = set()
        while True:
            message = await pubsub.get_message(timeout=_PING_INTERVAL)
            now = loop.time()
            # A pause of ours is not Redis's silence: what it said meanwhile lies in the socket, and is read next.
            silent, looked = silent + min(now - looked, 2 * _PING_INTERVAL), now
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

"""Turns a session's token into its session, from a cache where possible.

The bus says at once when a user changes. What was read before is trusted as `storage.bus.CacheLife` says.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from uuid import UUID

import structlog
from msgspec import Struct, structs

from storage.bus import Bus, CacheLife
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable
from tenancy.users.changes import SESSION_CHANGED, USER_CHANGED
from tenancy.users.sessions import SessionRecord, Sessions
from tenancy.users.tokens import MOST_TOKEN

_CAPACITY = 10_000
_RECORD_USE_EVERY_US = 60_000_000

log = structlog.get_logger(__name__)


class SignedIn(Struct, frozen=True):
    """A session that was presented. `new_token`: what its cookie is to hold from now on; None: what it holds."""

    session: SessionRecord
    token_mac: bytes
    fresh: bool
    new_token: str | None = None

    def __repr__(self) -> str:
        return f"SignedIn(session={self.session.id!r})"


class SessionAuthenticator:
    """Finds live sessions. `clock`: microseconds since the Unix epoch. Call `start` before use and `close` after."""

    def __init__(
        self, sessions: Sessions, bus: Bus, clock: Callable[[], int], *, ttl: float | None = None, timeout: float = 5.0
    ) -> None:
        self._sessions = sessions
        self._bus = bus
        self._clock = clock
        self._life = CacheLife(bus, ttl)
        self._cache: OrderedDict[bytes, tuple[float, SessionRecord]] = OrderedDict()
        """token's MAC -> when the session was read, and the session"""
        self._changes = 0
        self._breaker = CircuitBreaker(timeout)
        self._used: OrderedDict[UUID, int] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Subscribe to changes."""
        await self._bus.subscribe(USER_CHANGED, self._forget_user, self._forget_all)
        await self._bus.subscribe(SESSION_CHANGED, self._forget_token, self._forget_all)

    async def close(self) -> None:
        """Wait for what is written in the background."""
        if self._background:
            await asyncio.wait(self._background)

    async def authenticate(self, token: str) -> SignedIn | None:
        """The live session of this token; None if there is none. Raises DatabaseUnavailable."""
        if not 0 < len(token) <= MOST_TOKEN:
            return None
        mac = self._sessions.token_mac(token)
        session = await self._cached(mac)
        now = self._clock()
        if session is None or not session.alive(now):
            return None
        new_token = None
        if session.rotate and session.current:
            new_token = await self._breaker.wait(self._sessions.rotate(session.id, mac, now))
            self._cache.pop(mac, None)
        self._record_use(mac, session, now)
        return SignedIn(session, mac, session.fresh(now), new_token)

    async def _cached(self, mac: bytes) -> SessionRecord | None:
        read_at, known = self._cache.get(mac, (-math.inf, None))
        if known is not None and self._life.trusts(read_at):
            return known
        while True:  # again if a change was announced meanwhile, because what was read may be older
            changes, began = self._changes, time.monotonic()
            session = await self._breaker.wait(self._sessions.find(mac))
            if changes == self._changes:
                break
        if session is None:
            self._cache.pop(mac, None)
            return None
        self._cache[mac] = (began, session)
        self._cache.move_to_end(mac)
        if len(self._cache) > _CAPACITY:
            self._cache.popitem(last=False)
        return session

    def _forget_user(self, payload: bytes) -> None:
        self._changes += 1
        for mac in [mac for mac, (_, session) in self._cache.items() if session.user_id.bytes == payload]:
            del self._cache[mac]

    def _forget_token(self, payload: bytes) -> None:
        self._changes += 1
        self._cache.pop(payload, None)

    def _forget_all(self) -> None:
        self._changes += 1
        self._cache.clear()

    def _record_use(self, mac: bytes, session: SessionRecord, now: int) -> None:
        """Write the time of use in the background, at most once a minute for each session."""
        if now - self._used.get(session.id, session.seen_at) < _RECORD_USE_EVERY_US:
            return
        self._used[session.id] = now
        if mac in self._cache:
            self._cache[mac] = (self._cache[mac][0], structs.replace(session, seen_at=now))
        if len(self._used) > _CAPACITY:
            self._used.popitem(last=False)
        task = asyncio.create_task(self._write_use(session.id, now))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write_use(self, session_id: UUID, now: int) -> None:
        try:
            await self._sessions.record_use(session_id, now)
        except DatabaseUnavailable:
            log.info("the time of a session's last use was not recorded: the database is unavailable")

"""Turns a session's token into its session, from a cache where possible. The bus says at once when a user changes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from storage.bus import Bus
from storage.database.announced_cache import AnnouncedCache
from tenancy.authenticator import LastUses
from tenancy.users.changes import SESSION_CHANGED, USER_CHANGED
from tenancy.users.sessions import SessionRecord, Sessions
from tenancy.users.tokens import MOST_TOKEN


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
        self._clock = clock
        self.cache = AnnouncedCache(bus, sessions.find, ttl=ttl, timeout=timeout)
        """By the MAC of a session's token."""
        self._last_uses = LastUses(sessions.record_use)

    async def start(self) -> None:
        """Subscribe to changes."""
        await self.cache.listen(USER_CHANGED, self._of_user)
        await self.cache.listen(SESSION_CHANGED, lambda payload: [payload])

    async def close(self) -> None:
        """Wait for background tasks."""
        await self._last_uses.close()
        await self.cache.close()

    async def authenticate(self, token: str) -> SignedIn | None:
        """The live session of this token; None if there is none. Raises DatabaseUnavailable."""
        if not 0 < len(token) <= MOST_TOKEN:
            return None
        mac = self._sessions.token_mac(token)
        session = await self.cache.get(mac)
        now = self._clock()
        if session is None or not session.alive(now):
            return None
        new_token = None
        if session.rotate and session.current:
            new_token = await self.cache.breaker.wait(self._sessions.rotate(session.id, mac, now))
            self.cache.forget([mac])
        if self._last_uses.record(session.id, now, session.seen_at):
            self.cache.replace(mac, structs.replace(session, seen_at=now))
        return SignedIn(session, mac, session.fresh(now), new_token)

    def _of_user(self, payload: bytes) -> list[bytes]:
        return [mac for mac, session in self.cache.cached().items() if session.user_id.bytes == payload]

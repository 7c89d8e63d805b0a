"""Tells replicas which scopes to forget, and which to keep otherwise than before: whichever process changed that.

Each gateway asks the database every few seconds which keys have changed. A replica is told of each destroyed key of the
last days once a connection, since it may have been away; what it wrote under a newer key has another scope's name. It
is told likewise of each project that may keep its KV for another time or in other limits now, since a project that
sends nothing more has KV there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakKeyDictionary

import structlog

from gateway.fleet.replica_link import ReplicaLink
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ChangedKey, ScopeKeys, ScopeKeyUnreadable
from protocol.replicas import Scope
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.fleet")

_EVERY_S = 3.0
_MOST = 10_000


class ForgottenScopes:
    """Runs in each gateway worker. `pause`: between two looks, by default so many seconds. `on_changed` is called with
    the name of each scope that is to be forgotten, or kept otherwise."""

    def __init__(
        self,
        keys: ScopeKeys,
        domains: CacheDomains,
        links: Sequence[ReplicaLink],
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(_EVERY_S),
        on_changed: Callable[[str], None] = lambda scope: None,
    ) -> None:
        self._keys, self._domains, self._links, self._pause = keys, domains, links, pause
        self._on_changed = on_changed
        self._since: int | None = None
        self._seen: set[ChangedKey] = set()
        """What the last look told, some of which the next will tell again."""
        self._forgotten: dict[str, None] = {}
        """Names of scopes, in the order in which they were destroyed."""
        self._limited: dict[str, Scope] = {}
        """Scopes whose retention or limits changed, by name, as they are now."""
        self._told: WeakKeyDictionary[ReplicaLink, tuple[object, set[str | Scope]]] = WeakKeyDictionary()
        """link -> the greeting of its connection, and what it was told since."""

    async def run(self) -> None:
        """Look and tell until cancelled."""
        while True:
            try:
                await self._look_and_tell()
            except Exception:  # this must not end: replicas would keep what is to be forgotten
                log.exception("forgotten scopes could not be told, trying again")
            await self._pause()

    async def _look_and_tell(self) -> None:
        try:
            await self.look()
        except DatabaseUnavailable:
            log.info("forgotten scopes cannot be read: the database is away")
        self.tell()

    async def look(self) -> None:
        """Learn which keys have changed. Raises DatabaseUnavailable."""
        changed, self._since = await self._keys.changes(self._since)
        for one in changed:
            if one in self._seen:
                continue
            name = self._domains.name(one.tenant_id, one.project_id, one.generation)
            if one.destroyed:
                self._forgotten.setdefault(name)
                self._limited.pop(name, None)
            try:
                await self._keys.refresh(one)
                if one.limited:
                    await self._keys.load(one.tenant_id, one.project_id)
                    scope = self._domains.project(one.tenant_id, one.project_id)
                    if scope.scope == name:  # else it was destroyed since: that is told next
                        self._limited[name] = scope
            except ScopeKeyUnreadable as error:
                log.error("a project's KV stays on the device", cause=str(error))
            finally:  # after the key is known here: a request that came meanwhile may have used the former one
                self._on_changed(name)
        self._seen = set(changed)
        for known in (self._forgotten, self._limited):
            while len(known) > _MOST:
                del known[next(iter(known))]

    def tell(self) -> None:
        """Tell each replica that is connected what it was not told yet."""
        for link in self._links:
            if not link.up:
                continue
            greeting, told = self._told.get(link, (None, set()))
            if greeting is not link.hello:
                greeting, told = link.hello, set()
                self._told[link] = (greeting, told)
            for name in [name for name in self._forgotten if name not in told]:
                link.forget(name)
                told.add(name)
            for scope in [scope for scope in self._limited.values() if scope not in told]:
                link.introduce(scope)
                told.add(scope)

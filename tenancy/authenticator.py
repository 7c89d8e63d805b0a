"""Authenticates API keys, from a cache where possible. All wrong keys take the same path and get the same error."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from storage.bus import TRUSTED_ALONE_S, Bus, CacheLife
from storage.database import clock
from storage.database.base import from_instant, to_instant
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import Database, DatabaseUnavailable
from tenancy.keys import Peppers, Presented, parse_key
from tenancy.repositories import REVOKED, AllKeysRepository, grant_of
from tenancy.rights.key_limits import Network, is_inside, parse_networks
from tenancy.rights.principals import Membership, Principal, PrincipalKind

log = structlog.get_logger(__name__)

_CAPACITY = 10_000
_LAST_USED_EVERY_US = 60_000_000
_KINDS: dict[str, PrincipalKind] = {"project": "project_key", "admin": "admin_key", "operator": "operator_key"}
"""A key's kind in its row → its holder's."""


class AuthenticationFailed(Exception):
    """The key is absent, malformed, unknown, wrong, expired or revoked; clients are not told which."""

    def __init__(self) -> None:
        super().__init__("incorrect API key provided")


_Cache: TypeAlias = "OrderedDict[str, tuple[float, _CachedKey]]"
"""Public id -> when the key was read (monotonic clock), and the key; in the order of loading."""


class AddressNotAllowed(Exception):
    """The key is right, but may not be used from this address."""


class _CachedKey(msgspec.Struct, frozen=True):
    """What is cached for a public id. An unknown id, and a key that stands in, have a MAC that no secret matches.

    `previous_mac` is that of the secret from before a rotation, which `previous_principal` presents until
    `previous_until`. Instants are microseconds since the Unix epoch.
    """

    mac: bytes
    pepper_version: int
    principal: Principal | None
    revoked: bool
    expires_at: int | None
    last_used_at: int | None
    previous_mac: bytes = b""
    previous_pepper_version: int = 0
    previous_until: int = 0
    previous_principal: Principal | None = None
    networks: tuple[Network, ...] | None = None

    def __repr__(self) -> str:
        return f"_CachedKey(principal={self.principal!r})"


class Authenticator:
    """Checks keys. `ttl`: seconds for which a key is cached, by default as the bus allows. `timeout`: seconds to
    wait for the database when a key is not cached.

    Call `start` before use and `close` after.
    """

    def __init__(
        self, database: Database, peppers: Peppers, bus: Bus, ttl: float | None = None, timeout: float = 5.0
    ) -> None:
        self._database = database
        self._peppers = peppers
        self._bus = bus
        self._life = CacheLife(bus, ttl)
        self._unknown_key = _CachedKey(
            bytes(32), peppers.current, None, revoked=True, expires_at=None, last_used_at=None
        )
        self._keys: _Cache = OrderedDict()
        self._unknown_ids: _Cache = OrderedDict()  # apart, so that guessed ids cannot evict keys
        self._loads: dict[str, asyncio.Task[_CachedKey]] = {}
        self._revocations = 0
        self._breaker = CircuitBreaker(timeout)
        self._background: set[asyncio.Task[None]] = set()
        self._last_used: dict[tuple[UUID, bool], int] = {}

    async def start(self) -> None:
        """Subscribe to revocations."""
        await self._bus.subscribe(REVOKED, self._forget, self._forget_all)

    @property
    def hears_revocations(self) -> bool:
        """Whether the bus that announces revocations is connected."""
        return self._bus.connected

    async def close(self) -> None:
        """Wait for background tasks."""
        running = [*self._background, *self._loads.values()]
        if running:
            await asyncio.wait(running)

    async def authenticate_operator(self, presented: str) -> Principal:
        """The operator of a key. Raises what `authenticate` raises."""
        holder = await self.authenticate(presented)
        if holder.kind != "operator_key":
            raise AuthenticationFailed
        return holder

    async def authenticate(self, presented: str, address: str | None = None) -> Principal:
        """The principal of a key that is used from this address; None: a command on this machine, from which every key
        may be used.

        Raises AuthenticationFailed; AddressNotAllowed; DatabaseUnavailable if the key is not cached.
        """
        key = parse_key(presented)
        if key is None:
            key, record = Presented("", ""), self._unknown_key
        else:
            record = await self._cached(key.public_id)
        # Constant time: the MAC is computed and compared in every case, before anything is decided.
        mac = self._peppers.mac(record.pepper_version, key.secret)
        matches = hmac.compare_digest(mac, record.mac)
        now, principal = clock.instant(), record.principal
        if not matches and record.previous_principal is not None and self._is_previous(record, key, mac):
            matches, principal = now < record.previous_until, record.previous_principal
        if not matches or record.revoked or _has_ended(record, now) or principal is None:
            raise AuthenticationFailed
        if record.networks is not None and address is not None and not is_inside(address, record.networks):
            raise AddressNotAllowed
        self._record_use(principal, record, now)
        return principal

    async def check_valid(self, public_id: str) -> None:
        """Raise AuthenticationFailed if the key was revoked or has expired, for what it asked for before and begins
        now. Raises DatabaseUnavailable if the key is not cached."""
        record = await self._cached(public_id)
        if record.principal is None or record.revoked or _has_ended(record, clock.instant()):
            raise AuthenticationFailed

    def _is_previous(self, record: _CachedKey, key: Presented, mac: bytes) -> bool:
        """Whether it is the secret from before the key's rotation, under the pepper of then."""
        if record.previous_pepper_version != record.pepper_version:
            mac = self._peppers.mac(record.previous_pepper_version, key.secret)
        return hmac.compare_digest(mac, record.previous_mac)

    # ------------------------------------------------------------ the cache

    async def _cached(self, public_id: str) -> _CachedKey:
        began, record = self._keys.get(public_id) or self._unknown_ids.get(public_id) or (-math.inf, self._unknown_key)
        # That there is no such key is never trusted for longer than without a bus: new keys are not announced.
        if self._life.trusts(began) and (record.principal is not None or time.monotonic() < began + TRUSTED_ALONE_S):
            return record
        task = self._loads.get(public_id)
        if task is None:
            task = self._breaker.begin(self._load(public_id))
            self._loads[public_id] = task
            task.add_done_callback(lambda _: self._loads.pop(public_id, None))
        else:
            self._breaker.enter()
        return await self._breaker.wait_for(task)

    async def _load(self, public_id: str) -> _CachedKey:
        """Read and cache the key; again if a revocation arrived meanwhile, because what was read may be older."""
        while True:
            revocations = self._revocations
            began = time.monotonic()
            record = await self._read(public_id)
            if revocations == self._revocations:
                break
        cache = self._unknown_ids if record.principal is None else self._keys
        cache[public_id] = (began, record)
        cache.move_to_end(public_id)
        if len(cache) > _CAPACITY:
            cache.popitem(last=False)
        return record

    async def _read(self, public_id: str) -> _CachedKey:
        async with self._database.reading() as session:
            row = await AllKeysRepository(session).get_with_owners(public_id)
        if row is None:
            return self._unknown_key
        key, tenant, project = row
        grant = grant_of(key)
        principal = Principal(
            kind=_KINDS[key.kind],
            id=key.id,
            public_id=key.public_id,
            name=key.name,
            memberships=(Membership(grant.role, key.tenant_id, key.project_id),),
            tenant_id=key.tenant_id,
            tenant=tenant,
            project_id=key.project_id,
            project=project,
            permissions=None if grant.limits.permissions is None else frozenset(grant.limits.permissions),
            limits=grant.limits,
            expires_at=grant.expires_at,
            user=key.user,
        )
        previous = key.previous_mac is not None and key.previous_until is not None and not key.stands_in
        return _CachedKey(
            mac=bytes(32) if key.stands_in else key.mac,  # nobody presents it, though it was given a secret once
            pepper_version=key.pepper_version,
            principal=principal,
            revoked=key.revoked_at is not None,
            expires_at=grant.expires_at,
            last_used_at=None if key.last_used_at is None else to_instant(key.last_used_at),
            previous_mac=key.previous_mac or b"",
            previous_pepper_version=key.previous_pepper_version or 0,
            previous_until=0 if key.previous_until is None else to_instant(key.previous_until),
            previous_principal=replace(principal, old_secret=True) if previous else None,
            networks=None if grant.limits.networks is None else parse_networks(grant.limits.networks),
        )

    def _forget(self, payload: bytes) -> None:
        self._revocations += 1
        self._keys.pop(payload.decode(errors="replace"), None)

    def _forget_all(self) -> None:
        self._revocations += 1
        self._keys.clear()

    # ------------------------------------------------------------ the time of last use

    def _record_use(self, principal: Principal, record: _CachedKey, now: int) -> None:
        """Write the time of use in the background, at most once a minute for each secret of a key."""
        secret = (principal.id, principal.old_secret)
        last = 0 if principal.old_secret else record.last_used_at or 0
        if now - self._last_used.get(secret, last) < _LAST_USED_EVERY_US:
            return
        if principal.old_secret:
            until = from_instant(record.previous_until).isoformat()
            log.warning("the secret from before a key's rotation was used", key=principal.public_id, valid_until=until)
        if len(self._last_used) >= _CAPACITY:
            self._last_used.clear()
        self._last_used[secret] = now
        task = asyncio.create_task(self._write_use(principal, now))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write_use(self, principal: Principal, now: int) -> None:
        try:
            async with self._database.transaction() as session:
                keys = AllKeysRepository(session)
                await keys.record_use(principal.id, from_instant(now), old_secret=principal.old_secret)
        except DatabaseUnavailable:
            log.info("the time of a key's last use was not recorded: the database is unavailable")


def _has_ended(record: _CachedKey, now: int) -> bool:
    return record.expires_at is not None and record.expires_at <= now

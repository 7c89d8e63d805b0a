"""Authenticates API keys, from a cache where possible. All wrong keys take the same path and get the same error."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from storage.bus import Bus
from storage.database import clock
from storage.database.announced_cache import AnnouncedCache
from storage.database.base import from_instant, to_instant
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
KeyEnd: TypeAlias = Literal["revoked", "expired"]


class AuthenticationFailed(Exception):
    """The key is absent, malformed, unknown, wrong, expired or revoked; clients are not told which."""

    def __init__(self) -> None:
        super().__init__("incorrect API key provided")


class AddressNotAllowed(Exception):
    """The key is right, but may not be used from this address."""


class LastUses:
    """Writes in the background when something was last used, at most once a minute for each."""

    def __init__(self, write: Callable[[Any, int], Coroutine[Any, Any, object]]) -> None:
        self._write = write
        self._written: dict[Hashable, int] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._background:
            await asyncio.wait(self._background)

    def record(self, subject: Hashable, now: int, last: int) -> bool:
        """The subject is used now; when this process has not written of it yet, its `last` use was then. Whether the
        use is written."""
        if now - self._written.get(subject, last) < _LAST_USED_EVERY_US:
            return False
        if len(self._written) >= _CAPACITY:
            self._written.clear()
        self._written[subject] = now
        task = asyncio.create_task(self._record(subject, now))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return True

    async def _record(self, subject: Hashable, now: int) -> None:
        try:
            await self._write(subject, now)
        except DatabaseUnavailable:
            log.info("the time of a last use was not recorded: the database is unavailable")


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
    leaked: bool = False

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
        self._unknown_key = _CachedKey(
            bytes(32), peppers.current, None, revoked=True, expires_at=None, last_used_at=None
        )
        self.keys = AnnouncedCache(bus, self._read, ttl=ttl, timeout=timeout)
        self._last_uses = LastUses(self._write_use)

    async def start(self) -> None:
        """Subscribe to revocations."""
        await self.keys.listen(REVOKED, lambda payload: [payload.decode(errors="replace")])

    @property
    def hears_revocations(self) -> bool:
        """Whether the bus that announces revocations is connected."""
        return self._bus.connected

    async def close(self) -> None:
        """Wait for background tasks."""
        await self._last_uses.close()
        await self.keys.close()

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

    async def holder(self, public_id: str) -> tuple[Principal, KeyEnd | None]:
        """The principal of a key as it is now, and how the key ended if it did, for what was ordered by it before and
        goes on without it. Raises AuthenticationFailed if it was revoked as leaked, and DatabaseUnavailable if it is
        not cached."""
        record = await self._cached(public_id)
        if record.principal is None or record.leaked:
            raise AuthenticationFailed
        expired: KeyEnd | None = "expired" if _has_ended(record, clock.instant()) else None
        return record.principal, "revoked" if record.revoked else expired

    def _is_previous(self, record: _CachedKey, key: Presented, mac: bytes) -> bool:
        """Whether it is the secret from before the key's rotation, under the pepper of then."""
        if record.previous_pepper_version != record.pepper_version:
            mac = self._peppers.mac(record.previous_pepper_version, key.secret)
        return hmac.compare_digest(mac, record.previous_mac)

    async def _cached(self, public_id: str) -> _CachedKey:
        return await self.keys.get(public_id) or self._unknown_key

    async def _read(self, public_id: str) -> _CachedKey | None:
        async with self._database.reading() as session:
            row = await AllKeysRepository(session).get_with_owners(public_id)
        if row is None:
            return None
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
            leaked=bool(key.leaked),
            expires_at=grant.expires_at,
            last_used_at=None if key.last_used_at is None else to_instant(key.last_used_at),
            previous_mac=key.previous_mac or b"",
            previous_pepper_version=key.previous_pepper_version or 0,
            previous_until=0 if key.previous_until is None else to_instant(key.previous_until),
            previous_principal=replace(principal, old_secret=True) if previous else None,
            networks=None if grant.limits.networks is None else parse_networks(grant.limits.networks),
        )

    def _record_use(self, principal: Principal, record: _CachedKey, now: int) -> None:
        last = 0 if principal.old_secret else record.last_used_at or 0
        if self._last_uses.record((principal.id, principal.old_secret), now, last) and principal.old_secret:
            until = from_instant(record.previous_until).isoformat()
            log.warning("the secret from before a key's rotation was used", key=principal.public_id, valid_until=until)

    async def _write_use(self, secret: tuple[UUID, bool], now: int) -> None:
        async with self._database.transaction() as session:
            await AllKeysRepository(session).record_use(secret[0], from_instant(now), old_secret=secret[1])


def _has_ended(record: _CachedKey, now: int) -> bool:
    return record.expires_at is not None and record.expires_at <= now

"""Who presents this key? Answered from memory while that is allowed, in the same way and time for every wrong key."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog

from storage.bus import Bus
from storage.database.base import from_instant, to_instant
from storage.database.circuit_breaker import Patience
from storage.database.database import Database, DatabaseUnavailable
from tenancy.keys import Peppers, Presented, parse
from tenancy.repositories import REVOKED, AllKeysRepository

log = structlog.get_logger(__name__)

TTL_SHARED, TTL_ALONE = 30.0, 0.5
"""For how many seconds a key is remembered: with a bus that tells of revocations, and without."""
_TTL_UNKNOWN = 0.5
_CAPACITY = 10_000
_LAST_USED_EVERY = 60_000_000


class AuthenticationFailed(Exception):
    """The key is absent, malformed, unknown, wrong, expired or revoked: nobody is told which."""

    def __init__(self) -> None:
        super().__init__("incorrect API key provided")


class Principal(msgspec.Struct, frozen=True):
    """Who is asking: a key of a project, or an admin key of the tenant."""

    key_id: UUID
    public_id: str
    tenant_id: UUID
    tenant: str
    project_id: UUID | None
    project: str | None
    admin: bool


class Operator(msgspec.Struct, frozen=True):
    """Who is asking on behalf of those who run this installation: a person, by `name`."""

    key_id: UUID
    public_id: str
    name: str


_Remembered: TypeAlias = "OrderedDict[str, tuple[float, _Record]]"


class _Record(msgspec.Struct, frozen=True):
    """What is remembered of a public id. An unknown one has a MAC that nothing matches."""

    mac: bytes
    pepper_version: int
    principal: Principal | Operator | None
    revoked: bool
    expires_at: int | None
    last_used_at: int | None

    def __repr__(self) -> str:
        return f"_Record(principal={self.principal!r})"


class Authenticator:
    """Checks keys. `ttl` is for how many seconds a key is remembered; absent, it follows from the bus. `patience`: for
    how many seconds a key that is not remembered is waited for.

    Call `start` before, `close` after.
    """

    def __init__(
        self, database: Database, peppers: Peppers, bus: Bus, ttl: float | None = None, patience: float = 5.0
    ) -> None:
        self._database = database
        self._peppers = peppers
        self._bus = bus
        self._ttl = ttl if ttl is not None else TTL_SHARED if bus.shared else TTL_ALONE
        self._unknown = _Record(bytes(32), peppers.current, None, revoked=True, expires_at=None, last_used_at=None)
        self._known: _Remembered = OrderedDict()
        self._strangers: _Remembered = OrderedDict()  # apart, so that guessing ids cannot push keys out of memory
        self._loading: dict[str, asyncio.Task[_Record]] = {}
        self._forgotten = 0
        self._patience = Patience(patience)
        self._background: set[asyncio.Task[None]] = set()
        self._used: dict[UUID, int] = {}

    async def start(self) -> None:
        """Listen to revocations."""
        await self._bus.subscribe(REVOKED, self._forget, self._forget_all)

    @property
    def hears_revocations(self) -> bool:
        """Whether the bus that tells of revocations is connected."""
        return self._bus.connected

    async def close(self) -> None:
        """Wait for what runs in the background."""
        running = [*self._background, *self._loading.values()]
        if running:
            await asyncio.wait(running)

    async def authenticate(self, presented: str) -> Principal:
        """Whose key it is, of a tenant. Raises AuthenticationFailed; DatabaseUnavailable if it is not remembered."""
        found = await self._authenticate(presented)
        if not isinstance(found, Principal):
            raise AuthenticationFailed
        return found

    async def authenticate_operator(self, presented: str) -> Operator:
        """Which operator's key it is. Raises as `authenticate` does."""
        found = await self._authenticate(presented)
        if not isinstance(found, Operator):
            raise AuthenticationFailed
        return found

    async def _authenticate(self, presented: str) -> Principal | Operator:
        key = parse(presented)
        if key is None:
            key, record = Presented("", ""), self._unknown
        else:
            record = await self._record(key.public_id)
        # One way for all: the MAC is computed and compared whatever was found, and only then is anything decided.
        matches = hmac.compare_digest(self._peppers.mac(record.pepper_version, key.secret), record.mac)
        expired = record.expires_at is not None and record.expires_at <= time.time_ns() // 1000
        if not matches or record.revoked or expired or record.principal is None:
            raise AuthenticationFailed
        self._note_use(record)
        return record.principal

    # ------------------------------------------------------------ what is remembered

    async def _record(self, public_id: str) -> _Record:
        until, record = self._known.get(public_id) or self._strangers.get(public_id) or (0.0, self._unknown)
        if time.monotonic() < until:
            return record
        task = self._loading.get(public_id)
        if task is None:
            self._patience.check()
            task = self._patience.begin(self._load(public_id))
            self._loading[public_id] = task
            task.add_done_callback(lambda _: self._loading.pop(public_id, None))
        return await self._patience.wait_for(task)

    async def _load(self, public_id: str) -> _Record:
        """Read the key, again if a revocation came in meanwhile: what was read may be older than that."""
        while True:
            forgotten = self._forgotten
            began = time.monotonic()
            record = await self._read(public_id)
            if forgotten == self._forgotten:
                break
        stranger = record.principal is None
        memory, ttl = (self._strangers, min(self._ttl, _TTL_UNKNOWN)) if stranger else (self._known, self._ttl)
        memory[public_id] = (began + ttl, record)
        memory.move_to_end(public_id)
        if len(memory) > _CAPACITY:
            memory.popitem(last=False)
        return record

    async def _read(self, public_id: str) -> _Record:
        async with self._database.reading() as session:
            found = await AllKeysRepository(session=session).get_with_owners(public_id)
        if found is None:
            return self._unknown
        key, tenant, project = found
        principal: Principal | Operator = Operator(key.id, key.public_id, key.name)
        if key.tenant_id is not None and tenant is not None:
            principal = Principal(
                key_id=key.id,
                public_id=key.public_id,
                tenant_id=key.tenant_id,
                tenant=tenant,
                project_id=key.project_id,
                project=project,
                admin=key.kind == "admin",
            )
        return _Record(
            mac=key.mac,
            pepper_version=key.pepper_version,
            principal=principal,
            revoked=key.revoked_at is not None,
            expires_at=None if key.expires_at is None else to_instant(key.expires_at),
            last_used_at=None if key.last_used_at is None else to_instant(key.last_used_at),
        )

    def _forget(self, payload: bytes) -> None:
        self._forgotten += 1
        self._known.pop(payload.decode(errors="replace"), None)

    def _forget_all(self) -> None:
        self._forgotten += 1
        self._known.clear()

    # ------------------------------------------------------------ when it was last used

    def _note_use(self, record: _Record) -> None:
        """Write the time of use behind the request's back, at most once a minute for each key."""
        now = time.time_ns() // 1000
        principal = record.principal
        if principal is None or now - self._used.get(principal.key_id, record.last_used_at or 0) < _LAST_USED_EVERY:
            return
        if len(self._used) >= _CAPACITY:
            self._used.clear()
        self._used[principal.key_id] = now
        task = asyncio.create_task(self._write_use(principal.key_id, now))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write_use(self, key_id: UUID, now: int) -> None:
        try:
            async with self._database.transaction() as session:
                await AllKeysRepository(session=session).note_use(key_id, from_instant(now))
        except DatabaseUnavailable:
            log.info("when a key was last used is not noted: the database is away")

"""The data keys of projects: random, wrapped by the server's master key, and destroyed to erase what they sealed.

A key lives in the database only. Gateways keep the keys that they use in memory, and ask every few seconds which have
changed, so that all of them notice soon that one was destroyed. A project's next key is of the next generation.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import Row, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from prompt_cache.tables import cache_scope_key
from protocol.replicas import TIERS, TierLimit
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import Database
from storage.free_text import REASON, check_text
from storage.reported_error import ReportedError

KEY_BYTES, _NONCE_BYTES = 32, 12
REMEMBERED_US = 8 * 86_400_000_000
"""For so long replicas are told what was destroyed: longer than any record lives (`LONGEST_RETENTION_S`)."""
_REMEMBERED = 10_000
_MOST_CHANGES = 1_000
_OVERLAP_US = 30_000_000
"""Rows are committed somewhat later than the clock in them says."""


class ScopeKeyUnreadable(ReportedError):
    """A data key was wrapped by another master key, or its row was altered."""


class ProjectKey(msgspec.Struct, frozen=True):
    """A project's key. `retention`: seconds, None for the setting's; `limits`: of its scopes, by tier; `changed_at`: by
    the database's clock, in µs."""

    generation: int
    key: bytes
    changed_at: int
    retention: int | None = None
    limits: tuple[TierLimit, ...] = ()

    def __repr__(self) -> str:
        return f"ProjectKey(generation={self.generation}, …)"

    def derive(self, root: bytes) -> bytes:
        """The data key of the scope with this root, which is the project's or a part of it."""
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"turnpike/data-key/v2" + root).derive(self.key)


class ChangedKey(msgspec.Struct, frozen=True):
    """A project's key was made, destroyed or given other limits at `changed_at` (the database's clock, µs)."""

    tenant_id: UUID
    project_id: UUID
    generation: int
    destroyed: bool
    changed_at: int
    limited: bool
    """Whether its retention or its limits were set since it was made."""


class ListedKey(msgspec.Struct, frozen=True):
    """A key as operators see it. `key` is None and `destroyed_at` (µs) says since when, once it is destroyed."""

    tenant_id: UUID
    project_id: UUID
    generation: int
    key: ProjectKey | None
    destroyed_at: int | None
    reason: str


class ScopeKeys:
    """Loads and makes the keys. `timeout`: seconds to wait for the database."""

    def __init__(self, database: Database, master_key: bytes, *, timeout: float = 5.0) -> None:
        self._database = database
        self._wrapping = AESGCM(HKDF(SHA256(), KEY_BYTES, salt=None, info=b"turnpike/scope-keys/v1").derive(master_key))
        self._breaker = CircuitBreaker(timeout)
        self._known: OrderedDict[UUID, ProjectKey] = OrderedDict()
        self._loads: dict[UUID, asyncio.Task[ProjectKey]] = {}
        self._drops = 0

    def known(self, project_id: UUID) -> ProjectKey | None:
        """The key of a project if it is in memory."""
        return self._known.get(project_id)

    def drop(self, project_id: UUID) -> None:
        """Load this key anew when it is wanted next."""
        self._drops += 1
        self._known.pop(project_id, None)

    async def load(self, tenant_id: UUID, project_id: UUID) -> ProjectKey:
        """The project's key, which is made if it has none. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        known = self._known.get(project_id)
        if known is not None:
            self._known.move_to_end(project_id)
            return known
        task = self._loads.get(project_id)
        if task is None:
            task = self._loads[project_id] = self._breaker.begin(self._load(tenant_id, project_id))
            task.add_done_callback(lambda _: self._loads.pop(project_id, None))
        else:
            self._breaker.enter()
        return await self._breaker.wait_for(task)

    async def destroy(self, tenant_id: UUID, project_id: UUID, reason: str) -> int:
        """Destroy the project's key: what it sealed can never be read again. Returns its generation, 0 if there was
        none. Raises InvalidText, DatabaseUnavailable."""
        check_text("reason", reason, REASON)
        async with self._database.transaction() as session:
            generation = await self.destroy_with(session, tenant_id, project_id, reason)
        if generation:
            self.drop(project_id)
        return generation

    async def destroy_with(self, session: AsyncSession, tenant_id: UUID, project_id: UUID, reason: str) -> int:
        """As `destroy`, in a transaction of the caller's, who drops the key from memory when that is committed."""
        of = cache_scope_key.c
        row = await self._living(session, tenant_id, project_id)
        if row is None:
            return 0
        now = (await session.execute(select(self._database.clock))).scalar_one()
        mine = (of.project_id == project_id, of.tenant_id == tenant_id, of.generation == row.generation)
        values = {"wrapped_key": None, "changed_at": now, "destroyed_at": now, "reason": reason}
        await session.execute(update(cache_scope_key).where(*mine).values(values))
        await record_change(session, "cache.forgotten", target="project", target_id=project_id,
                            tenant_id=tenant_id, project_id=project_id, reason=reason,
                            before={"generation": row.generation})  # fmt: skip
        return int(row.generation)

    async def policy(self, tenant_id: UUID, project_id: UUID) -> tuple[int | None, tuple[TierLimit, ...]]:
        """What `set_policy` set last, also where no key lives; makes none. Raises DatabaseUnavailable."""
        of = cache_scope_key.c
        mine = (of.project_id == project_id, of.tenant_id == tenant_id)
        query = select(of.retention_s, of.limits).where(*mine).order_by(of.generation.desc()).limit(1)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return (None, ()) if row is None else (row.retention_s, _limits(row.limits))

    async def set_policy(
        self,
        tenant_id: UUID,
        project_id: UUID,
        *,
        retention: int | msgspec.UnsetType | None = msgspec.UNSET,
        limits: Sequence[TierLimit] | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        """Set a project's cache policy. What is not given stays. Raises ScopeKeyUnreadable, DatabaseUnavailable.

        `retention`: for how many seconds its KV may be kept off the device; 0: not at all, None: as the setting says.
        `limits`: its reserve and limit in each tier.
        """
        key = await self.load(tenant_id, project_id)
        of = cache_scope_key.c
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            mine = (of.project_id == project_id, of.tenant_id == tenant_id, of.generation == key.generation)
            values: dict[str, Any] = {"changed_at": now}
            if retention is not msgspec.UNSET:
                values["retention_s"] = retention
            if limits is not msgspec.UNSET:
                values["limits"] = msgspec.json.encode(tuple(limits)).decode() if limits else None
            row = (await session.execute(select(of.retention_s, of.limits).where(*mine))).one_or_none()
            await session.execute(update(cache_scope_key).where(*mine).values(values))
            before = {} if row is None else {"retention_s": row.retention_s, "limits": _limits(row.limits)}
            after = before | {name: values[name] for name in ("retention_s",) if name in values}
            after |= {} if limits is msgspec.UNSET else {"limits": tuple(limits)}
            await record_change(session, "cache_policy.set", target="project", target_id=project_id,
                                tenant_id=tenant_id, project_id=project_id, before=before, after=after)  # fmt: skip
        self.drop(project_id)

    async def refresh(self, changed: ChangedKey) -> None:
        """Bring what is in memory up to date. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        known = self._known.get(changed.project_id)
        if changed.destroyed:
            if known is not None and known.generation <= changed.generation:
                self.drop(changed.project_id)
        elif known is not None and known.changed_at < changed.changed_at:
            await self._load(changed.tenant_id, changed.project_id)

    async def changes(self, since: int | None) -> tuple[list[ChangedKey], int]:
        """What changed since this instant (the database's clock, µs; None: in the last 8 days), and since when to ask
        next; some of it may be told twice. Raises DatabaseUnavailable."""
        of = cache_scope_key.c
        columns = (
            of.tenant_id,
            of.project_id,
            of.generation,
            of.destroyed_at.is_not(None),
            of.changed_at,
            of.created_at,
        )
        async with self._database.reading() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            since = now - REMEMBERED_US if since is None else since
            query = select(*columns).where(of.changed_at > since).order_by(of.changed_at).limit(_MOST_CHANGES)
            rows = [
                ChangedKey(row[0], row[1], row[2], bool(row[3]), row[4], not row[3] and row[4] > row[5])
                for row in await session.execute(query)
            ]
        return rows, rows[-1].changed_at if len(rows) == _MOST_CHANGES else max(since, now - _OVERLAP_US)

    async def listed(self) -> list[ListedKey]:
        """The keys of all projects, for operators. Raises DatabaseUnavailable."""
        of = cache_scope_key.c
        async with self._database.reading() as session:
            rows = (await session.execute(select(cache_scope_key).order_by(of.tenant_id, of.project_id))).all()
        return [
            ListedKey(
                row.tenant_id,
                row.project_id,
                row.generation,
                self._key(row) if row.wrapped_key is not None else None,
                row.destroyed_at,
                row.reason or "",
            )
            for row in rows
        ]

    # ------------------------------------------------------------ inside

    async def _load(self, tenant_id: UUID, project_id: UUID) -> ProjectKey:
        while True:
            drops = self._drops
            key = await self._read_or_make(tenant_id, project_id)
            if drops == self._drops:  # else it may have been destroyed since it was read
                break
        self._known[project_id] = key
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return key

    async def _read_or_make(self, tenant_id: UUID, project_id: UUID) -> ProjectKey:
        async with self._database.reading() as session:
            row = await self._living(session, tenant_id, project_id)
        if row is None:
            await self._make(tenant_id, project_id)
            async with self._database.reading() as session:
                row = await self._living(session, tenant_id, project_id)
        if row is None:
            raise ScopeKeyUnreadable(f"the data key of project {project_id} was destroyed as it was made")
        return self._key(row)

    def _key(self, row: Row[Any]) -> ProjectKey:
        """The key in a row. Raises ScopeKeyUnreadable."""
        unwrapped = self._unwrap(row)
        return ProjectKey(row.generation, unwrapped, row.changed_at, row.retention_s, _limits(row.limits))

    async def _make(self, tenant_id: UUID, project_id: UUID) -> None:
        """Make the key of the project's next generation, unless another gateway does at the same time. How long and how
        much it may keep stays as it was set before."""
        # no entry: the first request that needs a key makes it
        of = cache_scope_key.c
        async with self._database.transaction() as session:
            columns = (of.generation, of.retention_s, of.limits, of.wrapped_key.is_not(None))
            query = select(*columns).where(of.project_id == project_id, of.tenant_id == tenant_id)
            last = (await session.execute(query.order_by(of.generation.desc()).limit(1))).one_or_none()
            generation, retention, limits, lives = (0, None, None, False) if last is None else tuple(last)
            if lives:
                return
            now = (await session.execute(select(self._database.clock))).scalar_one()
            row = {
                "project_id": project_id,
                "generation": generation + 1,
                "tenant_id": tenant_id,
                "wrapped_key": self._wrap(secrets.token_bytes(KEY_BYTES), project_id, generation + 1),
                "retention_s": retention,
                "limits": limits,
                "created_at": now,
                "changed_at": now,
            }
            await session.execute(self._database.insert(cache_scope_key).values(row).on_conflict_do_nothing())

    @staticmethod
    async def _living(session: AsyncSession, tenant_id: UUID, project_id: UUID) -> Row[Any] | None:
        """The row of the key that is not destroyed."""
        of = cache_scope_key.c
        mine = (of.project_id == project_id, of.tenant_id == tenant_id, of.wrapped_key.is_not(None))
        query = select(cache_scope_key).where(*mine).order_by(of.generation.desc()).limit(1)
        return (await session.execute(query)).one_or_none()

    def _wrap(self, key: bytes, project_id: UUID, generation: int) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._wrapping.encrypt(nonce, key, _bound_to(project_id, generation))

    def _unwrap(self, row: Row[Any]) -> bytes:
        wrapped = row.wrapped_key
        try:
            bound = _bound_to(row.project_id, row.generation)
            return self._wrapping.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError) as error:
            raise ScopeKeyUnreadable(
                f"the cache's data key of project {row.project_id} cannot be read: is this the master key that it was "
                "made with? `turnpike cache forget` makes a new one"
            ) from error


def _limits(text: str | None) -> tuple[TierLimit, ...]:
    """Limits as a row has them. One of a tier that we do not know, a newer gateway's, is left out."""
    limits = msgspec.json.decode(text) if text else []
    return msgspec.convert([limit for limit in limits if limit[0] in TIERS], tuple[TierLimit, ...])


def _bound_to(project_id: UUID, generation: int) -> bytes:
    return project_id.bytes + generation.to_bytes(8, "big")

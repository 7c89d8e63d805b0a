"""Tenants, projects and keys in the database. A tenant's repository sees no other tenant's rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid5

import structlog
from msgspec import UNSET, Struct, UnsetType
from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.bus import Bus, announce
from storage.database import clock
from storage.database.base import from_instant, to_instant
from storage.database.database import Database
from storage.free_text import NAME, check_text
from storage.reported_error import ReportedError
from tenancy.keys import IssuedKey, Peppers, generate_key
from tenancy.rights.delegation import KeyGrant, KeyKind
from tenancy.rights.key_limits import NO_LIMITS, KeyLimits, decode_limits, encode_limits, key_limits
from tenancy.rights.permissions import Role
from tenancy.tables import ApiKey, Project, Tenant

log = structlog.get_logger(__name__)

REVOKED = "turnpike.keys.revoked"
"""The bus topic of keys that were revoked or changed. The payload is the public id of the key."""
MOST_KEYS = 10_000
"""Of a tenant with its projects, without revoked ones."""
LONGEST_OVERLAP_S = 90 * 86_400
"""How long a key's earlier secret may live beside the new one."""

DEFAULT_PROJECT = "default"
"""The project that a tenant is opened with."""

Row = TypeVar("Row", bound=Tenant | Project | ApiKey)
Owned = TypeVar("Owned", bound=Project | ApiKey)


class NameTaken(ReportedError, ValueError):
    """The name is in use."""


class NoSuchRecord(ReportedError, LookupError):
    """The tenant, project or key does not exist, or belongs to another tenant."""


class InvalidKeyChange(ReportedError, ValueError):
    """A key cannot be changed like this: it was revoked, or what is given does not fit its kind."""


OperatorsGuard = Callable[[Sequence[ApiKey]], None]
"""Raises an error where the operators' keys, of which one is about to change, do not allow it."""


class KeyChange(Struct, frozen=True):
    """What to change of a key; what is UNSET stays. `expires_at` in microseconds since the Unix epoch."""

    name: str | UnsetType = UNSET
    expires_at: int | UnsetType | None = UNSET
    role: Role | UnsetType = UNSET
    limits: KeyLimits | UnsetType = UNSET


class Repository(Generic[Row]):
    """The rows of a table that `_rows` selects, within a session's transaction.

    Our own, though Advanced Alchemy has one: to import that takes every process 0.6 s (docs/decisions.md).
    """

    model_type: type[Row]

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def _rows(self) -> Select[Row]:
        return select(self.model_type)

    async def get_one_or_none(self, *, with_for_update: bool = False, **values: object) -> Row | None:
        """The row with these values, locked if asked for. Raises MultipleResultsFound if there are several."""
        query = self._rows().filter_by(**values)
        if with_for_update:
            query = query.with_for_update()
        return (await self.session.scalars(query)).one_or_none()

    async def get_many(self, *where: ColumnElement[bool], order_by: str) -> list[Row]:
        """The rows that meet the conditions, in ascending order of a column."""
        query = self._rows().where(*where).order_by(getattr(self.model_type, order_by))
        return list(await self.session.scalars(query))

    async def count(self, *where: ColumnElement[bool]) -> int:
        """How many rows meet the conditions."""
        query = select(func.count()).select_from(self._rows().where(*where).subquery())
        return (await self.session.scalars(query)).one()

    async def add(self, row: Row) -> Row:
        """Write a new row. Raises IntegrityError."""
        self.session.add(row)
        await self.session.flush()
        return row


class TenantRepository(Repository[Tenant]):
    """All tenants: only for operators."""

    model_type = Tenant


class OwnedRepository(Repository[Owned]):
    """The rows of one tenant: every query of a subclass is restricted to them here."""

    def __init__(self, session: AsyncSession, tenant_id: UUID) -> None:
        super().__init__(session)
        self._tenant_id = tenant_id

    def _rows(self) -> Select[Owned]:
        return super()._rows().where(self.model_type.tenant_id == self._tenant_id)


class ProjectRepository(OwnedRepository[Project]):
    """One tenant's projects."""

    model_type = Project


class KeyRepository(OwnedRepository[ApiKey]):
    """One tenant's keys."""

    model_type = ApiKey


class AllKeysRepository(Repository[ApiKey]):
    """All tenants' keys: for operators and for authentication."""

    model_type = ApiKey

    async def get_with_owners(self, public_id: str) -> tuple[ApiKey, str | None, str | None] | None:
        """The key with the names of its tenant and project; an operator's key has neither."""
        query = (
            select(ApiKey, Tenant.name, Project.name)
            .outerjoin(Tenant, Tenant.id == ApiKey.tenant_id)
            .outerjoin(Project, Project.id == ApiKey.project_id)
            .where(ApiKey.public_id == public_id)
        )
        row = (await self.session.execute(query)).one_or_none()
        return None if row is None else (row[0], row[1], row[2])

    async def record_use(self, key_id: UUID, moment: datetime, *, old_secret: bool = False) -> None:
        """Write when the key was last used, and its earlier secret."""
        used = {"last_used_at": moment, **({"previous_used_at": moment} if old_secret else {})}
        await self.session.execute(update(ApiKey).where(ApiKey.id == key_id).values(used))


class Tenancy:
    """Creates, lists and revokes tenants, projects and keys, each in its own transaction.

    Every method may raise DatabaseUnavailable.
    """

    def __init__(self, database: Database, peppers: Peppers, bus: Bus) -> None:
        self._database = database
        self._peppers = peppers
        self._bus = bus

    async def create_tenant(self, name: str) -> Tenant:
        """Create a tenant. Raises NameTaken, InvalidText."""
        check_text("name", name, NAME)
        async with self._creating("tenant", name) as session:
            return await _add_tenant(session, name)

    async def open_tenant(self, name: str) -> tuple[Tenant, Project]:
        """Create a tenant with its first project, both or neither. Raises NameTaken, InvalidText."""
        check_text("name", name, NAME)
        async with self._creating("tenant", name) as session:
            tenant = await _add_tenant(session, name)
            return tenant, await _add_project(session, tenant.id, DEFAULT_PROJECT)

    async def tenant(self, name: str) -> Tenant:
        """The tenant of this name. Raises NoSuchRecord."""
        async with self._database.reading() as session:
            return _found(await TenantRepository(session).get_one_or_none(name=name), "tenant", name)

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, ordered by name."""
        async with self._database.reading() as session:
            return await TenantRepository(session).get_many(order_by="name")

    async def create_project(self, tenant_id: UUID, name: str) -> Project:
        """Create a project. Raises NameTaken, InvalidText; NoSuchRecord if there is no such tenant."""
        check_text("name", name, NAME)
        async with self._creating("project", name) as session:
            return await _add_project(session, tenant_id, name)

    async def project(self, tenant_id: UUID, name: str) -> Project:
        """The tenant's project of this name. Raises NoSuchRecord."""
        async with self._database.reading() as session:
            return _found(await ProjectRepository(session, tenant_id).get_one_or_none(name=name), "project", name)

    async def list_projects(self, tenant_id: UUID) -> list[Project]:
        """The tenant's projects, ordered by name."""
        async with self._database.reading() as session:
            return await ProjectRepository(session, tenant_id).get_many(order_by="name")

    async def create_key(
        self,
        tenant_id: UUID,
        project_id: UUID | None,
        name: str = "",
        *,
        expires_at: int | None = None,
        role: Role = "owner",
        limits: KeyLimits = NO_LIMITS,
        key_id: UUID | None = None,
    ) -> IssuedKey:
        """Create a key of a project, or without a project an admin key of the tenant, with a role.

        `expires_at` is in microseconds since the Unix epoch; without `key_id` the key gets a new one. Raises
        NoSuchRecord if the project is not the tenant's, InvalidText, InvalidKeyChange if the tenant has MOST_KEYS.
        """
        check_text("name", name, NAME, empty=True)
        issued, key = self._new_key("admin" if project_id is None else "project", name, expires_at, role, limits)
        key.tenant_id, key.project_id = tenant_id, project_id
        if key_id is not None:
            key.id = key_id
        async with self._database.transaction() as session:
            if project_id is not None:
                project = await ProjectRepository(session, tenant_id).get_one_or_none(id=project_id)
                _found(project, "project", str(project_id))
            # keys that are made at once are counted one after another
            await session.get(Tenant, tenant_id, with_for_update={"key_share": True})
            if await KeyRepository(session, tenant_id).count(ApiKey.revoked_at.is_(None)) >= MOST_KEYS:
                raise InvalidKeyChange(f"the tenant has {MOST_KEYS} keys that are not revoked: revoke some first")
            await _record(session, "key.created", await KeyRepository(session, tenant_id).add(key))
        return issued

    async def stand_in_key(self, tenant_id: UUID, project_id: UUID, person: str, name: str, *, now: int) -> ApiKey:
        """The project's key that stands for a person who asks without one. It is made, of this name, when it is first
        asked for, and anew when the last one has expired; nobody has ever seen its secret. It may be revoked by now.

        `person`: by what stays. `now`: in microseconds since the Unix epoch. Raises as `create_key`.
        """
        for renewal in count():
            key = await self._stand_in_key(tenant_id, project_id, f"{person}\0{renewal}" if renewal else person, name)
            if key.revoked_at is not None or key.expires_at is None or to_instant(key.expires_at) > now:
                return key
        raise AssertionError("unreachable")

    async def _stand_in_key(self, tenant_id: UUID, project_id: UUID, of: str, name: str) -> ApiKey:
        key_id = uuid5(project_id, of)  # of two who make it at once, one finds the other's
        found = await self._key_by_id(tenant_id, key_id)
        if found is None:
            try:
                await self.create_key(
                    tenant_id, project_id, name, limits=key_limits(scopes=["inference"]), key_id=key_id
                )
            except IntegrityError:
                log.info("the key was made at the same time", key=str(key_id))
            found = await self._key_by_id(tenant_id, key_id)
        return _found(found, "key", name)

    async def _key_by_id(self, tenant_id: UUID, key_id: UUID) -> ApiKey | None:
        async with self._database.reading() as session:
            return await KeyRepository(session, tenant_id).get_one_or_none(id=key_id)

    async def create_operator_key(
        self,
        name: str,
        *,
        expires_at: int | None = None,
        role: Role = "owner",
        limits: KeyLimits = NO_LIMITS,
        user_id: UUID | None = None,
    ) -> IssuedKey:
        """Create an operator's key. Its name is recorded with what the operator does; keys of one name are one
        person's. `user_id`: the user who this operator is.

        `expires_at` is in microseconds since the Unix epoch. Raises InvalidText.
        """
        check_text("name", name, NAME)
        issued, key = self._new_key("operator", name.strip(), expires_at, role, limits)
        key.user_id = user_id
        async with self._database.transaction() as session:
            # all tenants: an operator's key is of none
            await _record(session, "key.created", await AllKeysRepository(session).add(key))
        return issued

    def _new_key(
        self, kind: KeyKind, name: str, expires_at: int | None, role: Role, limits: KeyLimits
    ) -> tuple[IssuedKey, ApiKey]:
        # no entry: who adds the key records it
        issued, secret = generate_key()
        # no entry: whoever adds it records it
        return issued, ApiKey(
            public_id=issued.public_id,
            kind=kind,
            name=name,
            mac=self._peppers.mac(self._peppers.current, secret),
            pepper_version=self._peppers.current,
            created_at=_now(),
            expires_at=None if expires_at is None else from_instant(expires_at),
            role=None if kind == "project" else role,
            limits=encode_limits(limits),
        )

    async def key(self, public_id: str, tenant_id: UUID | None = None) -> ApiKey:
        """The key with this public id, of this tenant or for an operator (None) of anybody. Raises NoSuchRecord."""
        async with self._database.reading() as session:
            return _found(await _keys(session, tenant_id).get_one_or_none(public_id=public_id), "key", public_id)

    async def change_key(
        self,
        public_id: str,
        change: KeyChange,
        tenant_id: UUID | None = None,
        reason: str = "",
        guard: OperatorsGuard | None = None,
    ) -> ApiKey:
        """Change a key's name, end, role or limits; gateways on the bus know it at once. An operator's key keeps its
        name, which says who that is. Raises NoSuchRecord, InvalidKeyChange, InvalidText, and what `guard` raises."""
        async with self._changing(public_id, tenant_id, guard) as (session, key):
            before = description(key)
            if key.kind == "operator" and change.name not in (UNSET, key.name):
                raise InvalidKeyChange("name: an operator's key keeps its name; make another key")
            if key.kind == "project" and change.role is not UNSET:
                raise InvalidKeyChange("role: the key of a project has none")
            if not isinstance(change.name, UnsetType):
                check_text("name", change.name, NAME, empty=True)
                key.name = change.name
            if not isinstance(change.expires_at, UnsetType):
                key.expires_at = None if change.expires_at is None else from_instant(change.expires_at)
            if not isinstance(change.role, UnsetType):
                key.role = change.role
            if not isinstance(change.limits, UnsetType):
                key.limits = encode_limits(change.limits)
            await _record(session, "key.changed", key, reason, before)
        await self._announce(public_id)
        return key

    async def rotate_key(
        self, public_id: str, tenant_id: UUID | None = None, *, until: int, reason: str = ""
    ) -> tuple[IssuedKey, ApiKey]:
        """Give a key a new secret; the present one is valid `until` then (microseconds since the Unix epoch), any
        earlier one no more.

        Raises NoSuchRecord, InvalidKeyChange.
        """
        now = _now()
        longest = now + timedelta(seconds=LONGEST_OVERLAP_S)
        if from_instant(until) > longest:
            raise InvalidKeyChange(f"the old secret may live until {longest.isoformat()} at most")
        issued, secret = generate_key(public_id)
        async with self._changing(public_id, tenant_id) as (session, key):
            if key.stands_in:
                raise InvalidKeyChange(
                    f"the key {public_id} stands for somebody who asks without a key: it has no secret"
                )
            before = description(key)
            key.rotated_at = now
            key.previous_mac, key.previous_pepper_version = key.mac, key.pepper_version
            key.previous_until = max(now, from_instant(until))
            key.previous_used_at = None
            key.mac = self._peppers.mac(self._peppers.current, secret)
            key.pepper_version = self._peppers.current
            await _record(session, "key.rotated", key, reason, before)
        await self._announce(public_id)
        return issued, key

    async def list_keys(self, tenant_id: UUID) -> list[ApiKey]:
        """The tenant's keys with revoked ones, oldest first."""
        async with self._database.reading() as session:
            return await KeyRepository(session, tenant_id).get_many(order_by="created_at")

    async def list_operator_keys(self) -> list[ApiKey]:
        """The operators' keys with revoked ones, oldest first."""
        async with self._database.reading() as session:
            return await AllKeysRepository(session).get_many(ApiKey.kind == "operator", order_by="created_at")

    async def revoke(
        self,
        public_id: str,
        tenant_id: UUID | None = None,
        reason: str = "",
        guard: OperatorsGuard | None = None,
        *,
        leaked: bool = False,
    ) -> bool:
        """Revoke a key for good, with all its secrets: one of this tenant, or for an operator (None) any. `leaked`:
        somebody else may have it, so that the batches that it ordered are stopped; this is said of a key that was
        revoked before, too. Raises NoSuchRecord, and what `guard` raises.

        Every gateway on the bus drops the key from its cache at once. False if the bus was down: then they accept the
        key until their caches expire.
        """
        async with self._database.transaction() as session:
            await _ask(guard, session)
            key = await _locked_key(session, public_id, tenant_id)
            if key.revoked_at is None or (leaked and not key.leaked):
                before = description(key)
                key.revoked_at = key.revoked_at or _now()
                key.leaked = int(leaked)
                await _record(session, "key.revoked", key, reason, before)
        return await self._announce(public_id)

    @asynccontextmanager
    async def _changing(
        self, public_id: str, tenant_id: UUID | None, guard: OperatorsGuard | None = None
    ) -> AsyncIterator[tuple[AsyncSession, ApiKey]]:
        async with self._database.transaction() as session:
            await _ask(guard, session)
            key = await _locked_key(session, public_id, tenant_id)
            if key.revoked_at is not None:
                raise InvalidKeyChange(f"the key {public_id} was revoked; make another")
            yield session, key

    async def _announce(self, public_id: str) -> bool:
        return await announce(self._bus, REVOKED, public_id.encode())

    @asynccontextmanager
    async def _creating(self, kind: str, name: str) -> AsyncIterator[AsyncSession]:
        try:
            async with self._database.transaction() as session:
                yield session
        except IntegrityError as error:
            if "unique" in str(error.orig).lower():
                raise NameTaken(f"there is already a {kind} named {name!r}") from error
            raise NoSuchRecord("there is no such tenant") from error


def _found(row: Row | None, kind: str, name: str) -> Row:
    if row is None:
        raise NoSuchRecord(f"there is no {kind} {name!r}")
    return row


def _keys(session: AsyncSession, tenant_id: UUID | None) -> KeyRepository | AllKeysRepository:
    """The tenant's keys; for operators (None) everybody's."""
    if tenant_id is None:
        return AllKeysRepository(session)
    return KeyRepository(session, tenant_id)


async def _ask(guard: OperatorsGuard | None, session: AsyncSession) -> None:
    """Let `guard` look at the operators' keys, which nobody else changes until this transaction ends."""
    if guard is not None:
        # all tenants: an operator's key is of none
        operators = select(ApiKey).where(ApiKey.kind == "operator").order_by(ApiKey.id).with_for_update()
        guard((await session.scalars(operators)).all())


async def _locked_key(session: AsyncSession, public_id: str, tenant_id: UUID | None) -> ApiKey:
    """A key that is about to change: its row is locked, so that of two changes the second sees the first."""
    keys = _keys(session, tenant_id)
    return _found(await keys.get_one_or_none(public_id=public_id, with_for_update=True), "key", public_id)


def grant_of(key: ApiKey) -> KeyGrant:
    """What a key gives."""
    kind: KeyKind = key.kind  # type: ignore[assignment]
    return KeyGrant(
        kind=kind,
        tenant_id=key.tenant_id,
        project_id=key.project_id,
        role=key.role or "owner",  # type: ignore[arg-type]
        limits=decode_limits(key.limits),
        expires_at=None if key.expires_at is None else to_instant(key.expires_at),
    )


def description(key: ApiKey) -> dict[str, Any]:
    """What the audit log says of a key: nothing secret."""
    return {
        "kind": key.kind,
        "name": key.name,
        "role": key.role,
        "limits": decode_limits(key.limits or "{}"),
        "expires_at": key.expires_at,
        "old_secret_until": key.previous_until,
        "revoked_at": key.revoked_at,
        **({"leaked": True} if key.leaked else {}),
    }


async def _record(
    session: AsyncSession, action: str, key: ApiKey, reason: str = "", before: dict[str, Any] | None = None
) -> None:
    await record_change(
        session,
        action,
        target="key",
        target_id=key.public_id,
        tenant_id=key.tenant_id,
        project_id=key.project_id,
        reason=reason,
        before=before,
        after=description(key),
    )


async def _add_tenant(session: AsyncSession, name: str) -> Tenant:
    made = await TenantRepository(session).add(Tenant(name=name, created_at=_now()))
    await record_change(session, "tenant.created", target="tenant", target_id=made.id, tenant_id=made.id,
                        after={"name": name})  # fmt: skip
    return made


async def _add_project(session: AsyncSession, tenant_id: UUID, name: str) -> Project:
    project = Project(tenant_id=tenant_id, name=name, created_at=_now())
    made = await ProjectRepository(session, tenant_id).add(project)
    await record_change(session, "project.created", target="project", target_id=made.id,
                        tenant_id=tenant_id, project_id=made.id, after={"name": name})  # fmt: skip
    return made


def _now() -> datetime:
    return clock.moment()

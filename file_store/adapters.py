"""Keeps the adapters of projects: which a project has of which served model, and what they change.

An adapter's content is a hidden file, sealed under the project's data key: with that key it is gone. Names of other
projects are as unknown as names that never were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, exists, func, insert, select
from sqlalchemy.exc import IntegrityError

from audit_log.record import record_change
from file_store.sealed_content import ContentReader
from file_store.store import HIDDEN, FileStore, NewFile, QuotaExceeded, StoredFile
from file_store.tables import adapter, stored_file
from storage.database.public_ids import public_id

MOST_ADAPTERS = 200
"""Adapters that a project may keep."""
_OF = adapter.c


class NameTaken(Exception):
    """The project has an adapter of this model under this name."""


class AdapterFacts(Struct, frozen=True, kw_only=True):
    """What an adapter changes. `targets`: kinds of layers; `invocation`: the tokens from which on it acts, if any."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    layers: int
    invocation: tuple[int, ...] = ()


class StoredAdapter(Struct, frozen=True, kw_only=True):
    """An adapter, without its content. `model`: the served model that it changes; `created_at` in microseconds."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    model: str
    name: str
    digest: str
    facts: AdapterFacts
    bytes: int
    created_at: int

    @property
    def full_name(self) -> str:
        """What requests ask for, and what it is billed and reported under."""
        return f"{self.model}:{self.name}"


class AdapterStore:
    """The adapters of all projects, whose contents lie among `files`."""

    def __init__(self, files: FileStore) -> None:
        self.files = files
        self._database = files.database

    async def save(self, new: StoredAdapter) -> StoredAdapter:
        """Keep an adapter whose content is durable, in the file of its id. Raises NameTaken, QuotaExceeded,
        ScopeKeyUnreadable, DatabaseUnavailable."""
        file = NewFile(
            id=new.id, tenant_id=new.tenant_id, project_id=new.project_id, purpose=HIDDEN, filename=new.name,
            bytes=new.bytes, lifetime_s=None,
        )  # fmt: skip
        seal = await self.files.seal_of(new.tenant_id, new.project_id)
        try:
            async with self._database.transaction() as session:
                await self.files.add(session, file, seal)
                own = (_OF.tenant_id == new.tenant_id, _OF.project_id == new.project_id)
                count = await session.scalar(select(func.count()).select_from(adapter).where(*own))
                if (count or 0) >= MOST_ADAPTERS:
                    raise QuotaExceeded
                saved = msgspec.structs.replace(new, created_at=await self._database.now_in(session))
                row = msgspec.structs.asdict(saved) | {"facts": msgspec.json.encode(saved.facts)}
                await session.execute(insert(adapter).values(row))
                said = {"model": new.model, "name": new.name, "digest": new.digest, "bytes": new.bytes}
                await record_change(session, "adapter.created", target="adapter", target_id=new.id,
                                    tenant_id=new.tenant_id, project_id=new.project_id, after=said)  # fmt: skip
        except IntegrityError as error:
            raise NameTaken from error
        return saved

    async def named(self, tenant_id: UUID, project_id: UUID, model: str, name: str) -> StoredAdapter | None:
        """A project's adapter of a served model. Raises DatabaseUnavailable."""
        return await self._one(_OF.tenant_id == tenant_id, _OF.project_id == project_id, _OF.model == model,
                               _OF.name == name)  # fmt: skip

    async def get(self, tenant_id: UUID, project_id: UUID | None, id_: UUID) -> StoredAdapter | None:
        """An adapter of a project, or without one of the tenant. Raises DatabaseUnavailable."""
        of_project = [] if project_id is None else [_OF.project_id == project_id]
        return await self._one(_OF.tenant_id == tenant_id, _OF.id == id_, *of_project)

    async def page(
        self, tenant_id: UUID, projects: Collection[UUID] | None, *, limit: int, after: UUID | None = None
    ) -> list[StoredAdapter]:
        """The adapters of these projects, or of all of the tenant, that follow `after`, the newest first. Raises
        DatabaseUnavailable."""
        query = select(adapter).where(_OF.tenant_id == tenant_id, self._there())
        if projects is not None:
            query = query.where(_OF.project_id.in_(projects))
        if after is not None:
            query = query.where(_OF.id < after)
        async with self._database.reading() as session:
            rows = (await session.execute(query.order_by(_OF.id.desc()).limit(limit))).all()
        return [_stored(row._asdict()) for row in rows]

    async def of_digests(self, keys: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], StoredAdapter]:
        """The adapters of these projects with these digests, by both; of several the oldest. Raises
        DatabaseUnavailable."""
        # all tenants: a replica holds adapters of several
        query = select(adapter).where(_OF.digest.in_({digest for _, digest in keys})).order_by(_OF.id.desc())
        async with self._database.reading() as session:
            rows = (await session.execute(query)).all() if keys else []
        found = {(row.project_id, row.digest): _stored(row._asdict()) for row in rows}
        return {key: found[key] for key in keys if key in found}

    async def all(self, tenant_id: UUID, project_id: UUID) -> list[StoredAdapter]:
        """All of a project's adapters, the newest first. Raises DatabaseUnavailable."""
        query = select(adapter).where(_OF.tenant_id == tenant_id, _OF.project_id == project_id, self._there())
        async with self._database.reading() as session:
            rows = (await session.execute(query.order_by(_OF.id.desc()))).all()
        return [_stored(row._asdict()) for row in rows]

    async def count_by_model(self) -> dict[str, int]:
        """How many adapters all projects have of each served model. Raises DatabaseUnavailable."""
        # all tenants: for who operates the fleet
        query = select(_OF.model, func.count()).where(self._there()).group_by(_OF.model)
        async with self._database.reading() as session:
            return {row[0]: row[1] for row in await session.execute(query)}

    async def reader(self, tenant_id: UUID, project_id: UUID, id_: UUID, size: int) -> ContentReader:
        """What reads the content of an adapter, of `size` bytes. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        file = StoredFile(
            id=id_, tenant_id=tenant_id, project_id=project_id, purpose=HIDDEN, filename="", bytes=size, created_at=0,
            expires_at=None,
        )  # fmt: skip
        return await self.files.content(file)

    async def delete(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> StoredAdapter | None:
        """Delete a project's adapter; None if there is none. Raises DatabaseUnavailable, OSError."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self._database.transaction() as session:
            row = (await session.execute(delete(adapter).where(*own).returning(*_OF))).one_or_none()
            if row is None:
                return None
            gone = _stored(row._asdict())
            owned = (stored_file.c.id == id_, stored_file.c.tenant_id == tenant_id)
            await session.execute(delete(stored_file).where(*owned))
            said = {"model": gone.model, "name": gone.name, "digest": gone.digest}
            await record_change(session, "adapter.deleted", target="adapter", target_id=public_id("adapter", id_),
                                tenant_id=tenant_id, project_id=project_id, before=said)  # fmt: skip
        await self.files.discard(id_)
        return gone

    async def has_digest(self, tenant_id: UUID, project_id: UUID, digest: str) -> bool:
        """Whether the project still has an adapter of this digest. Raises DatabaseUnavailable."""
        own = (_OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self._database.reading() as session:
            return bool(await session.scalar(select(exists().where(*own, _OF.digest == digest))))

    async def _one(self, *where: ColumnElement[bool]) -> StoredAdapter | None:
        # all tenants: who asks gives the tenant's condition
        async with self._database.reading() as session:
            row = (await session.execute(select(adapter).where(*where, self._there()))).one_or_none()
        return None if row is None else _stored(row._asdict())

    def _there(self) -> ColumnElement[bool]:
        return exists().where(stored_file.c.id == _OF.id, stored_file.c.tenant_id == _OF.tenant_id)


def _stored(row: Mapping[str, Any]) -> StoredAdapter:
    fields = dict(row)
    facts = msgspec.json.decode(fields.pop("facts"), type=AdapterFacts)
    return StoredAdapter(facts=facts, **fields)

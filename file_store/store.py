"""Keeps the files of projects: who has which, how many bytes a project may keep, and until when.

Ids of other projects are as unknown as ids that never were. A file whose project's data key was destroyed is gone: it
opens no more, and is swept away with its row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, Row, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from file_store.blobs import Blobs
from file_store.sealed_content import ContentReader, ContentWriter
from file_store.tables import adapter, file_reservation, stored_file, upload, upload_part
from prompt_cache.promise.scope_keys import ScopeKeys
from prompt_cache.tables import cache_scope_key
from response_store.sealing import ContentSeal, Unreadable
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.public_ids import public_id
from storage.database.sql_arrays import one_of

Purpose: TypeAlias = Literal["batch", "batch_output", "user_data", "message_batch"]
HIDDEN: Purpose = "message_batch"
"""The purpose of files that are a batch's own, or the content of adapters, which nobody lists or reads."""
MOST_FILES = 50_000
"""Files that a project may keep: one without content takes no bytes, but a row and a file of the disk."""
RESERVED_S = 3600
"""How long room is kept for a file whose upload comes to no end. A slower one is counted anew when it is saved."""
FORGOTTEN = 100
"""Files that are removed at a time."""
STRAY_S = 86_400.0
"""A blob without a row that is as old as this belongs to an upload that came to no end."""
_LOOKED_UP = 1000
_SECOND = 1_000_000
_OF, _ROOM = stored_file.c, file_reservation.c


class QuotaExceeded(Exception):
    """The project would keep more bytes, or more files, than it may."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file, without its content. Instants are microseconds since the Unix epoch."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    purpose: Purpose
    filename: str
    mime_type: str | None = None
    bytes: int
    created_at: int
    expires_at: int | None


class NewFile(Struct, frozen=True, kw_only=True):
    """A file whose content is written. `lifetime_s`: None for ever."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    purpose: Purpose
    filename: str
    mime_type: str | None = None
    bytes: int
    lifetime_s: int | None


class Room(Struct, frozen=True):
    """Room for a file to come, and the id that it will have."""

    id: UUID
    bytes: int


class FileStore:
    """The files of all projects. `keys` are the projects' data keys; a project may keep `quota` bytes."""

    def __init__(self, database: Database, keys: ScopeKeys, blobs: Blobs, quota: int) -> None:
        self.database = database
        self.quota = quota
        self._keys = keys
        self._blobs = blobs

    async def seal_of(self, tenant_id: UUID, project_id: UUID) -> ContentSeal:
        """What seals a project's content. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        return ContentSeal(await self._keys.load(tenant_id, project_id), project_id)

    async def reserve(self, tenant_id: UUID, project_id: UUID, most: int, least: int = 0) -> Room:
        """Keep room for one more file of up to `most` bytes, or as many as are left, before its content comes, so that
        files which come at once pass the quota as little as one after the other. `least`: it surely has as many. Raises
        QuotaExceeded, DatabaseUnavailable."""
        async with self.database.transaction() as session:
            await self.database.lock_rows_of(session, stored_file, project_id)
            left = await self._left(session, tenant_id, project_id)
            if least > left:
                raise QuotaExceeded
            room = Room(new_id(), min(most, left))
            until = await self.database.now_in(session) + RESERVED_S * _SECOND
            row = {"id": room.id, "tenant_id": tenant_id, "project_id": project_id, "bytes": room.bytes, "until": until}
            await session.execute(insert(file_reservation).values(row))
        return room

    async def release(self, tenant_id: UUID, project_id: UUID, room: Room) -> None:
        """Keep the room no longer: the file does not come. Raises DatabaseUnavailable."""
        async with self.database.transaction() as session:
            await self._drop_room(session, tenant_id, project_id, room.id)

    async def begin(self, tenant_id: UUID, project_id: UUID, room: Room | None = None) -> tuple[UUID, ContentWriter]:
        """A new file's id, which is that of its room, and what writes its content. Raises ScopeKeyUnreadable,
        DatabaseUnavailable, OSError."""
        identity = new_id() if room is None else room.id
        seal = await self.seal_of(tenant_id, project_id)
        return identity, ContentWriter(identity, seal, await self._blobs.create(identity.hex))

    async def save(self, new: NewFile) -> StoredFile:
        """Keep a file that was uploaded and whose content is durable. Raises QuotaExceeded, ScopeKeyUnreadable,
        DatabaseUnavailable."""
        seal = await self.seal_of(new.tenant_id, new.project_id)
        async with self.database.transaction() as session:
            await self._take_room(session, new)
            await self.insert_uploaded(session, new, seal)
        found = await self.get(new.tenant_id, new.project_id, new.id)
        assert found is not None, "it was written just now"
        return found

    async def add(self, session: AsyncSession, new: NewFile, seal: ContentSeal) -> None:
        """Write the row of a file in its room, or where there is room without one, in a transaction of the caller's.
        Raises QuotaExceeded."""
        await self._take_room(session, new)
        await self.insert(session, new, seal)

    async def check_room(self, session: AsyncSession, tenant_id: UUID, project_id: UUID, size: int) -> None:
        """Raise QuotaExceeded unless a project has room for one more file of this size, in a transaction of the
        caller's that locked the project's files."""
        if size > await self._left(session, tenant_id, project_id):
            raise QuotaExceeded

    async def insert_uploaded(self, session: AsyncSession, new: NewFile, seal: ContentSeal) -> None:
        """Write the row of a file that a client made, and that it did, in a transaction of the caller's."""
        await self.insert(session, new, seal)
        said = {"purpose": new.purpose, "bytes": new.bytes}
        await record_change(session, "file.created", target="file", target_id=public_id("file", new.id),
                            tenant_id=new.tenant_id, project_id=new.project_id, after=said)  # fmt: skip

    async def insert(self, session: AsyncSession, new: NewFile, seal: ContentSeal) -> None:
        """Write the row of a file that we made, in a transaction of the caller's, whether there is room or not."""
        now = await self.database.now_in(session)
        row = {
            "id": new.id,
            "tenant_id": new.tenant_id,
            "project_id": new.project_id,
            "key_generation": seal.generation,
            "purpose": new.purpose,
            "filename": seal.seal(new.filename.encode(), _name_of(new.id)),
            "mime_type": new.mime_type,
            "bytes": new.bytes,
            "created_at": now,
            "expires_at": None if new.lifetime_s is None else now + new.lifetime_s * _SECOND,
        }
        await session.execute(insert(stored_file).values(row))

    async def keep_until(self, session: AsyncSession, tenant_id: UUID, project_id: UUID, id_: UUID, until: int) -> None:
        """Let a file that is to expire earlier be kept until this instant, in a transaction of the caller's."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id, _OF.expires_at < until)
        await session.execute(update(stored_file).where(*own).values(expires_at=until))

    async def get(self, tenant_id: UUID, project_id: UUID | None, id_: UUID) -> StoredFile | None:
        """A file of a project, or without one of the tenant. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        query = select(stored_file).where(_OF.id == id_, _OF.tenant_id == tenant_id, self._alive())
        query = query if project_id is None else query.where(_OF.project_id == project_id)
        async with self.database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else _opened(row, await self.seal_of(tenant_id, row.project_id))

    async def page(
        self,
        tenant_id: UUID,
        projects: UUID | Collection[UUID] | None,
        *,
        limit: int,
        after: UUID | None = None,
        purpose: str | None = None,
        ascending: bool = False,
        ids: Sequence[UUID] | None = None,
    ) -> list[StoredFile]:
        """The files of these projects, or of all of the tenant, but for hidden ones, the newest first or last, that
        follow `after`. `ids`: only these. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        query = select(stored_file).where(_OF.tenant_id == tenant_id, self._alive())
        if projects is not None:
            query = query.where(_OF.project_id.in_([projects] if isinstance(projects, UUID) else projects))
        query = query.where(_OF.purpose != HIDDEN if purpose is None else _OF.purpose == purpose)
        if ids is not None:
            query = query.where(one_of(self.database, _OF.id, ids))
        if after is not None:
            query = query.where(_OF.id > after if ascending else _OF.id < after)
        async with self.database.reading() as session:
            order = _OF.id if ascending else _OF.id.desc()
            rows = (await session.execute(query.order_by(order).limit(limit))).all()
        seals = {of: await self.seal_of(tenant_id, of) for of in {row.project_id for row in rows}}
        return [found for row in rows if (found := _opened(row, seals[row.project_id])) is not None]

    async def content(self, file: StoredFile) -> ContentReader:
        """What reads a file's content. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        return await self.reader(file.tenant_id, file.project_id, file.id, file.bytes)

    async def reader(self, tenant_id: UUID, project_id: UUID, id_: UUID, size: int) -> ContentReader:
        """What reads the content of this id, of a project's. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        return ContentReader(id_, size, await self.seal_of(tenant_id, project_id), self._blobs)

    async def record_reading(self, of: StoredFile) -> None:
        """Record that somebody of the tenant reads a file's content. Raises DatabaseUnavailable."""
        async with self.database.transaction() as session:
            await record_change(session, "file.read", target="file", target_id=public_id("file", of.id),
                                tenant_id=of.tenant_id, project_id=of.project_id)  # fmt: skip

    async def delete(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> bool:
        """Delete a project's file; False if there is none. Raises DatabaseUnavailable, OSError."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self.database.transaction() as session:
            gone = (await session.execute(delete(stored_file).where(*own).returning(_OF.id))).all()
            if gone:
                await record_change(session, "file.deleted", target="file", target_id=public_id("file", id_),
                                    tenant_id=tenant_id, project_id=project_id)  # fmt: skip
        if gone:
            await self._blobs.remove(id_.hex)
        return bool(gone)

    async def discard(self, id_: UUID) -> None:
        """Remove the content of a file that has no row. Raises OSError."""
        await self._blobs.remove(id_.hex)

    async def used_bytes(self, tenant_id: UUID, project_id: UUID) -> int:
        """How much a project keeps, and has reserved for uploads. Raises DatabaseUnavailable."""
        async with self.database.reading() as session:
            return await self._used(session, tenant_id, project_id)

    async def forget(self) -> int:
        """Remove files that have expired, or whose project's data key was destroyed, FORGOTTEN at a time, and blobs
        that no row names; how many. Raises DatabaseUnavailable, OSError."""
        # all tenants: time passes for everybody
        key = cache_scope_key.c
        living = (key.project_id == _OF.project_id, key.generation == _OF.key_generation, key.wrapped_key.is_not(None))
        over = or_(_OF.expires_at <= self.database.clock, ~exists().where(*living))
        async with self.database.transaction() as session:
            ids = list((await session.execute(select(_OF.id).where(over).limit(FORGOTTEN))).scalars())
            if ids:
                await session.execute(delete(stored_file).where(one_of(self.database, _OF.id, ids)))
                await session.execute(delete(adapter).where(one_of(self.database, adapter.c.id, ids)))
            await session.execute(delete(file_reservation).where(_ROOM.until <= self.database.clock))
        for identity in ids:
            await self._blobs.remove(identity.hex)
        return len(ids) + await self._remove_strays()

    async def _remove_strays(self) -> int:
        names = await self._blobs.names_before(STRAY_S)
        removed = 0
        for begin in range(0, len(names), _LOOKED_UP):
            looked_up = names[begin : begin + _LOOKED_UP]
            # all tenants: a blob's name says not whose it is
            async with self.database.reading() as session:
                wanted = [UUID(name) for name in looked_up]
                found = [
                    select(column).where(one_of(self.database, column, wanted)) for column in (_OF.id, upload_part.c.id)
                ]
                ids = {identity.hex for query in found for identity in (await session.execute(query)).scalars()}
            for name in looked_up:
                if name not in ids and removed < FORGOTTEN:
                    await self._blobs.remove(name)
                    removed += 1
        return removed

    async def _used(self, session: AsyncSession, tenant_id: UUID, project_id: UUID) -> int:
        kept = select(func.sum(_OF.bytes)).where(_OF.tenant_id == tenant_id, _OF.project_id == project_id)
        reserved = select(func.sum(upload.c.bytes)).where(*self.pending_uploads(tenant_id, project_id))
        return int(await session.scalar(kept) or 0) + int(await session.scalar(reserved) or 0)

    async def _count(self, session: AsyncSession, tenant_id: UUID, project_id: UUID) -> int:
        kept = select(func.count()).select_from(stored_file)
        kept = kept.where(_OF.tenant_id == tenant_id, _OF.project_id == project_id)
        reserved = select(func.count()).select_from(upload).where(*self.pending_uploads(tenant_id, project_id))
        return (await session.scalar(kept) or 0) + (await session.scalar(reserved) or 0)

    async def _left(self, session: AsyncSession, tenant_id: UUID, project_id: UUID) -> int:
        """For how many bytes there is room. Raises QuotaExceeded if there is none for another file."""
        rooms = select(func.count(), func.coalesce(func.sum(_ROOM.bytes), 0)).where(
            _ROOM.tenant_id == tenant_id, _ROOM.project_id == project_id, _ROOM.until > self.database.clock
        )
        to_come, reserved = (await session.execute(rooms)).one()
        left = self.quota - await self._used(session, tenant_id, project_id) - int(reserved)
        if left < 0 or await self._count(session, tenant_id, project_id) + to_come >= MOST_FILES:
            raise QuotaExceeded
        return left

    async def _take_room(self, session: AsyncSession, new: NewFile) -> None:
        """Use the file's own room, or what is left. Raises QuotaExceeded."""
        await self.database.lock_rows_of(session, stored_file, new.project_id)
        await self._drop_room(session, new.tenant_id, new.project_id, new.id)
        await self.check_room(session, new.tenant_id, new.project_id, new.bytes)

    async def _drop_room(self, session: AsyncSession, tenant_id: UUID, project_id: UUID, id_: UUID) -> None:
        own = (_ROOM.id == id_, _ROOM.tenant_id == tenant_id, _ROOM.project_id == project_id)
        await session.execute(delete(file_reservation).where(*own))

    def pending_uploads(self, tenant_id: UUID, project_id: UUID) -> tuple[ColumnElement[bool], ...]:
        """The condition that a row is an upload of the project which may still become a file."""
        of = upload.c
        own = (of.tenant_id == tenant_id, of.project_id == project_id)
        return (*own, of.status == "pending", of.expires_at > self.database.clock)

    def _alive(self) -> Any:
        return or_(_OF.expires_at.is_(None), _OF.expires_at > self.database.clock)


def _opened(row: Row[Any], seal: ContentSeal) -> StoredFile | None:
    try:
        filename = seal.open(row.filename, _name_of(row.id)).decode()
    except Unreadable:
        return None
    return StoredFile(
        id=row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        purpose=row.purpose,
        filename=filename,
        mime_type=row.mime_type,
        bytes=row.bytes,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


def _name_of(id_: UUID) -> bytes:
    return id_.bytes + b"filename"

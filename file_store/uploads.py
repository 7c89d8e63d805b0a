"""Files that come in parts: an upload reserves its bytes, parts come in any order, and their list makes the file.

A part is a blob of its own, sealed as a file is. Completing an upload writes the parts' content as one blob and then,
in one transaction, the file's row in place of the reservation: whatever dies between, the parts are still there. Ids of
other projects are as unknown as ids that never were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

from msgspec import Struct
from sqlalchemy import Row, delete, exists, func, insert, select, update

from file_store.blobs import BlobMissing
from file_store.sealed_content import ContentWriter
from file_store.store import FORGOTTEN, FileStore, NewFile
from file_store.tables import stored_file, upload, upload_part
from response_store.sealing import ContentSeal, Unreadable
from storage.database.base import new_id
from storage.database.sql_arrays import one_of

LIFETIME_S = 3600
"""How long an upload may take."""
MOST_PART_BYTES = 64 * 1024 * 1024
MOST_PARTS = 1000
MOST_PENDING = 100
"""Parts of an upload; uploads of a project that are neither completed nor cancelled."""
_MOST_JOINED, _MOST_JOINED_OF_TENANT = 8, 2
"""Uploads whose parts are copied into their file at a time: each takes the file's bytes once more until then."""
_KEPT_S = 86_400
"""How long the row of an upload stays after its end, so that a repeated call is told how it ended."""
_SECOND = 1_000_000
_OF, _PART = upload.c, upload_part.c
Purpose: TypeAlias = Literal["batch", "user_data"]
UploadStatus: TypeAlias = Literal["pending", "completed", "cancelled", "expired"]


class TooManyUploads(Exception):
    """The project has MOST_PENDING uploads that are pending."""


class TooManyJoined(Exception):
    """_MOST_JOINED uploads are being completed here, or _MOST_JOINED_OF_TENANT of the tenant."""


class UploadOver(Exception):
    """The upload is not pending any more."""


class TooManyParts(Exception):
    """The upload has MOST_PARTS parts."""


class UploadFull(Exception):
    """The parts would have more bytes than the upload was made for."""


class PartUnknown(Exception):
    """A part that the upload does not have, or that was listed before; `place`: in the list, from 0."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class WrongSize(Exception):
    """The listed parts together do not have the upload's bytes; `size`: how many they have."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class WrongDigest(Exception):
    """The content has another MD5 than its client said."""


class NewUpload(Struct, frozen=True, kw_only=True):
    """An upload to be begun. `lifetime_s`: of its file; None for ever."""

    tenant_id: UUID
    project_id: UUID
    purpose: Purpose
    filename: str
    mime_type: str
    bytes: int
    lifetime_s: int | None


class Upload(Struct, frozen=True, kw_only=True):
    """An upload as it stands. Instants are microseconds since the Unix epoch."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    purpose: Purpose
    filename: str
    mime_type: str
    bytes: int
    lifetime_s: int | None
    status: UploadStatus
    file_id: UUID | None
    created_at: int
    expires_at: int


class UploadStore:
    """The uploads of all projects. Every method may raise DatabaseUnavailable."""

    def __init__(self, files: FileStore) -> None:
        self.files = files
        self._database = files.database
        self._joined: list[UUID] = []

    async def create(self, new: NewUpload) -> Upload:
        """Begin an upload. Raises QuotaExceeded, TooManyUploads, ScopeKeyUnreadable."""
        seal, identity = await self.files.seal_of(new.tenant_id, new.project_id), new_id()
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, stored_file, new.project_id)
            pending = select(func.count()).select_from(upload)
            pending = pending.where(*self.files.pending_uploads(new.tenant_id, new.project_id))
            if (await session.scalar(pending) or 0) >= MOST_PENDING:
                raise TooManyUploads
            await self.files.check_room(session, new.tenant_id, new.project_id, new.bytes)
            now = await self._database.now_in(session)
            row = {
                "id": identity,
                "tenant_id": new.tenant_id,
                "project_id": new.project_id,
                "purpose": new.purpose,
                "filename": seal.seal(new.filename.encode(), _name_of(identity)),
                "mime_type": new.mime_type,
                "bytes": new.bytes,
                "lifetime_s": new.lifetime_s,
                "status": "pending",
                "created_at": now,
                "expires_at": now + LIFETIME_S * _SECOND,
            }
            await session.execute(insert(upload).values(row))
        found = await self.get(new.tenant_id, new.project_id, identity)
        assert found is not None, "it was written just now"
        return found

    async def get(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> Upload | None:
        """A project's upload. Raises ScopeKeyUnreadable."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self._database.reading() as session:
            row = (await session.execute(select(upload).where(*own))).one_or_none()
            now = await self._database.now_in(session)
        return None if row is None else _opened(row, await self.files.seal_of(tenant_id, project_id), now)

    async def room(self, of: Upload) -> int:
        """The most bytes that the next part may have. Raises UploadOver, TooManyParts."""
        if of.status != "pending":
            raise UploadOver
        async with self._database.reading() as session:
            count, size = (await session.execute(self._sums(of))).one()
        if count >= MOST_PARTS:
            raise TooManyParts
        return min(MOST_PART_BYTES, of.bytes - int(size or 0))

    async def begin_part(self, of: Upload) -> tuple[UUID, ContentWriter]:
        """A new part's id, and what writes its content. Raises ScopeKeyUnreadable, OSError."""
        return await self.files.begin(of.tenant_id, of.project_id)

    async def save_part(self, of: Upload, part_id: UUID, size: int) -> int:
        """Keep a part whose content is durable; the instant at which it was. Raises UploadOver, TooManyParts,
        UploadFull."""
        async with self._database.transaction() as session:
            pending = self.files.pending_uploads(of.tenant_id, of.project_id)
            if await session.scalar(select(_OF.id).where(_OF.id == of.id, *pending).with_for_update()) is None:
                raise UploadOver
            count, sizes = (await session.execute(self._sums(of))).one()
            if count >= MOST_PARTS:
                raise TooManyParts
            if int(sizes or 0) + size > of.bytes:
                raise UploadFull
            now = await self._database.now_in(session)
            row = {"id": part_id, "upload_id": of.id, "tenant_id": of.tenant_id, "bytes": size, "created_at": now}
            await session.execute(insert(upload_part).values(row))
        return now

    async def complete(self, of: Upload, part_ids: Sequence[UUID], md5: str | None) -> Upload:
        """Make the file of the parts, in this order. An upload that is completed already stays as it is. Raises
        UploadOver, PartUnknown, WrongSize, WrongDigest, TooManyJoined, ScopeKeyUnreadable, Unreadable, OSError."""
        if of.status == "completed":
            return of
        if of.status != "pending":
            raise UploadOver
        sizes = await self._sizes(of)
        for place, part in enumerate(part_ids):
            if part not in sizes or part in part_ids[:place]:
                raise PartUnknown(place)
        if (size := sum(sizes[part] for part in part_ids)) != of.bytes:
            raise WrongSize(size)
        if len(self._joined) >= _MOST_JOINED or self._joined.count(of.tenant_id) >= _MOST_JOINED_OF_TENANT:
            raise TooManyJoined
        self._joined.append(of.tenant_id)
        try:
            return await self._make_file(of, [(part, sizes[part]) for part in part_ids], md5)
        finally:
            self._joined.remove(of.tenant_id)

    async def cancel(self, of: Upload) -> bool:
        """Give up an upload and its reservation; False if it is not pending. Raises OSError."""
        async with self._database.transaction() as session:
            pending = self.files.pending_uploads(of.tenant_id, of.project_id)
            asked = update(upload).where(_OF.id == of.id, *pending).values(status="cancelled").returning(_OF.id)
            if (await session.execute(asked)).one_or_none() is None:
                return False
            own = (_PART.upload_id == of.id, _PART.tenant_id == of.tenant_id)
            gone = list((await session.execute(delete(upload_part).where(*own).returning(_PART.id))).scalars())
        for part in gone:
            await self.files.discard(part)
        return True

    async def forget(self) -> int:
        """Remove parts of uploads that have expired, FORGOTTEN at a time, and uploads that ended long ago; how many.
        Raises OSError."""
        # all tenants: time passes for everybody
        async with self._database.transaction() as session:
            now = await self._database.now_in(session)
            live = (_OF.id == _PART.upload_id, _OF.status == "pending", _OF.expires_at > now)
            stale = select(_PART.id).where(~exists().where(*live)).limit(FORGOTTEN)
            parts = list((await session.execute(stale)).scalars())
            if parts:
                await session.execute(delete(upload_part).where(one_of(self._database, _PART.id, parts)))
            old = select(_OF.id).where(_OF.expires_at < now - _KEPT_S * _SECOND).limit(FORGOTTEN)
            uploads = list((await session.execute(old)).scalars())
            if uploads:
                await session.execute(delete(upload).where(one_of(self._database, _OF.id, uploads)))
        for part in parts:
            await self.files.discard(part)
        return len(parts) + len(uploads)

    async def _sizes(self, of: Upload) -> dict[UUID, int]:
        query = select(_PART.id, _PART.bytes).where(_PART.upload_id == of.id, _PART.tenant_id == of.tenant_id)
        async with self._database.reading() as session:
            return {row.id: row.bytes for row in await session.execute(query)}

    def _sums(self, of: Upload) -> Any:
        sums = select(func.count(), func.sum(_PART.bytes))
        return sums.where(_PART.upload_id == of.id, _PART.tenant_id == of.tenant_id)

    async def _make_file(self, of: Upload, parts: Sequence[tuple[UUID, int]], md5: str | None) -> Upload:
        file_id, writer = await self.files.begin(of.tenant_id, of.project_id)
        try:
            digest = await self._join(of, parts, writer)
            if md5 is not None and digest != md5.lower():
                raise WrongDigest
            await writer.commit()
        except BlobMissing:  # another call completed the upload, or cancelled it
            await writer.discard()
            return await self._ended_meanwhile(of)
        except BaseException:
            await writer.discard()
            raise
        if not await self._finish(of, file_id):
            await self.files.discard(file_id)
            return await self._ended_meanwhile(of)
        found = await self.get(of.tenant_id, of.project_id, of.id)
        assert found is not None, "it was written just now"
        return found

    async def _join(self, of: Upload, parts: Sequence[tuple[UUID, int]], writer: ContentWriter) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        for part, size in parts:
            reader = await self.files.reader(of.tenant_id, of.project_id, part, size)
            async for piece in reader.pieces():
                digest.update(piece)
                await writer.append(piece)
        return digest.hexdigest()

    async def _finish(self, of: Upload, file_id: UUID) -> bool:
        """Put the file in the place of the reservation; False if the upload is not pending any more."""
        seal = await self.files.seal_of(of.tenant_id, of.project_id)
        new = NewFile(
            id=file_id,
            tenant_id=of.tenant_id,
            project_id=of.project_id,
            purpose=of.purpose,
            filename=of.filename,
            mime_type=of.mime_type,
            bytes=of.bytes,
            lifetime_s=of.lifetime_s,
        )
        async with self._database.transaction() as session:
            pending = self.files.pending_uploads(of.tenant_id, of.project_id)
            values = {"status": "completed", "file_id": file_id}
            asked = update(upload).where(_OF.id == of.id, *pending).values(values).returning(_OF.id)
            if (await session.execute(asked)).one_or_none() is None:
                return False
            await self.files.insert_uploaded(session, new, seal)
            own = (_PART.upload_id == of.id, _PART.tenant_id == of.tenant_id)
            gone = list((await session.execute(delete(upload_part).where(*own).returning(_PART.id))).scalars())
        for part in gone:
            await self.files.discard(part)
        return True

    async def _ended_meanwhile(self, of: Upload) -> Upload:
        found = await self.get(of.tenant_id, of.project_id, of.id)
        if found is None or found.status != "completed":
            raise UploadOver
        return found


def _opened(row: Row[Any], seal: ContentSeal, now: int) -> Upload | None:
    try:
        filename = seal.open(row.filename, _name_of(row.id)).decode()
    except Unreadable:
        return None
    expired = row.status == "pending" and row.expires_at <= now
    return Upload(
        id=row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        purpose=row.purpose,
        filename=filename,
        mime_type=row.mime_type,
        bytes=row.bytes,
        lifetime_s=row.lifetime_s,
        status="expired" if expired else row.status,
        file_id=row.file_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


def _name_of(id_: UUID) -> bytes:
    return id_.bytes + b"upload-filename"

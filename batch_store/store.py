"""The batches of projects: ordered, listed, cancelled, deleted. Ids of other projects are as unknown as ids that never
were."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from batch_store.records import UNFINISHED, Batch, BatchProblem, Line, NewBatch, Tokens
from batch_store.tables import batch, batch_line, batch_part
from file_store.store import FileStore, NewFile
from response_store.sealing import ContentSeal, Unreadable
from storage.database.base import least_id
from storage.database.public_ids import public_id

MOST_UNFINISHED = 100
"""Batches of a project that have not ended."""
_SECOND = 1_000_000
_AFTER_WINDOW_S = 86_400
"""An input is kept for so long after the batch expires: it is read once more when the batch is ended."""
_KEPT_S = 180 * 86_400
_FORGOTTEN = 500
_INSERTED = 1000
_OF = batch.c
_SAME = tuple(name for name in Batch.__struct_fields__ if name not in ("tokens", "metadata", "problems"))


class TooManyBatches(Exception):
    """The project has MOST_UNFINISHED batches that have not ended."""


class BatchStore:
    """The batches of all projects, with the files of their input and results."""

    def __init__(self, files: FileStore) -> None:
        self.files = files
        self.database = files.database

    async def order(self, new: NewBatch, own_file: NewFile | None = None, lines: list[Line] | None = None) -> Batch:
        """Let a batch be run. `own_file`: its input, where that is not a file of the project's; `lines`: those of the
        input, where they are known. Raises TooManyBatches, QuotaExceeded, ScopeKeyUnreadable, DatabaseUnavailable."""
        seal = await self.files.seal_of(new.tenant_id, new.project_id)
        async with self.database.transaction() as session:
            await self.database.lock_rows_of(session, batch, new.project_id)
            unfinished = select(func.count()).select_from(batch)
            unfinished = unfinished.where(
                _OF.tenant_id == new.tenant_id, _OF.project_id == new.project_id, _OF.status.in_(UNFINISHED)
            )
            if (await session.scalar(unfinished) or 0) >= MOST_UNFINISHED:
                raise TooManyBatches
            if own_file is not None:
                await self.files.add(session, own_file, seal)
            now = await self.database.now_in(session)
            until = now + (new.window_s + _AFTER_WINDOW_S) * _SECOND
            await self.files.keep_until(session, new.tenant_id, new.project_id, new.input_file_id, until)
            row = {
                name: getattr(new, name) for name in NewBatch.__struct_fields__ if name not in ("metadata", "window_s")
            }
            row |= {
                "status": "validating" if lines is None else "in_progress",
                "details": seal.seal(msgspec.json.encode(new.metadata), details_of(new.id)),
                "created_at": now,
                "expires_at": now + new.window_s * _SECOND,
                "in_progress_at": None if lines is None else now,
                "total": len(lines or ()),
            }
            await session.execute(insert(batch).values(row))
            await self.write_lines(session, new.tenant_id, new.id, lines or [])
            said = {"endpoint": new.endpoint, "surface": new.surface}
            await record_change(session, "batch.created", target="batch", target_id=public_id("batch", new.id),
                                tenant_id=new.tenant_id, project_id=new.project_id, after=said)  # fmt: skip
        found = await self.get(new.tenant_id, new.project_id, new.id)
        assert found is not None, "it was written just now"
        return found

    async def write_lines(self, session: AsyncSession, tenant_id: UUID, batch_id: UUID, lines: list[Line]) -> None:
        """Write the lines of a batch, in a transaction of the caller's."""
        for begin in range(0, len(lines), _INSERTED):
            rows = [
                {
                    "batch_id": batch_id,
                    "number": line.number,
                    "tenant_id": tenant_id,
                    "offset": line.offset,
                    "length": line.length,
                    "place": line.place,
                }
                for line in lines[begin : begin + _INSERTED]
            ]
            await session.execute(insert(batch_line), rows)

    async def get(self, tenant_id: UUID, project_id: UUID | None, id_: UUID) -> Batch | None:
        """A batch of a project, or without one of the tenant. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        query = select(batch).where(_OF.id == id_, _OF.tenant_id == tenant_id)
        query = query if project_id is None else query.where(_OF.project_id == project_id)
        async with self.database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else opened(row, await self.files.seal_of(tenant_id, row.project_id))

    async def page(
        self,
        tenant_id: UUID,
        projects: UUID | Collection[UUID] | None,
        *,
        limit: int,
        surface: str | None = None,
        ended: bool | None = None,
        before: UUID | None = None,
        after: UUID | None = None,
    ) -> list[Batch]:
        """The batches of these projects, or of all of the tenant, the newest first; `before`: those made before this
        one; `after`: the `limit` next ones that were made after it. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        query = select(batch).where(_OF.tenant_id == tenant_id).limit(limit)
        if projects is not None:
            query = query.where(_OF.project_id.in_([projects] if isinstance(projects, UUID) else projects))
        query = query.where(_OF.surface == surface) if surface is not None else query
        if ended is not None:
            query = query.where(_OF.status.not_in(UNFINISHED) if ended else _OF.status.in_(UNFINISHED))
        query = query.where(_OF.id < before) if before is not None else query
        query = query.where(_OF.id > after).order_by(_OF.id) if after is not None else query.order_by(_OF.id.desc())
        async with self.database.reading() as session:
            rows = list((await session.execute(query)).all())
        seals = {of: await self.files.seal_of(tenant_id, of) for of in {row.project_id for row in rows}}
        return [opened(row, seals[row.project_id]) for row in (reversed(rows) if after is not None else rows)]

    async def reads(self, tenant_id: UUID, file_id: UUID) -> UUID | None:
        """A batch that has not ended and reads this file. Raises DatabaseUnavailable."""
        query = select(_OF.id).where(_OF.input_file_id == file_id, _OF.tenant_id == tenant_id)
        async with self.database.reading() as session:
            found: UUID | None = await session.scalar(query.where(_OF.status.in_(UNFINISHED)).limit(1))
        return found

    async def cancel(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> bool:
        """Ask for the end of a batch; False if it is being ended already, or has ended. Raises DatabaseUnavailable."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self.database.transaction() as session:
            values = {"status": "cancelling", "cancelling_at": self.database.clock}
            runs = _OF.status.in_(("validating", "in_progress"))
            asked = update(batch).where(*own, runs).values(values).returning(_OF.id)
            cancelled = (await session.execute(asked)).one_or_none() is not None
            if cancelled:
                await record_change(session, "batch.cancelled", target="batch", target_id=public_id("batch", id_),
                                    tenant_id=tenant_id, project_id=project_id)  # fmt: skip
        return cancelled

    async def delete(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> bool:
        """Delete a batch that has ended, with the files that are its own; False if there is none such. Raises
        DatabaseUnavailable, OSError."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self.database.transaction() as session:
            gone = delete(batch).where(*own, _OF.status.not_in(UNFINISHED))
            row = (await session.execute(gone.returning(_OF.input_file_id, _OF.output_file_id))).one_or_none()
            if row is not None:
                await record_change(session, "batch.deleted", target="batch", target_id=public_id("batch", id_),
                                    tenant_id=tenant_id, project_id=project_id)  # fmt: skip
        for file in () if row is None else row:
            if file is not None:
                await self.files.delete(tenant_id, project_id, file)
        return row is not None

    async def forget(self) -> int:
        """Remove batches that ended long ago; how many. Raises DatabaseUnavailable."""
        # all tenants: time passes for everybody
        async with self.database.transaction() as session:
            long_ago = _OF.id < least_id(await self.database.now_in(session) - _KEPT_S * _SECOND)
            old = select(_OF.id).where(long_ago, _OF.ended_at.is_not(None)).limit(_FORGOTTEN)
            ids = list((await session.execute(old)).scalars())
            if ids:
                await session.execute(delete(batch).where(_OF.id.in_(ids)))
        return len(ids)


async def drop_work(session: AsyncSession, tenant_id: UUID, batch_id: UUID) -> None:
    """Remove the lines and parts of a batch, in a transaction of the caller's."""
    for table in (batch_line, batch_part):
        await session.execute(delete(table).where(table.c.batch_id == batch_id, table.c.tenant_id == tenant_id))


def opened(row: Row[Any], seal: ContentSeal) -> Batch:
    """A batch of its row. What a project's key opens no more is left out of it."""
    try:
        metadata = msgspec.json.decode(seal.open(row.details, details_of(row.id)), type=dict[str, str] | None)
        problems = (
            ()
            if row.errors is None
            else msgspec.json.decode(seal.open(row.errors, errors_of(row.id)), type=tuple[BatchProblem, ...])
        )
    except Unreadable:
        metadata, problems = None, ()
    return Batch(
        **{name: getattr(row, name) for name in _SAME},
        tokens=Tokens(row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens),
        metadata=metadata,
        problems=problems,
    )


def details_of(id_: UUID) -> bytes:
    """What a batch's sealed metadata belongs to."""
    return id_.bytes + b"batch-details"


def errors_of(id_: UUID) -> bytes:
    """What a batch's sealed errors belong to."""
    return id_.bytes + b"batch-errors"

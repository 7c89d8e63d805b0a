"""Keeps responses in the database: sealed, of one project each, until they expire.

Ids of other projects are as unknown as ids that never were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Row, Select, delete, func, literal, select, update

from audit_log.record import record_change
from prompt_cache.promise.scope_keys import ScopeKeys
from response_store.records import ListedResponse, NewResponse, Status, StoredResponse
from response_store.sealing import ContentSeal, Unreadable
from response_store.tables import idempotency_claim, stored_response, stored_response_events
from storage.database.batcher import MicroBatcher
from storage.database.database import Database
from storage.database.sql_arrays import one_of

MOST_CHAINED = 1000
"""Responses of one conversation."""
MOST_CHAIN_BYTES = 32 * 1024 * 1024
FORGOTTEN = 500
"""Responses that are removed at a time."""
_BATCH = 64
_IN_THREAD = 65_536
_SECOND = 1_000_000
_OF = stored_response.c
_LISTED = (_OF.id, _OF.project_id, _OF.previous_id, _OF.kind, _OF.status, _OF.model, _OF.created_at, _OF.expires_at,
           _OF.bytes)  # fmt: skip
Result = TypeVar("Result")


def _uncounted(size: int) -> None:
    """Nobody counts bytes."""


class ChainBroken(Exception):
    """A response that a conversation goes on from was deleted, has expired, or cannot be read any more."""


class ChainTooLong(Exception):
    """A conversation has more responses, or more content, than can be gone on from."""


class SealedResponses:
    """Responses of one project as the database has them. `size`: their bytes when they are opened. `whole`: none may be
    missing."""

    def __init__(self, rows: Sequence[Row[Any]] = (), seal: ContentSeal | None = None, *, whole: bool = False) -> None:
        self._rows = rows
        self._seal = seal
        self._whole = whole
        self.size = sum(row.bytes for row in rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last_status(self) -> Status:
        """The status of the last one."""
        status: Status = self._rows[-1].status
        return status

    def open(self) -> list[StoredResponse]:
        """Open and unpack them, in order: work for a thread, unless they are small. Raises ChainBroken."""
        if self._seal is None:
            return []
        opened = [one for row in self._rows if (one := _opened(row, self._seal)) is not None]
        if self._whole and len(opened) < len(self._rows):
            raise ChainBroken
        return opened


class ResponseStore:
    """The kept responses of all projects. `keys` are the projects' data keys."""

    def __init__(self, database: Database, keys: ScopeKeys) -> None:
        self.database = database
        self._keys = keys
        self._writes: MicroBatcher[dict[str, Any], None] = MicroBatcher(self._write, _BATCH)

    async def close(self) -> None:
        """Write what waits."""
        await self._writes.close()

    async def seal_of(self, tenant_id: UUID, project_id: UUID) -> ContentSeal:
        """What seals a project's content. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        return ContentSeal(await self._keys.load(tenant_id, project_id), project_id)

    async def keeps_nothing(self, tenant_id: UUID, project_id: UUID) -> bool:
        """Whether nothing of the project may ever leave the devices. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        return (await self._keys.load(tenant_id, project_id)).retention == 0

    async def save(self, new: NewResponse) -> None:
        """Keep a response. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        seal = await self.seal_of(new.tenant_id, new.project_id)
        row = {
            "id": new.id,
            "tenant_id": new.tenant_id,
            "project_id": new.project_id,
            "previous_id": new.previous_id,
            "kind": new.kind,
            "status": new.status,
            "model": new.model,
            "key_generation": seal.generation,
            "bytes": len(new.request) + len(new.response),
            "worker": new.worker,
            "cancelling": 0,
            "lifetime_s": new.lifetime_s,
            **await _in_thread(
                len(new.request) + len(new.response),
                lambda: {
                    "request": seal.seal(new.request, request_of(new.id)),
                    "response": seal.seal(new.response, response_of(new.id)),
                },
            ),
        }
        await self._writes.submit(row)

    async def get(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> StoredResponse | None:
        """A project's response. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        sealed = await self.find(tenant_id, project_id, [id_])
        found = await _in_thread(sealed.size, sealed.open)
        return found[0] if found else None

    async def listed(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> ListedResponse | None:
        """A project's response without its content, which may be large. Raises DatabaseUnavailable."""
        query = select(*_LISTED).where(_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self.database.reading() as session:
            row = (await session.execute(query.where(_OF.expires_at > self.database.clock))).one_or_none()
        return None if row is None else ListedResponse(**row._mapping)

    async def items_of(
        self, tenant_id: UUID, project_id: UUID, ids: Sequence[UUID], count: Callable[[int], None] = _uncounted
    ) -> SealedResponses:
        """Those of a project's responses that there are. `count` is told their bytes before they are read, and may
        refuse. Raises ChainTooLong, ScopeKeyUnreadable, DatabaseUnavailable."""
        query = select(func.sum(_OF.bytes)).where(
            one_of(self.database, _OF.id, list(ids)), _OF.tenant_id == tenant_id, _OF.project_id == project_id
        )
        async with self.database.reading() as session:
            size = (await session.execute(query)).scalar() or 0
        if size > MOST_CHAIN_BYTES:
            raise ChainTooLong
        count(int(size))
        return await self.find(tenant_id, project_id, ids)

    async def chain(
        self, tenant_id: UUID, project_id: UUID, last: UUID, count: Callable[[int], None] = _uncounted
    ) -> SealedResponses:
        """The responses that lead to this one, the first one first; none if it is not known. `count` as in `items_of`.

        Raises ChainBroken, ChainTooLong, ScopeKeyUnreadable, DatabaseUnavailable.
        """
        own = (_OF.tenant_id == tenant_id, _OF.project_id == project_id)
        columns = (_OF.id, _OF.previous_id, _OF.bytes)
        begin = select(*columns, literal(0).label("depth")).where(_OF.id == last, *own)
        links = begin.cte("links", recursive=True)
        more = select(*columns, links.c.depth + 1).where(
            _OF.id == links.c.previous_id, *own, links.c.depth <= MOST_CHAINED
        )
        links = links.union_all(more)
        async with self.database.reading() as session:
            rows = (await session.execute(select(links).order_by(links.c.depth.desc()))).all()
        if not rows:
            return SealedResponses()
        size = sum(row.bytes for row in rows)
        if len(rows) > MOST_CHAINED or size > MOST_CHAIN_BYTES:
            raise ChainTooLong
        if rows[0].previous_id is not None:
            raise ChainBroken
        count(size)
        found = {row.id: row for row in await self._rows(tenant_id, project_id, [row.id for row in rows])}
        if len(found) < len(rows):
            raise ChainBroken
        return SealedResponses([found[row.id] for row in rows], await self.seal_of(tenant_id, project_id), whole=True)

    async def page(
        self, tenant_id: UUID, project_id: UUID, *, limit: int, before: UUID | None = None
    ) -> list[ListedResponse]:
        """A project's responses, the newest first; `before`: only those made before this one. Raises
        DatabaseUnavailable."""
        query = select(*_LISTED).where(_OF.tenant_id == tenant_id, _OF.project_id == project_id)
        query = query.where(_OF.expires_at > self.database.clock).order_by(_OF.id.desc()).limit(limit)
        async with self.database.reading() as session:
            rows = (await session.execute(query if before is None else query.where(_OF.id < before))).all()
        return [ListedResponse(**row._mapping) for row in rows]

    async def used_bytes(self, tenant_id: UUID, project_id: UUID) -> int:
        """How much a project keeps: its responses before they are packed, their events, and the answers of its
        idempotency keys. Raises DatabaseUnavailable."""
        own, event = (_OF.tenant_id == tenant_id, _OF.project_id == project_id), stored_response_events.c
        claim = idempotency_claim.c
        answers = select(func.sum(claim.bytes)).where(claim.tenant_id == tenant_id, claim.project_id == project_id)
        responses = select(func.sum(_OF.bytes)).where(*own)
        events = (
            select(func.sum(func.length(event.events))).join(stored_response, _OF.id == event.response_id).where(*own)
        )
        async with self.database.reading() as session:
            return sum([int((await session.execute(query)).scalar() or 0) for query in (responses, events, answers)])

    async def delete(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> bool:
        """Delete a project's response with its events, and the answer that its idempotency key would be given again;
        False if there is none. Raises DatabaseUnavailable."""
        own = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id)
        async with self.database.transaction() as session:
            gone = (await session.execute(delete(stored_response).where(*own).returning(_OF.id))).all()
            if gone:
                event = stored_response_events.c
                await session.execute(
                    delete(stored_response_events).where(event.response_id == id_, event.tenant_id == tenant_id)
                )
                claim = idempotency_claim.c
                answered = (claim.request_id == id_, claim.tenant_id == tenant_id, claim.worker.is_(None))
                await session.execute(update(idempotency_claim).where(*answered).values(answer=None, bytes=0))
                await record_change(session, "response.deleted", target="response", target_id=f"resp_{id_.hex}",
                                    tenant_id=tenant_id, project_id=project_id)  # fmt: skip
        return bool(gone)

    async def record_reading(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> None:
        """Record that somebody reads a response's content. Raises DatabaseUnavailable."""
        async with self.database.transaction() as session:
            await record_change(session, "response.read", target="response", target_id=f"resp_{id_.hex}",
                                tenant_id=tenant_id, project_id=project_id)  # fmt: skip

    async def find(self, tenant_id: UUID, project_id: UUID, ids: Sequence[UUID]) -> SealedResponses:
        """Those of a project's responses that there are. Raises ScopeKeyUnreadable, DatabaseUnavailable."""
        rows = await self._rows(tenant_id, project_id, ids)
        return SealedResponses(rows, await self.seal_of(tenant_id, project_id)) if rows else SealedResponses()

    async def _rows(self, tenant_id: UUID, project_id: UUID, ids: Sequence[UUID]) -> Sequence[Row[Any]]:
        query: Select[Any] = select(stored_response).where(
            one_of(self.database, _OF.id, list(ids)), _OF.tenant_id == tenant_id, _OF.project_id == project_id
        )
        async with self.database.reading() as session:
            rows: Sequence[Row[Any]] = (await session.execute(query.where(_OF.expires_at > self.database.clock))).all()
        return rows

    async def _write(self, rows: list[dict[str, Any]]) -> list[Exception | None]:
        async with self.database.transaction() as session:
            now = await self.database.now_in(session)
            for row in rows:
                row["created_at"], row["expires_at"] = now, now + row.pop("lifetime_s") * _SECOND
                row["beat_at"] = None if row["worker"] is None else now
            # each row names its tenant
            await session.execute(self.database.insert(stored_response).on_conflict_do_nothing(), rows)
        return [None] * len(rows)


async def forget_expired(database: Database) -> int:
    """Remove responses that have expired, FORGOTTEN at a time; how many. Raises DatabaseUnavailable."""
    # all tenants: time passes for everybody
    async with database.transaction() as session:
        query = select(_OF.id).where(_OF.expires_at <= database.clock).limit(FORGOTTEN)
        ids = list((await session.execute(query)).scalars())
        if ids:
            # The row first: a worker that writes events holds it, and what it wrote is then seen and removed too.
            await session.execute(delete(stored_response).where(one_of(database, _OF.id, ids)))
            events = stored_response_events.c.response_id
            await session.execute(delete(stored_response_events).where(one_of(database, events, ids)))
    return len(ids)


def request_of(id_: UUID) -> bytes:
    """What a response's sealed request belongs to."""
    return id_.bytes + b"request"


def response_of(id_: UUID) -> bytes:
    """What a response's sealed object belongs to."""
    return id_.bytes + b"response"


def _opened(row: Row[Any], seal: ContentSeal) -> StoredResponse | None:
    try:
        request, response = seal.open(row.request, request_of(row.id)), seal.open(row.response, response_of(row.id))
    except Unreadable:
        return None
    listed = {column.name: getattr(row, column.name) for column in _LISTED}
    return StoredResponse(
        **listed,
        request=request,
        response=response,
        worker=row.worker,
        beat_at=row.beat_at,
        cancelling=bool(row.cancelling),
    )


async def _in_thread(size: int, work: Callable[[], Result]) -> Result:
    """Do it in a thread if it is about much content."""
    return await asyncio.to_thread(work) if size > _IN_THREAD else work()

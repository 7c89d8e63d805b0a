"""Responses that run in the background: their events as they come, whose they are, and who asked for their end.

A worker that runs some says so again and again, with the events that it has. When it falls silent, its responses are
taken over by another one. Whatever a worker writes counts only while the response is still its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import case, select, update

from response_store.records import Status
from response_store.sealing import ContentSeal
from response_store.store import ResponseStore, response_of
from response_store.tables import stored_response, stored_response_events
from storage.database.batcher import MicroBatcher
from storage.database.sql_arrays import one_of

_BATCH = 256
_READ = 64
"""Batches of events that are read at a time."""
_SECOND = 1_000_000
_RELEASED = 0
"""In place of the last beat: the worker gave the response away."""
_MOST_NUMBER = 2**31 - 1
"""The highest number that an event can have."""
_OF, _EVENTS = stored_response.c, stored_response_events.c


class Progress(Struct, frozen=True, kw_only=True):
    """What a worker has of a response. `events`: as they are sent, of which the first has the number `first`.
    `response`: the object, where it has changed; `ended`: the worker is through with it; `released`: another one is to
    take it over now."""

    id: UUID
    tenant_id: UUID
    first: int
    events: Sequence[bytes] = ()
    status: Status | None = None
    response: bytes | None = None
    ended: bool = False
    released: bool = False


class Standing(Struct, frozen=True):
    """How a response stands with its worker: whether it is still its own, and whether somebody asked for its end. One
    that is not its own was deleted (`gone`), or was given to another worker."""

    mine: bool
    cancelling: bool = False
    gone: bool = False


class Orphan(Struct, frozen=True):
    """A response whose worker is silent."""

    id: UUID
    tenant_id: UUID
    project_id: UUID


class RunningResponses:
    """The responses that run in the background. `worker`: who writes here."""

    def __init__(self, store: ResponseStore, worker: str) -> None:
        self._store = store
        self._database = store.database
        self.worker = worker
        self._writes: MicroBatcher[tuple[Progress, ContentSeal], Standing] = MicroBatcher(self._write, _BATCH)

    async def close(self) -> None:
        """Write what waits."""
        await self._writes.close()

    async def write(self, progress: Progress, seal: ContentSeal) -> Standing:
        """Write what there is, and hear how the response stands. Raises DatabaseUnavailable."""
        return await self._writes.submit((progress, seal))

    async def events(self, tenant_id: UUID, id_: UUID, after: int, seal: ContentSeal) -> tuple[list[bytes], int]:
        """The next events after the one with this number, and the number of the last of them. Raises Unreadable,
        DatabaseUnavailable."""
        if after >= _MOST_NUMBER:
            return [], after  # the column takes no such number
        query = select(stored_response_events).where(_EVENTS.response_id == id_, _EVENTS.tenant_id == tenant_id)
        query = query.where(_EVENTS.last > after).order_by(_EVENTS.first).limit(_READ)
        async with self._database.reading() as session:
            rows = (await session.execute(query)).all()
        found: list[bytes] = []
        for row in rows:
            batch = msgspec.msgpack.decode(seal.open(row.events, _events_of(id_, row.first)), type=list[bytes])
            found += batch[max(0, after + 1 - row.first) :]
            after = row.last
        return found, after

    async def cancel(self, tenant_id: UUID, project_id: UUID, id_: UUID) -> None:
        """Ask for the end of a response. Raises DatabaseUnavailable."""
        mine = (_OF.id == id_, _OF.tenant_id == tenant_id, _OF.project_id == project_id, _OF.worker.is_not(None))
        async with self._database.transaction() as session:
            await session.execute(update(stored_response).where(*mine).values(cancelling=1))

    async def orphans(self, silent_s: float, most: int = 20) -> list[Orphan]:
        """Responses whose worker was silent for so many seconds. Raises DatabaseUnavailable."""
        # all tenants: a worker runs those of everybody
        silent = _OF.beat_at < self._database.clock - int(silent_s * _SECOND)
        query = select(_OF.id, _OF.tenant_id, _OF.project_id).where(_OF.worker.is_not(None), silent).limit(most)
        async with self._database.reading() as session:
            return [Orphan(*row) for row in await session.execute(query)]

    async def take_over(self, orphan: Orphan, silent_s: float) -> int | None:
        """Make a response this worker's own if its worker is still silent. How often it was taken over by now, not
        counting when its worker released it; None if it is not this worker's. Raises DatabaseUnavailable."""
        silent = _OF.beat_at < self._database.clock - int(silent_s * _SECOND)
        mine = (_OF.id == orphan.id, _OF.tenant_id == orphan.tenant_id, _OF.worker.is_not(None), silent)
        values: dict[str, Any] = {
            "worker": self.worker,
            "beat_at": self._database.clock,
            "taken_over": _OF.taken_over + case((_OF.beat_at == _RELEASED, 0), else_=1),
        }
        async with self._database.reading() as session:  # whoever waits for a response asks often, and its worker lives
            if (await session.execute(select(_OF.id).where(*mine))).one_or_none() is None:
                return None
        async with self._database.transaction() as session:
            taken = update(stored_response).where(*mine).values(values).returning(_OF.taken_over)
            times: int | None = (await session.execute(taken)).scalar_one_or_none()
            return times

    async def _write(self, items: list[tuple[Progress, ContentSeal]]) -> list[Standing | Exception]:
        """Write for all responses that have something, each row with its tenant."""
        rows = [
            {
                "response_id": progress.id,
                "first": progress.first,
                "tenant_id": progress.tenant_id,
                "last": progress.first + len(progress.events) - 1,
                "events": seal.seal(
                    msgspec.msgpack.encode(list(progress.events)), _events_of(progress.id, progress.first)
                ),
            }
            for progress, seal in items
            if progress.events
        ]
        async with self._database.transaction() as session:
            own = (one_of(self._database, _OF.id, [progress.id for progress, _ in items]), _OF.worker == self.worker)
            beat = update(stored_response).where(*own).values(beat_at=self._database.clock)
            answer = await session.execute(beat.returning(_OF.id, _OF.cancelling))
            standing = {row.id: Standing(True, bool(row.cancelling)) for row in answer}
            kept = [row for row in rows if row["response_id"] in standing]
            if kept:
                await session.execute(self._database.insert(stored_response_events).on_conflict_do_nothing(), kept)
            for progress, seal in items:
                if progress.id in standing and (values := _values(progress, seal)):
                    await session.execute(update(stored_response).where(_OF.id == progress.id).values(values))
            if others := [progress.id for progress, _ in items if progress.id not in standing]:
                # all tenants: these responses were this worker's
                there = select(_OF.id).where(one_of(self._database, _OF.id, others))
                standing |= dict.fromkeys((await session.execute(there)).scalars(), Standing(mine=False))
        return [standing.get(progress.id, Standing(mine=False, gone=True)) for progress, _ in items]


def _values(progress: Progress, seal: ContentSeal) -> dict[str, Any]:
    """The columns of the response that change."""
    values: dict[str, Any] = {}
    if progress.status is not None:
        values["status"] = progress.status
    if progress.response is not None:
        values |= {
            "response": seal.seal(progress.response, response_of(progress.id)),
            "bytes": _OF.bytes + len(progress.response),
        }
    if progress.ended:
        values |= {"worker": None, "beat_at": None}
    if progress.released:
        values["beat_at"] = _RELEASED
    return values


def _events_of(id_: UUID, first: int) -> bytes:
    return id_.bytes + b"events" + first.to_bytes(8, "big")

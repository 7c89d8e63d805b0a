"""Batches as the worker that runs them writes them: which are its own, which lines are begun, what came of each.

A worker that runs a batch says so again and again (`beat`); when it falls silent another one takes the batch over.
Whatever a worker writes counts only while the batch is its own: each transaction begins with that. Results are written
in the transaction that marks their lines as done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import case, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from batch_store.records import UNFINISHED, Batch, BatchProblem, Line, LineResult, PartKind, Status, Tokens
from batch_store.store import BatchStore, drop_work, errors_of, opened
from batch_store.tables import batch, batch_line, batch_part
from file_store.store import NewFile
from response_store.sealing import ContentSeal
from storage.database.outbox import write_to_outbox
from storage.database.public_ids import public_id

TOPICS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
"""Messages of the ends of batches."""
_SECOND = 1_000_000
_RELEASED = 0
"""In place of the last beat: the worker gave the batch away."""
_ASIDE = ""
"""In place of the worker: the batch was set aside, and is taken up when a worker would be silent."""
_AT_ONCE = 500
_COUNTED = ("completed", "failed", "cancelled", "expired")
_OF, _LINE, _PART = batch.c, batch_line.c, batch_part.c


class BatchLost(Exception):
    """The batch is another worker's now, or was deleted."""


class WaitingBatch(Struct, frozen=True):
    """A batch that nobody runs."""

    id: UUID
    tenant_id: UUID
    project_id: UUID


class BatchWork:
    """The batches that run. `worker`: who writes here. Every method may raise DatabaseUnavailable, and those that write
    to a batch BatchLost."""

    def __init__(self, store: BatchStore, worker: str) -> None:
        self.store = store
        self.worker = worker
        self._database = store.database

    # ------------------------------------------------ whose it is

    async def waiting(self, silent_s: float, most: int, unless: Sequence[UUID] = ()) -> list[WaitingBatch]:
        """Batches that nobody runs, or whose worker is silent: the first of each tenant, then the second, and so on. A
        tenant's are in the order in which they were made, but one that was set aside comes after the others. `unless`:
        tenants whose batches are not wanted."""
        # all tenants: a worker runs those of everybody
        silent = or_(_OF.worker.is_(None), _OF.beat_at < self._database.clock - int(silent_s * _SECOND))
        since = case((_OF.worker == _ASIDE, _OF.beat_at), else_=_RELEASED)
        turn = func.row_number().over(partition_by=_OF.tenant_id, order_by=(since, _OF.id))
        wanted = select(_OF.id, _OF.tenant_id, _OF.project_id, since.label("since"), turn.label("turn"))
        found = wanted.where(_OF.status.in_(UNFINISHED), silent, _OF.tenant_id.not_in(unless)).subquery().c
        query = select(found.id, found.tenant_id, found.project_id).order_by(found.turn, found.since, found.id)
        async with self._database.reading() as session:
            return [WaitingBatch(*row) for row in await session.execute(query.limit(most))]

    async def take(self, found: WaitingBatch, silent_s: float) -> Batch | None:
        """Make a batch this worker's own if still nobody runs it. Raises ScopeKeyUnreadable."""
        seal = await self.store.files.seal_of(found.tenant_id, found.project_id)
        silent = or_(_OF.worker.is_(None), _OF.beat_at < self._database.clock - int(silent_s * _SECOND))
        mine = (_OF.id == found.id, _OF.tenant_id == found.tenant_id, _OF.status.in_(UNFINISHED), silent)
        values = {"worker": self.worker, "beat_at": self._database.clock}
        async with self._database.transaction() as session:
            taken = update(batch).where(*mine).values(values).returning(*_OF)
            row = (await session.execute(taken)).one_or_none()
        return None if row is None else opened(row, seal)

    async def release(self, of: Batch, unbegun: Sequence[Line], *, aside: bool = False) -> None:
        """Let another worker take the batch over now; if it is set `aside`, when this one would be silent, and after
        others. `unbegun`: lines that were taken, and not begun."""
        # all tenants: `_own` says whose the batch is
        async with self._database.transaction() as session:
            await self._own(session, of)
            own = (_LINE.batch_id == of.id, _LINE.tenant_id == of.tenant_id, _LINE.state == "taken")
            for begin in range(0, len(unbegun), _AT_ONCE):
                numbers = _LINE.number.in_([line.number for line in unbegun[begin : begin + _AT_ONCE]])
                await session.execute(update(batch_line).where(*own, numbers).values(state="waiting"))
            values = {"worker": _ASIDE, "beat_at": self._database.clock} if aside else {"beat_at": _RELEASED}
            await session.execute(update(batch).where(_OF.id == of.id).values(values))

    async def beat(self, of: Batch) -> Status:
        """Say that this worker runs the batch, and hear in which state it is."""
        async with self._database.transaction() as session:
            return await self._own(session, of)

    async def now(self) -> int:
        """The database's clock."""
        return await self._database.now()

    # ------------------------------------------------ lines

    async def begin(self, of: Batch, lines: list[Line]) -> Status:
        """Write the lines of a batch that was validated; the state that it is in then."""
        async with self._database.transaction() as session:
            status = await self._own(session, of)
            await drop_work(session, of.tenant_id, of.id)
            await self.store.write_lines(session, of.tenant_id, of.id, lines)
            values: dict[str, Any] = {"total": len(lines)}
            if status == "validating":
                values |= {"status": "in_progress", "in_progress_at": self._database.clock}
            await session.execute(update(batch).where(_OF.id == of.id).values(values))
        return "in_progress" if status == "validating" else status

    async def begun_lines(self, of: Batch) -> list[Line]:
        """Lines that an earlier worker took, and may have begun."""
        return await self._lines(of, "taken", None)

    async def unfinished_lines(self, of: Batch, most: int) -> list[Line]:
        """Lines without a result."""
        return await self._lines(of, "taken", most) or await self._lines(of, "waiting", most)

    async def take_lines(self, of: Batch, most: int) -> list[Line]:
        """The next lines in the order of running; none if all are begun. They may be begun from now on."""
        async with self._database.transaction() as session:
            await self._own(session, of)
            query = self._select(of, "waiting").limit(most)
            lines = [Line(**row._mapping) for row in await session.execute(query)]
            if lines:
                own = (_LINE.batch_id == of.id, _LINE.tenant_id == of.tenant_id)
                numbers = _LINE.number.in_([line.number for line in lines])
                await session.execute(update(batch_line).where(*own, numbers).values(state="taken"))
        return lines

    async def begin_again(self, of: Batch, line: Line) -> Line:
        """The line with another id for its request, since that of the last one came to nothing."""
        # all tenants: `_own` says whose the batch is
        async with self._database.transaction() as session:
            await self._own(session, of)
            values = {"attempt": line.attempt + 1}
            await session.execute(update(batch_line).where(*_line(of, line)).values(values))
        return msgspec.structs.replace(line, attempt=line.attempt + 1)

    async def write(self, of: Batch, results: Sequence[LineResult], seal: ContentSeal) -> Status:
        """Write results and mark their lines as done; the state that the batch is in. A line that is done stays so."""
        async with self._database.transaction() as session:
            status = await self._own(session, of)
            own = (_LINE.batch_id == of.id, _LINE.tenant_id == of.tenant_id)
            numbers = _LINE.number.in_([result.number for result in results])
            done = update(batch_line).where(*own, numbers, _LINE.state != "done").values(state="done")
            marked = set((await session.execute(done.returning(_LINE.number))).scalars())
            new = [result for result in results if result.number in marked]
            if not new:
                return status
            first = (await session.execute(select(_OF.next_part).where(_OF.id == of.id))).scalar_one()
            parts = _parts(new)
            rows = [
                {
                    "batch_id": of.id,
                    "number": first + index,
                    "tenant_id": of.tenant_id,
                    "kind": kind,
                    "content": seal.seal(content, _part_of(of.id, first + index)),
                }
                for index, (kind, content) in enumerate(parts)
            ]
            await session.execute(insert(batch_part), rows)
            tokens = sum((result.tokens for result in new), Tokens())
            counts = {name: sum(result.end == name for result in new) for name in _COUNTED}
            counts |= {f"{name}_tokens": getattr(tokens, name) for name in Tokens.__struct_fields__}
            values = {name: _OF[name] + more for name, more in counts.items() if more}
            await session.execute(update(batch).where(_OF.id == of.id).values(**values, next_part=first + len(parts)))
        return status

    # ------------------------------------------------ the end

    async def fail(self, of: Batch, problems: Sequence[BatchProblem], seal: ContentSeal) -> None:
        """End a batch of which no line was run."""
        async with self._database.transaction() as session:
            await self._own(session, of)
            await drop_work(session, of.tenant_id, of.id)
            await self._end(session, of, "failed", {"errors": _sealed(of, problems, seal), "total": 0})

    async def stop(self, of: Batch, problem: BatchProblem, seal: ContentSeal) -> None:
        """Ask for the end of a batch, of which no further line is to be run, for a reason of ours."""
        # all tenants: `_own` says whose the batch is
        async with self._database.transaction() as session:
            await self._own(session, of)
            values = {"status": "cancelling", "cancelling_at": self._database.clock}
            values["errors"] = _sealed(of, [problem], seal)
            await session.execute(update(batch).where(_OF.id == of.id).values(values))

    async def note(self, of: Batch, problem: BatchProblem, seal: ContentSeal) -> None:
        """Say something of a batch that goes on."""
        # all tenants: `_own` says whose the batch is
        async with self._database.transaction() as session:
            await self._own(session, of)
            await session.execute(update(batch).where(_OF.id == of.id).values(errors=_sealed(of, [problem], seal)))

    async def finalize(self, of: Batch) -> None:
        """Note that no further line is run."""
        # all tenants: `_own` says whose the batch is
        async with self._database.transaction() as session:
            if await self._own(session, of) == "in_progress":
                values = {"status": "finalizing", "finalizing_at": self._database.clock}
                await session.execute(update(batch).where(_OF.id == of.id).values(values))

    async def parts(self, of: Batch, kind: PartKind, seal: ContentSeal) -> AsyncIterator[bytes]:
        """The results of a kind, in parts. Raises Unreadable."""
        after = -1
        own = (_PART.batch_id == of.id, _PART.tenant_id == of.tenant_id, _PART.kind == kind)
        while True:
            query = select(_PART.number, _PART.content).where(*own, _PART.number > after)
            async with self._database.reading() as session:
                row = (await session.execute(query.order_by(_PART.number).limit(1))).one_or_none()
            if row is None:
                return
            after = row.number
            yield seal.open(row.content, _part_of(of.id, after))

    async def finish(self, of: Batch, output: NewFile | None, errors: NewFile | None, seal: ContentSeal) -> None:
        """End a batch whose results are files now."""
        async with self._database.transaction() as session:
            status = await self._own(session, of)
            expired = (await session.execute(select(_OF.expired).where(_OF.id == of.id))).scalar_one()
            for file in (output, errors):
                if file is not None:
                    await self.store.files.insert(session, file, seal)
            await drop_work(session, of.tenant_id, of.id)
            files = {
                "output_file_id": None if output is None else output.id,
                "error_file_id": None if errors is None else errors.id,
            }
            end: Status = "cancelled" if status == "cancelling" else "expired" if expired else "completed"
            await self._end(session, of, end, files)

    async def _end(self, session: AsyncSession, of: Batch, status: Status, values: dict[str, Any]) -> None:
        ended = {"status": status, "ended_at": self._database.clock, "worker": None, "beat_at": None}
        row = (
            await session.execute(
                update(batch)
                .where(_OF.id == of.id)
                .values(**values, **ended)
                .returning(*(_OF[name] for name in _COUNTED))
            )
        ).one()
        said = {"id": batch_name(of), "object": "batch", "project_id": str(of.project_id), "status": status}
        payload = {**said, "endpoint": of.endpoint, "request_counts": dict(row._mapping)}
        await write_to_outbox(
            self._database, session, f"batch.{status}", of.tenant_id, msgspec.json.encode(payload).decode()
        )

    async def _own(self, session: AsyncSession, of: Batch) -> Status:
        """The state of the batch, which is locked until the end of the transaction. Raises BatchLost."""
        mine = (_OF.id == of.id, _OF.tenant_id == of.tenant_id, _OF.worker == self.worker, _OF.status.in_(UNFINISHED))
        beat = update(batch).where(*mine).values(beat_at=self._database.clock).returning(_OF.status)
        status: Status | None = (await session.execute(beat)).scalar_one_or_none()
        if status is None:
            raise BatchLost
        return status

    async def _lines(self, of: Batch, state: str, most: int | None) -> list[Line]:
        query = self._select(of, state)
        async with self._database.reading() as session:
            rows = await session.execute(query if most is None else query.limit(most))
            return [Line(**row._mapping) for row in rows]

    def _select(self, of: Batch, state: str) -> Any:
        columns = [_LINE[name] for name in Line.__struct_fields__]
        own = (_LINE.batch_id == of.id, _LINE.tenant_id == of.tenant_id, _LINE.state == state)
        return select(*columns).where(*own).order_by(_LINE.place, _LINE.number)


def batch_name(of: Batch) -> str:
    """A batch's id as its clients see it."""
    return public_id("batch" if of.surface == "openai" else "message_batch", of.id)


def _line(of: Batch, line: Line) -> tuple[Any, ...]:
    # a batch belongs to one tenant
    return _LINE.batch_id == of.id, _LINE.tenant_id == of.tenant_id, _LINE.number == line.number, _LINE.state == "taken"


def _parts(results: Sequence[LineResult]) -> list[tuple[PartKind, bytes]]:
    """The results as lines, in one part for each kind."""
    kinds: dict[PartKind, list[bytes]] = {}
    for result in results:
        kinds.setdefault(result.kind, []).append(result.content + b"\n")
    return [(kind, b"".join(lines)) for kind, lines in kinds.items()]


def _sealed(of: Batch, problems: Sequence[BatchProblem], seal: ContentSeal) -> bytes:
    return seal.seal(msgspec.json.encode(list(problems)), errors_of(of.id))


def _part_of(id_: UUID, number: int) -> bytes:
    return id_.bytes + b"batch-part" + number.to_bytes(8, "big")

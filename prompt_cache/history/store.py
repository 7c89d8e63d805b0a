"""Keeps the history of requests in the database, within bounds, and adds up why they missed, by day and cause.

It is written off the requests' way, best effort: what is beyond the bounds is left out and counted. Prefixes are kept
once for all requests that begin alike, as nodes of a tree whose edges are pieces of prompts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from prompt_cache.history import diagnosis as diagnoses
from prompt_cache.history.diagnosis import CAUSES, Cause
from prompt_cache.history.records import pack
from prompt_cache.history.resemblance import Noted, Resemblance, branches_of
from prompt_cache.tables import cache_day, cache_history_day, cache_prefix, cache_request
from storage.database.database import Database
from storage.database.sql_arrays import one_of

MOST_BYTES = 64 * 1024 * 1024
"""Of a project's history in one day."""
MOST_REQUESTS = 50_000
"""Of a project in one day whose records are kept."""
KEEP_S = 2 * 86_400
"""How long records and hashes are kept: longer than the longest lease."""
KEEP_DAYS_S = 400 * 86_400
"""How long the sums of a day are kept."""
_TOUCHED = 4
"""How many of the longest known prefixes are marked as used again by a request."""
_ROW_BYTES = 150
"""About what a row takes beside its hashes."""
_DELETED = 1000
_SECOND = 1_000_000

READ = "read"
UNREACHABLE: frozenset[Cause] = frozenset({"cold", "diverged", "below_minimum", "block_rest"})
"""Causes of tokens that no cache could have read for these very prompts: nobody had sent them before, or so few of them
that nothing is kept. All others were there, or could have been, if requests or the cache had done otherwise."""
_COSTS = 10**9
"""Costs are summed as quotients and remainders by this, so that no sum overflows."""

_PREFIX, _REQUEST = cache_prefix.c, cache_request.c


class History(Resemblance):
    """The history of all projects."""

    async def write(self, batch: Sequence[Noted]) -> None:
        """Keep these requests, within what their projects may keep in a day, and add up why they missed."""
        async with self._database.transaction() as session:
            kept, used = await self._within_bounds(session, batch)
            await self._write_requests(session, kept)
            await self._write_prefixes(session, kept)
            await self._add_up(session, batch)
            await self._count(session, used)

    async def _within_bounds(
        self, session: AsyncSession, batch: Sequence[Noted]
    ) -> tuple[list[Noted], dict[tuple[UUID, str], dict[str, Any]]]:
        days = {(noted.record.project_id, day_of(noted.record.at)): noted.record.tenant_id for noted in batch}
        of = cache_history_day.c
        query = select(cache_history_day).where(
            one_of(self._database, of.tenant_id, list(set(days.values()))),
            one_of(self._database, of.project_id, [project for project, _ in days]),
            one_of(self._database, of.day, list({day for _, day in days})),
        )
        used = {(row.project_id, row.day): (row.requests, row.bytes) for row in await session.execute(query)}
        more: dict[tuple[UUID, str], dict[str, Any]] = {}
        kept = []
        for noted in batch:
            place = (noted.record.project_id, day_of(noted.record.at))
            tenant = {"tenant_id": noted.record.tenant_id}
            counts = more.setdefault(place, tenant | {"requests": 0, "bytes": 0, "left_out": 0})
            before = used.get(place, (0, 0))
            if before[0] + counts["requests"] >= MOST_REQUESTS or before[1] + counts["bytes"] >= MOST_BYTES:
                counts["left_out"] += 1
                continue
            kept.append(noted)
            new = [node for node in noted.nodes if node.key not in noted.known]
            counts["requests"] += 1
            noted.row = pack(noted.record)
            counts["bytes"] += len(noted.row) + _ROW_BYTES
            counts["bytes"] += sum(len(node.hashes) + _ROW_BYTES for node in new)
        return kept, more

    async def _write_requests(self, session: AsyncSession, kept: Sequence[Noted]) -> None:
        rows = []
        for noted in kept:
            record = noted.record
            first, two = record.opening
            rows.append(
                {
                    "request_id": record.id,
                    "tenant_id": record.tenant_id,
                    "project_id": record.project_id,
                    "at": record.at,
                    "first_piece": first,
                    "opening": two,
                    "record": noted.row,
                    "diagnosis": diagnoses.pack(noted.diagnosis) if noted.diagnosis else b"",
                }
            )
        if rows:
            await session.execute(self._database.insert(cache_request).on_conflict_do_nothing(), rows)

    async def _write_prefixes(self, session: AsyncSession, kept: Sequence[Noted]) -> None:
        rows: dict[tuple[UUID, bytes], dict[str, Any]] = {}
        for noted in kept:
            record = noted.record
            last_known = [node.key for node in noted.nodes if node.key in noted.known][-_TOUCHED:]
            for branch in branches_of(noted):
                if branch.key in noted.known and branch.key not in last_known:
                    continue
                place = (record.project_id, branch.key)
                row = rows.setdefault(
                    place,
                    {
                        "project_id": record.project_id,
                        "key": branch.key,
                        "tenant_id": record.tenant_id,
                        "parent": branch.parent,
                        "start_token": branch.start,
                        "hashes": branch.hashes,
                        "first_request": record.id,
                        "first_at": record.at,
                        "last_request": record.id,
                        "last_at": record.at,
                    },
                )
                if record.at > row["last_at"]:
                    row |= {"last_request": record.id, "last_at": record.at}
                if record.at < row["first_at"]:
                    row |= {"first_request": record.id, "first_at": record.at}
        if not rows:
            return
        statement = self._database.insert(cache_prefix)
        changed = {"last_request": statement.excluded.last_request, "last_at": statement.excluded.last_at}
        keys = [_PREFIX.project_id, _PREFIX.key]
        upsert = statement.on_conflict_do_update(
            index_elements=keys, set_=changed, where=statement.excluded.last_at > _PREFIX.last_at
        )
        in_order = [rows[place] for place in sorted(rows)]  # so that gateways lock them in the same order
        await session.execute(upsert, in_order)

    async def _add_up(self, session: AsyncSession, batch: Sequence[Noted]) -> None:
        sums: dict[tuple[UUID, str, str, str, str], dict[str, Any]] = {}
        for noted in batch:
            if noted.diagnosis is None:
                continue
            tokens = {"read": noted.diagnosis.read}
            for miss in noted.diagnosis.misses:
                tokens[miss.cause] = tokens.get(miss.cause, 0) + miss.tokens
            record = noted.record
            for cause, missed in tokens.items():
                place = (record.project_id, day_of(record.at), record.model, cause, noted.currency)
                new = {"tenant_id": record.tenant_id, "requests": 0, "tokens": 0, "cost_pico": 0}
                row = sums.setdefault(place, new)
                row["requests"] += 1
                row["tokens"] += missed
                row["cost_pico"] += noted.costs.get(cause, 0)
        names = ("project_id", "day", "model", "cause", "currency")
        await self._add(session, cache_day, names, sums)

    async def _count(self, session: AsyncSession, used: Mapping[tuple[UUID, str], dict[str, Any]]) -> None:
        """Count what was kept and left out; each row names its tenant."""
        await self._add(session, cache_history_day, ("project_id", "day"), used)

    async def _add(
        self,
        session: AsyncSession,
        table: Any,
        names: Sequence[str],
        sums: Mapping[Any, dict[str, Any]],
    ) -> None:
        """Add these counts to the rows of a table of sums; all of its rows name their tenant."""
        if not sums:
            return
        statement = self._database.insert(table)
        counted = [name for name in next(iter(sums.values())) if name != "tenant_id"]
        added = {name: table.c[name] + statement.excluded[name] for name in counted}
        upsert = statement.on_conflict_do_update(index_elements=[table.c[name] for name in names], set_=added)
        rows = [dict(zip(names, place, strict=True)) | sums[place] for place in sorted(sums)]
        await session.execute(upsert, rows)

    # ------------------------------------------------------------ sums and retention

    async def days(self, tenant_id: UUID, project_id: UUID | None, first: str, last: str) -> list[Row[Any]]:
        """The rows of `cache_day` of a tenant, and of one project if it is named, from one day to another."""
        of = cache_day.c
        own = (of.tenant_id == tenant_id) & (of.day >= first) & (of.day <= last)
        if project_id is not None:
            own &= of.project_id == project_id
        query = select(cache_day).where(own).order_by(of.day, of.project_id, of.model, of.currency, of.cause)
        async with self._database.reading() as session:
            return list((await session.execute(query)).all())

    async def forget_old(self) -> int:
        """Delete a batch of what is older than it is kept; how many rows. Again if there may be more."""
        now = await self._database.now()
        gone = 0
        async with self._database.transaction() as session:  # all tenants: time passes for everyone
            for table, column in ((cache_request, _REQUEST.at), (cache_prefix, _PREFIX.last_at)):
                before = now - KEEP_S * _SECOND
                batch = select(column).where(column < before).order_by(column).offset(_DELETED - 1).limit(1)
                last = await session.scalar(batch)
                old = column < before if last is None else column <= last
                gone += int(getattr(await session.execute(delete(table).where(old)), "rowcount", 0))
            for table in (cache_day, cache_history_day):
                await session.execute(delete(table).where(table.c.day < day_of(now - KEEP_DAYS_S * _SECOND)))
        return gone

    async def forget(self, tenant_id: UUID, project_id: UUID) -> None:
        """Delete all that is kept of a project but the sums of its days."""
        async with self._database.transaction() as session:
            for table in (cache_request, cache_prefix):
                own = (table.c.tenant_id == tenant_id) & (table.c.project_id == project_id)
                await session.execute(delete(table).where(own))

    async def size(self, tenant_id: UUID, project_id: UUID) -> tuple[int, int]:
        """How many bytes of hashes, and of records, are kept of a project."""
        own = (_PREFIX.tenant_id == tenant_id) & (_PREFIX.project_id == project_id)
        mine = (_REQUEST.tenant_id == tenant_id) & (_REQUEST.project_id == project_id)
        async with self._database.reading() as session:
            hashes = await session.scalar(select(func.sum(func.length(_PREFIX.hashes))).where(own))
            records = await session.scalar(select(func.sum(func.length(_REQUEST.record))).where(mine))
        return int(hashes or 0), int(records or 0)


def day_of(instant: int) -> str:
    """The day (UTC) of an instant in microseconds since the Unix epoch."""
    return time.strftime("%Y-%m-%d", time.gmtime(instant // _SECOND))


class CauseSums(msgspec.Struct, frozen=True):
    """Tokens that missed because of `cause`, in how many requests, and what they cost beyond reading them, by currency
    in pico-units."""

    cause: Cause
    requests: int
    tokens: int
    cost_pico: dict[str, int]


class MissSums(msgspec.Struct, frozen=True):
    """The causes, those that cost most first. `read` tokens were read; `left_out` requests were not looked at, since
    their project's history of the day was full."""

    causes: list[CauseSums]
    read: int
    left_out: int

    @property
    def diagnosed(self) -> int:
        """Tokens of prompts of which the history says what became of them."""
        return self.read + sum(one.tokens for one in self.causes)

    @property
    def reachable(self) -> int:
        """Those of them that were read, or could have been."""
        return self.read + sum(one.tokens for one in self.causes if one.cause not in UNREACHABLE)


async def miss_sums(
    database: Database,
    tenant_id: UUID,
    first: str,
    last: str,
    *,
    projects: Collection[UUID] | None = None,
    models: Collection[str] | None = None,
) -> MissSums:
    """The sums of a tenant from one day to another (UTC, such as 2026-11-22), of some projects and models; None: of
    all. Raises DatabaseUnavailable."""
    of, kept = cache_day.c, cache_history_day.c
    wanted = [of.tenant_id == tenant_id, of.day >= first, of.day <= last]
    days = [kept.tenant_id == tenant_id, kept.day >= first, kept.day <= last]
    if projects is not None:
        wanted.append(one_of(database, of.project_id, projects))
        days.append(one_of(database, kept.project_id, projects))
    if models is not None:
        wanted.append(one_of(database, of.model, models))
    parts = (of.cost_pico.op("/")(_COSTS), of.cost_pico.op("%")(_COSTS))
    sums = (func.sum(of.requests), func.sum(of.tokens), *(func.sum(part) for part in parts))
    query = select(of.cause, of.currency, *sums).where(*wanted).group_by(of.cause, of.currency)
    async with database.reading() as session:
        rows = (await session.execute(query)).all()
        left_out = await session.scalar(select(func.sum(kept.left_out)).where(*days))
    found: dict[str, CauseSums] = {}
    for cause, currency, requests, tokens, high, low in rows:
        before = found.get(cause) or CauseSums(cause, 0, 0, {})
        cost = int(high) * _COSTS + int(low)
        costs = before.cost_pico | ({currency: before.cost_pico.get(currency, 0) + cost} if cost else {})
        found[cause] = CauseSums(cause, before.requests + int(requests), before.tokens + int(tokens), costs)
    read = found.pop(READ, None)
    order = {cause: place for place, cause in enumerate(CAUSES)}
    causes = sorted(
        found.values(), key=lambda one: (-sum(one.cost_pico.values()), -one.tokens, order.get(one.cause, len(order)))
    )
    return MissSums(causes, 0 if read is None else read.tokens, int(left_out or 0))

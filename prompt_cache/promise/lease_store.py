"""Leases in the database: found and written in the transaction that takes the holds, and what becomes of them later.

In the order of locks (`billing.transaction.money_transaction`) leases come last. Whoever decides has locked the
balances of the requests' tenants. So on however many gateways, only one decides about a project at a time, and of
identical cold prefixes exactly one is written. The unique index on project and prefix key would refuse a second.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import Confirmation, Lease, LeaseDecision, LeaseWish
from prompt_cache.promise.lease_rows import (
    COLUMNS,
    LeaseBlockKeys,
    LeaseBlocks,
    LeaseRows,
    ended_row,
    lease_of,
    row_of,
)
from prompt_cache.tables import ended_lease, lease, lease_tag
from storage.database.base import id_of
from storage.database.database import Database, retried_after_conflict
from storage.database.public_ids import public_id
from storage.database.sql_arrays import one_of

_COUNTED_AGAIN_S = 1.0
"""How long a project's number of tokens in live leases is remembered: others' writes are seen after that."""
_MOST_REMEMBERED = 10_000


class PurgedLeases(msgspec.Struct, frozen=True):
    """Leases that were ended, and the blocks that replicas may have of them."""

    leases: list[Lease]
    blocks: list[LeaseBlocks]


class LeaseStore:
    """The leases of all projects. `most_tokens`: how many tokens a project may have in live leases, 0 for any number;
    several gateways may exceed it by what they write in `counted_again_s` seconds."""

    def __init__(self, database: Database, most_tokens: int = 0, *, counted_again_s: float = _COUNTED_AGAIN_S) -> None:
        self._database = database
        self._most_tokens = most_tokens
        self._counted_again_s = counted_again_s
        self._rows = LeaseRows(database)
        self.blocks = LeaseBlockKeys(database)
        self._live_tokens: dict[UUID, tuple[float, int]] = {}

    # ------------------------------------------------ with the holds

    async def decider(self, session: AsyncSession, now: int, wishes: Sequence[LeaseWish]) -> LeaseDecider:
        """What decides these wishes at `now`, in a transaction that has locked their tenants' balances."""
        keys = {key for wish in wishes for key in wish.keys}
        projects = {project for project, _ in keys}
        found = await self._locked(session, keys)
        live = await self._count_live(session, projects, now) if self._most_tokens else {}
        return LeaseDecider(now, found, live, self._most_tokens)

    async def foresee(self, wish: LeaseWish, *, firm: bool = False) -> LeaseDecision:
        """What would be decided now; with `firm`, if leases whose writers have no token yet were not there. Nothing is
        promised, locked or written. Raises DatabaseUnavailable."""
        async with self._database.reading() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            keys = set(wish.keys)
            found = [lease_of(row) for row in await session.execute(self._with_keys(keys))] if keys else []
            if firm:
                found = [one for one in found if one.firm]
            live = await self._count_live(session, {wish.project_id}, now) if self._most_tokens else {}
        return LeaseDecider(now, found, live, self._most_tokens).decide(wish)

    async def save(self, session: AsyncSession, decider: LeaseDecider) -> None:
        """Write what was decided."""
        # all tenants: requests of several are decided together, each row names its own
        if decider.replaced:  # their places are taken by others
            await self._rows.move(session, decider.replaced, "expired")
        before = decider.found_ids
        new = [changed for changed in decider.changed.values() if changed.id not in before]
        old = [changed for changed in decider.changed.values() if changed.id in before]
        if new:
            await session.execute(insert(lease), [row_of(added) for added in new])
        if old:
            await self._rows.change(session, old)
        if decider.replaced:  # after the others, which were decided as if these were still there
            await self._rows.hand_on(session, decider.replaced)
        if decider.failed:  # after the others, which may go on from elsewhere now
            await self._rows.fail(session, decider.failed.keys(), decider.now)
        if decider.tags:
            tagged = self._database.insert(lease_tag).on_conflict_do_nothing()
            rows = [{"lease_id": id_, "tag": tag, "project_id": project} for id_, tag, project in decider.tags]
            await session.execute(tagged, rows)
        if decider.refused:
            await self._remember_refused(session, decider.refused, decider.now)
        Database.after_commit(session, lambda: self._add_live(decider.added))

    def _add_live(self, added: Mapping[UUID, int]) -> None:
        for project, tokens in added.items():
            at, live = self._live_tokens.get(project, (0.0, 0))
            self._live_tokens[project] = (at, live + tokens)

    # ------------------------------------------------ at the first token

    @retried_after_conflict
    async def confirm_all(self, asked: Sequence[Confirmation]) -> list[bool | Exception]:
        """Make the decisions for these requests final. Returns for each whether it stands; if not, it must be decided
        again. Raises DatabaseUnavailable."""
        # all tenants: requests of several are confirmed together, each names its leases
        async with self._database.transaction() as session:
            wanted = {id_ for one in asked for id_ in one.lease_ids}
            query = select(*COLUMNS).where(one_of(self._database, lease.c.id, wanted))
            rows = await session.execute(self._database.locked(query.order_by(lease.c.project_id, lease.c.prefix_key)))
            found = {one.id: one for one in map(lease_of, rows)}
            purged: dict[UUID, UUID | None] = {}
            if missing := wanted - found.keys():
                gone = one_of(self._database, ended_lease.c.id, missing)
                query = select(ended_lease.c.id, ended_lease.c.payer).where(gone, ended_lease.c.cause == "purged")
                purged = {row.id: row.payer for row in await session.execute(query)}
            decider = LeaseDecider(0, found.values())
            stand = decider.confirm(asked, purged)
            if decider.failed:
                decider.now = (await session.execute(select(self._database.clock))).scalar_one()
            await self.save(session, decider)
            return [*stand]

    async def _locked(self, session: AsyncSession, keys: Collection[tuple[UUID, bytes]]) -> list[Lease]:
        if not keys:
            return []
        return [lease_of(row) for row in await session.execute(self._database.locked(self._with_keys(keys)))]

    def _with_keys(self, keys: Collection[tuple[UUID, bytes]]) -> Select[Any]:
        # all tenants: requests of several are decided together; a prefix key is a project's own
        return (
            select(*COLUMNS)
            .where(
                one_of(self._database, lease.c.project_id, {project for project, _ in keys}),
                one_of(self._database, lease.c.prefix_key, {key for _, key in keys}),
            )
            .order_by(lease.c.project_id, lease.c.prefix_key)
        )

    async def _count_live(self, session: AsyncSession, projects: Collection[UUID], now: int) -> dict[UUID, int]:
        # all tenants: requests of several are decided together
        clock = time.monotonic()
        stale = [
            project
            for project in projects
            if clock - self._live_tokens.get(project, (-self._counted_again_s - 1.0, 0))[0] > self._counted_again_s
            or project not in self._live_tokens
        ]
        if stale:
            if len(self._live_tokens) > _MOST_REMEMBERED:
                self._live_tokens.clear()
                stale = list(projects)
            query = select(lease.c.project_id, func.sum(lease.c.new_tokens)).group_by(lease.c.project_id)
            rows = await session.execute(
                query.where(one_of(self._database, lease.c.project_id, stale), lease.c.expires_at > now)
            )
            counted = {row[0]: int(row[1]) for row in rows}
            self._live_tokens |= {project: (clock, counted.get(project, 0)) for project in stale}
        return {project: self._live_tokens[project][1] for project in projects}

    def _count_again(self, projects: Collection[UUID]) -> None:
        for project in projects:
            self._live_tokens.pop(project, None)

    async def _remember_refused(self, session: AsyncSession, refused: Sequence[Lease], now: int) -> None:
        """Keep that these leases were refused by the limit on live tokens, once for each prefix."""
        # all tenants: each row names its own
        kept = self._database.insert(ended_lease)
        kept = kept.on_conflict_do_update(index_elements=["id"], set_={"ended_at": kept.excluded.ended_at})
        rows = {(id_ := _limit_id(one)): {**ended_row(one, now, "limit"), "id": id_, "blocks": b""} for one in refused}
        await session.execute(kept, list(rows.values()))

    # ------------------------------------------------ after the requests

    @retried_after_conflict
    async def settle_writes(self, billed: Mapping[UUID, range]) -> int:
        """Mark leases of requests that have ended as paid, and end those that they were not billed for.

        `billed`: request -> tokens of its prompt that were billed as writes. A lease is paid for if its last token is
        among them. Leases that ended meanwhile, and that nobody pays for, have failed. Returns how many of the leases
        that these requests wrote ended. Raises DatabaseUnavailable.
        """
        # all tenants: requests end whoever asked
        async with self._database.transaction() as session:
            query = select(*COLUMNS).where(one_of(self._database, lease.c.writer, billed), lease.c.paid == 0)
            rows = await session.execute(self._database.locked(query.order_by(lease.c.project_id, lease.c.prefix_key)))
            written = [lease_of(row) for row in rows]
            failed = [one for one in written if one.tokens - 1 not in billed[one.writer]]
            paid = [one.id for one in written if one.tokens - 1 in billed[one.writer]]
            if paid:
                await session.execute(update(lease).where(one_of(self._database, lease.c.id, paid)).values(paid=1))
                await self._rows.bill(session, paid)
            ended = await self._settle_ended(session, billed)
            if lost := [*(one.id for one in failed), *ended]:
                now = (await session.execute(select(self._database.clock))).scalar_one()
                projects = {one.project_id for one in await self._rows.fail(session, lost, now)}
                Database.after_commit(session, lambda: self._count_again(projects))
            return len(failed)

    async def _settle_ended(self, session: AsyncSession, billed: Mapping[UUID, range]) -> list[UUID]:
        """Settle leases that these requests wrote and that ended meanwhile; return those that nobody pays for."""
        # all tenants: requests end whoever asked
        of = ended_lease.c
        query = select(of.id, of.tokens, of.payer).where(one_of(self._database, of.payer, billed)).order_by(of.id)
        ended = (await session.execute(self._database.locked(query))).all()
        unpaid = [row.id for row in ended if row.tokens - 1 not in billed[row.payer]]
        if paid := {row.id for row in ended}.difference(unpaid):
            await self._rows.settle_ended(session, paid)
        return unpaid

    async def uncertain_writers(self, before: int, most: int) -> list[UUID]:
        """Requests with leases of before this instant of which it is not known whether the request pays for them.

        At most `most` with live leases and `most` with ended ones; in each the longest uncertain first.
        """
        # all tenants: requests end whoever asked
        live, ended = lease.c, ended_lease.c
        queries = [
            select(live.writer).where(live.paid == 0, live.created_at < before).group_by(live.writer),
            select(ended.payer).where(ended.payer.is_not(None), ended.created_at < before).group_by(ended.payer),
        ]
        writers: dict[UUID, None] = {}
        async with self._database.reading() as session:
            for query, of in zip(queries, (live, ended), strict=True):
                writers |= dict.fromkeys(await session.scalars(query.order_by(func.min(of.created_at)).limit(most)))
        return list(writers)

    async def bill_rest(self) -> None:
        """Let those be billed that were locked when that was due, or whose beginning was paid for at the same time as
        they were. Raises DatabaseUnavailable."""
        # all tenants: requests end whoever asked
        async with self._database.transaction() as session:
            await self._rows.bill(session)

    @retried_after_conflict
    async def reclaim(self, most: int = 1000, now: int | None = None) -> int:
        """Move expired leases, at most so many, to those that ended; return how many. `now`: the database's clock if
        absent. Raises DatabaseUnavailable."""
        async with self._database.transaction() as session:
            instant = (await session.execute(select(self._database.clock))).scalar_one() if now is None else now
            # all tenants: time passes for everyone
            query = select(*COLUMNS).where(lease.c.expires_at <= instant).order_by(lease.c.expires_at).limit(most)
            expired = [lease_of(row) for row in await session.execute(self._database.locked(query, skip=True))]
            if expired:
                await self._rows.end(session, expired, "expired")
            return len(expired)

    async def forget(self, before: int) -> int:
        """Delete what ended before this instant, but for what may still be paid for; return how many. Raises
        DatabaseUnavailable."""
        async with self._database.transaction() as session:
            # all tenants: time passes for everyone
            over = ended_lease.c.ended_at < before
            gone = await session.execute(delete(ended_lease).where(over, ended_lease.c.payer.is_(None)))
            return int(getattr(gone, "rowcount", 0))

    # ------------------------------------------------ what they are asked for

    async def page(self, project_id: UUID, *, limit: int, after: UUID | None, tag: str | None = None) -> list[Lease]:
        """Live leases of a project, the newest first, from the one after `after`. Raises DatabaseUnavailable."""
        # a project is one tenant's
        query = select(*COLUMNS).where(lease.c.project_id == project_id, lease.c.expires_at > self._database.clock)
        if after is not None:
            query = query.where(lease.c.id < after)
        if tag is not None:
            tagged = select(lease_tag.c.lease_id).where(lease_tag.c.project_id == project_id, lease_tag.c.tag == tag)
            query = query.where(lease.c.id.in_(tagged))
        async with self._database.reading() as session:
            rows = await session.execute(query.order_by(lease.c.id.desc()).limit(limit))
            return [lease_of(row) for row in rows]

    async def get(self, project_id: UUID, identity: UUID) -> Lease | None:
        """A live lease of a project; None where the project has none of this id. Raises DatabaseUnavailable."""
        # a project is one tenant's
        query = select(*COLUMNS).where(lease.c.project_id == project_id, lease.c.id == identity)
        async with self._database.reading() as session:
            row = (await session.execute(query.where(lease.c.expires_at > self._database.clock))).one_or_none()
        return None if row is None else lease_of(row)

    async def extend(self, project_id: UUID, identity: UUID) -> Lease | None:
        """Begin the life of a live lease anew, as a read does. None where there is none. Raises DatabaseUnavailable."""
        # a project is one tenant's
        query = select(*COLUMNS).where(lease.c.project_id == project_id, lease.c.id == identity)
        async with self._database.transaction() as session:
            row = (await session.execute(self._database.locked(query))).one_or_none()
            now = (await session.execute(select(self._database.clock))).scalar_one()
            if row is None or not (found := lease_of(row)).is_live(now):
                return None
            extended = found.refreshed(now)
            await session.execute(update(lease).where(lease.c.id == identity).values(expires_at=extended.expires_at))
            await record_change(session, "cache.extended", target="cache", target_id=identity,
                                tenant_id=found.tenant_id, project_id=project_id,
                                before={"expires_at": found.expires_at},
                                after={"expires_at": extended.expires_at})  # fmt: skip
            return extended

    @retried_after_conflict
    async def purge(
        self, project_id: UUID, *, identity: UUID | None = None, tag: str | None = None, most: int = 1000
    ) -> PurgedLeases:
        """End live leases of a project now, at most so many: the one of this id, those with this label, or, without
        either, all. Returns them. Raises DatabaseUnavailable."""
        # a project is one tenant's
        query = select(*COLUMNS).where(lease.c.project_id == project_id)
        if identity is not None:
            query = query.where(lease.c.id == identity)
        if tag is not None:
            tagged = select(lease_tag.c.lease_id).where(lease_tag.c.project_id == project_id, lease_tag.c.tag == tag)
            query = query.where(lease.c.id.in_(tagged))
        query = query.where(lease.c.expires_at > self._database.clock).order_by(lease.c.prefix_key).limit(most)
        async with self._database.transaction() as session:
            gone = [lease_of(row) for row in await session.execute(self._database.locked(query))]
            blocks: list[LeaseBlocks] = []
            if gone:
                blocks = await self.blocks.of(session, [one.id for one in gone])
                now = (await session.execute(select(self._database.clock))).scalar_one()
                await self._rows.end(session, gone, "purged", now)
                said = {"caches": [public_id("cache", one.id) for one in gone], **({} if tag is None else {"tag": tag})}
                await record_change(session, "cache.purged", target="project" if identity is None else "cache",
                                    target_id=identity or project_id, tenant_id=gone[0].tenant_id,
                                    project_id=project_id, before=said)  # fmt: skip
        self._live_tokens.pop(project_id, None)
        return PurgedLeases(gone, blocks)


def _limit_id(one: Lease) -> UUID:
    """The id under which it is remembered that a prefix got no lease."""
    return id_of(hashlib.sha256(b"turnpike/lease-limit/v1" + one.project_id.bytes + one.prefix_key).digest()[:16])

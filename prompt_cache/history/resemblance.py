"""Finds which earlier requests of a project resemble a request: by the tree of prefixes, or by their pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct, field
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from prompt_cache.history import diagnosis as diagnoses
from prompt_cache.history.diagnosis import Diagnosis, Earlier, Ended, Evidence
from prompt_cache.history.prefix_hashes import Node, common_tokens
from prompt_cache.history.records import RequestRecord, unpack
from prompt_cache.tables import cache_prefix, cache_request, ended_lease
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_MOST_BRANCHES = 128
"""How many continuations of a known prefix are looked at, the latest."""
_MOST_OTHERS = 32
_MOST_ALIKE = 8
"""How many resembling requests are evidence."""

_ENDS: Mapping[str, Literal["lease_expired", "purged", "lease_limit"]] = {
    "expired": "lease_expired",
    "purged": "purged",
    "limit": "lease_limit",
}
"""Why a lease ended, in the words of a diagnosis."""

_PREFIX, _REQUEST = cache_prefix.c, cache_request.c


class Branch(Struct, frozen=True):
    """A node as the database has it, and the requests that had it first and last."""

    key: bytes
    parent: bytes
    start: int
    hashes: bytes
    first_request: UUID
    first_at: int
    last_request: UUID
    last_at: int

    def before(self, at: int) -> tuple[UUID, int] | None:
        """The latest of its requests that we know of, admitted before `at`."""
        if self.last_at < at:
            return self.last_request, self.last_at
        return (self.first_request, self.first_at) if self.first_at < at else None


class Noted(Struct):
    """A request to be written: its record, the nodes of its prompt, and what is found out about it on the way."""

    record: RequestRecord
    nodes: list[Node]
    diagnosis: Diagnosis | None = None
    costs: Mapping[str, int] = field(default_factory=dict)
    """By cause, what the misses cost beyond reading, in pico-units of `currency`."""
    currency: str = ""
    known: frozenset[bytes] = frozenset()
    """The keys of its nodes that the database has already."""


class Resemblance:
    """Reads the history. Every method names the tenant, and raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def evidence(
        self,
        noted: Noted,
        pending: Sequence[Noted] = (),
        lease_keys: Callable[[Sequence[int]], Mapping[bytes, int]] | None = None,
    ) -> tuple[Evidence, frozenset[bytes]]:
        """What resembles this request, of those admitted before it; and which of its nodes are known.

        `pending`: requests that are going to be written. `lease_keys`: gives the keys of leases on prefixes of this
        prompt, by their lengths, to look for those that have ended.
        """
        record, nodes = noted.record, noted.nodes
        project = [other for other in pending if other.record.project_id == record.project_id]
        async with self._database.reading() as session:
            known = await self._known(session, record, nodes)
            mine = {node.key for node in nodes}
            for other in project:
                known |= {b.key: b for b in branches_of(other) if b.key in mine and b.key not in known}
            earlier, common = await self._alike(session, record, nodes, known, project)
            records = await self._records(session, record, earlier, project)
            others = await self._others(session, record, project)
            lengths = sorted({e.tokens for one in records.values() for e in one.entries if e.tokens <= record.tokens})
            ended = await self._ended(session, record, lease_keys(lengths)) if lease_keys and lengths else ()
        same = [Earlier(records[id], common[id]) for id in earlier if id in records]
        same.sort(key=lambda one: (one.common, one.record.at), reverse=True)
        return Evidence(tuple(same), _most_alike(record, others), tuple(ended)), frozenset(known)

    async def _known(self, session: AsyncSession, record: RequestRecord, nodes: Sequence[Node]) -> dict[bytes, Branch]:
        own = (_PREFIX.tenant_id == record.tenant_id) & (_PREFIX.project_id == record.project_id)
        query = select(cache_prefix).where(own, one_of(self._database, _PREFIX.key, [node.key for node in nodes]))
        return {row.key: _branch(row) for row in await session.execute(query)}

    async def _alike(
        self,
        session: AsyncSession,
        record: RequestRecord,
        nodes: Sequence[Node],
        known: Mapping[bytes, Branch],
        pending: Sequence[Noted],
    ) -> tuple[list[UUID], dict[UUID, int]]:
        """The requests that begin like this one, and for how many tokens at least."""
        common: dict[UUID, int] = {}
        matched = -1
        for index, node in enumerate(nodes):
            branch = known.get(node.key)
            request = branch.before(record.at) if branch else None
            if request is not None:
                matched = index
                common[request[0]] = max(common.get(request[0], 0), node.end)
        if matched + 1 < len(nodes):
            following = nodes[matched + 1]
            for branch in await self._children(session, record, following.parent, pending):
                request = branch.before(record.at)
                shared = common_tokens(following.hashes, branch.hashes)
                if request is not None and shared:
                    common[request[0]] = max(common.get(request[0], 0), following.start + shared)
        best = sorted(common, key=lambda id: common[id], reverse=True)[:_MOST_ALIKE]
        return best, common

    async def _children(
        self, session: AsyncSession, record: RequestRecord, parent: bytes, pending: Sequence[Noted]
    ) -> list[Branch]:
        own = (_PREFIX.tenant_id == record.tenant_id) & (_PREFIX.project_id == record.project_id)
        query = (
            select(cache_prefix)
            .where(own, _PREFIX.parent == parent, _PREFIX.first_at < record.at)
            .order_by(_PREFIX.last_at.desc())
            .limit(_MOST_BRANCHES)
        )
        found = [_branch(row) for row in await session.execute(query)]
        found += [branch for other in pending for branch in branches_of(other) if branch.parent == parent]
        return found

    async def _records(
        self, session: AsyncSession, record: RequestRecord, ids: Collection[UUID], pending: Sequence[Noted]
    ) -> dict[UUID, RequestRecord]:
        own = (_REQUEST.tenant_id == record.tenant_id) & (_REQUEST.project_id == record.project_id)
        query = select(_REQUEST.record).where(own, one_of(self._database, _REQUEST.request_id, list(ids)))
        found = [unpack(data) for data in await session.scalars(query)] if ids else []
        found += [other.record for other in pending if other.record.id in ids]
        return {one.id: one for one in found}

    async def _others(
        self, session: AsyncSession, record: RequestRecord, pending: Sequence[Noted]
    ) -> list[RequestRecord]:
        """Earlier requests of other families whose conversation begins with the same pieces."""
        own = (_REQUEST.tenant_id == record.tenant_id) & (_REQUEST.project_id == record.project_id)
        first, two = record.opening
        found: list[RequestRecord] = []
        for column, key in ((_REQUEST.opening, two), (_REQUEST.first_piece, first)):
            if key and not found:
                query = select(_REQUEST.record).where(own, column == key, _REQUEST.at < record.at)
                rows = await session.scalars(query.order_by(_REQUEST.at.desc()).limit(_MOST_OTHERS))
                alike = [unpack(data) for data in rows]
                alike += [other.record for other in pending if key in other.record.opening]
                found = [one for one in alike if one.family != record.family and one.at < record.at]
        return found

    async def _ended(
        self, session: AsyncSession, record: RequestRecord, keys: Mapping[bytes, int]
    ) -> tuple[Ended, ...]:
        """What ended before this request, the latest of each prefix."""
        of = ended_lease.c
        own = (of.tenant_id == record.tenant_id) & (of.project_id == record.project_id) & (of.ended_at <= record.at)
        query = select(of.prefix_key, of.cause, of.ended_at, of.lease_class)
        query = query.where(own, of.created_at < record.at, one_of(self._database, of.prefix_key, list(keys)))
        latest: dict[int, Ended] = {}
        for key, cause, at, lease in await session.execute(query.order_by(of.ended_at)):
            if cause in _ENDS:
                latest[keys[key]] = Ended(keys[key], _ENDS[cause], at, lease)
        return tuple(latest.values())

    async def get(self, tenant_id: UUID, project_id: UUID | None, request_id: UUID) -> Noted | None:
        """What is kept of a request, None unless it is this tenant's, and this project's if one is named."""
        own = (_REQUEST.tenant_id == tenant_id) & (_REQUEST.request_id == request_id)
        if project_id is not None:
            own &= _REQUEST.project_id == project_id
        async with self._database.reading() as session:
            row = (await session.execute(select(_REQUEST.record, _REQUEST.diagnosis).where(own))).one_or_none()
        return None if row is None else Noted(unpack(row.record), [], diagnoses.unpack(row.diagnosis))

    async def common_with(self, noted: Noted, earlier: RequestRecord) -> int:
        """With how many tokens of this earlier request the prompt begins; 0 for one of another family."""
        if earlier.family != noted.record.family:
            return 0
        shared = 0
        for index, node in enumerate(noted.nodes):
            if index < len(earlier.nodes) and earlier.nodes[index] == node.key:
                shared = node.end
                continue
            following = earlier.nodes[index : index + 1]
            branches = await self._named(earlier, following) if following else []
            return shared + max((common_tokens(node.hashes, branch.hashes) for branch in branches), default=0)
        return shared

    async def _named(self, record: RequestRecord, keys: Sequence[bytes]) -> list[Branch]:
        async with self._database.reading() as session:
            own = (_PREFIX.tenant_id == record.tenant_id) & (_PREFIX.project_id == record.project_id)
            query = select(cache_prefix).where(own, one_of(self._database, _PREFIX.key, list(keys)))
            return [_branch(row) for row in await session.execute(query)]


def _branch(row: Any) -> Branch:
    return Branch(
        row.key,
        row.parent,
        row.start_token,
        row.hashes,
        row.first_request,
        row.first_at,
        row.last_request,
        row.last_at,
    )


def branches_of(noted: Noted) -> list[Branch]:
    """The nodes of a request as the database would have them."""
    id, at = noted.record.id, noted.record.at
    return [Branch(node.key, node.parent, node.start, node.hashes, id, at, id, at) for node in noted.nodes]


def _most_alike(record: RequestRecord, others: Sequence[RequestRecord]) -> Earlier | None:
    """The request of another family that has the most pieces in common, the latest of those."""
    best: Earlier | None = None
    for other in sorted(others, key=lambda one: one.at, reverse=True):
        common = 0
        for mine, theirs in zip(record.pieces, other.pieces, strict=False):
            if mine.key != theirs.key:
                break
            common = mine.end
        if common and (best is None or common > best.common):
            best = Earlier(other, common)
    return best

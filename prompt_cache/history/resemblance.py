"""Finds which earlier requests of a project resemble a request: by the tree of prefixes, or by their pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct, field
from sqlalchemy import select

from prompt_cache.history import diagnosis as diagnoses
from prompt_cache.history.comparison import Earlier
from prompt_cache.history.diagnosis import Diagnosis, Ended, Evidence
from prompt_cache.history.earlier_rows import Branch, EarlierRows, EndedLease
from prompt_cache.history.prefix_hashes import Node, common_tokens
from prompt_cache.history.records import RequestRecord, unpack
from prompt_cache.tables import cache_request
from storage.database.database import Database

_MOST_ALIKE = 8
"""How many resembling requests are evidence."""

_ENDS: Mapping[str, Literal["lease_expired", "purged", "lease_limit"]] = {
    "expired": "lease_expired",
    "purged": "purged",
    "limit": "lease_limit",
}
"""Why a lease ended, in the words of a diagnosis."""

_REQUEST = cache_request.c
LeaseKeys: TypeAlias = Callable[[Sequence[int]], Mapping[bytes, int]]
"""Gives the keys of leases on prefixes of a prompt, by their lengths, to look for those that have ended."""


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
    row: bytes = b""
    """The record as it is written."""


class _Unwritten:
    """Requests of one project that are not in the database yet, to be found by later requests of the same batch."""

    def __init__(self) -> None:
        self.branches: dict[bytes, Branch] = {}
        self.records: dict[UUID, RequestRecord] = {}
        self._continuations: dict[bytes, list[Branch]] = {}
        self._openings: dict[bytes, list[RequestRecord]] = {}

    def add(self, noted: Noted) -> None:
        """Another one."""
        self.records[noted.record.id] = noted.record
        for branch in branches_of(noted):
            self.branches.setdefault(branch.key, branch)
            self._continuations.setdefault(branch.parent, []).append(branch)
        for key in set(noted.record.opening):
            self._openings.setdefault(key, []).append(noted.record)

    def continuations(self, parent: bytes) -> list[Branch]:
        """The continuations of a prefix so far."""
        return list(self._continuations.get(parent, ()))

    def beginning_with(self, key: bytes) -> list[RequestRecord]:
        """The requests so far whose first pieces have this key."""
        return list(self._openings.get(key, ()))


class _Search:
    """One request, and what is found of those that resemble it. Its steps are in the order of their methods."""

    def __init__(
        self, noted: Noted, lease_keys: LeaseKeys | None, kept: Mapping[bytes, Branch], unwritten: _Unwritten
    ) -> None:
        """`kept`: nodes in the database; `unwritten`: the requests before this one that are not."""
        self.noted = noted
        self._at = noted.record.at
        self._lease_keys = lease_keys
        keys = [node.key for node in noted.nodes]
        self.known = {key: kept[key] for key in keys if key in kept}
        self.known |= {key: unwritten.branches[key] for key in keys if key not in kept and key in unwritten.branches}
        self._common: dict[UUID, int] = {}
        self._following = self._match(noted.nodes)
        """The first node that no earlier request has whole."""
        self._continuations = [] if self._following is None else unwritten.continuations(self._following.parent)
        first, two = noted.record.opening
        self._openings = [
            (column, key, unwritten.beginning_with(key))
            for column, key in ((_REQUEST.opening, two), (_REQUEST.first_piece, first))
            if key
        ]
        self._others: list[RequestRecord] = []
        self.alike: list[UUID] = []
        """The requests that begin like this one for the most tokens."""

    def _match(self, nodes: Sequence[Node]) -> Node | None:
        matched = -1
        for index, node in enumerate(nodes):
            branch = self.known.get(node.key)
            request = branch.before(self._at) if branch else None
            if request is not None:
                matched = index
                self._share(request[0], node.end)
        return nodes[matched + 1] if matched + 1 < len(nodes) else None

    def _share(self, request: UUID, tokens: int) -> None:
        self._common[request] = max(self._common.get(request, 0), tokens)

    async def look_around(self, rows: EarlierRows) -> None:
        """Look for requests that diverge from this one inside a node, and for the most alike of other families."""
        if (following := self._following) is not None:
            for branch in (*await rows.continuations(following.parent, self._at), *self._continuations):
                request, shared = branch.before(self._at), common_tokens(following.hashes, branch.hashes)
                if request is not None and shared:
                    self._share(request[0], following.start + shared)
        self.alike = sorted(self._common, key=lambda id: self._common[id], reverse=True)[:_MOST_ALIKE]
        family = self.noted.record.family
        for column, key, unwritten in self._openings:
            if not self._others:
                found = [*await rows.beginning_with(column, key, self._at), *unwritten]
                self._others = [one for one in found if one.family != family and one.at < self._at]

    def leases(self, records: Mapping[UUID, RequestRecord]) -> Mapping[bytes, int]:
        """The keys of this prompt's prefixes, of the lengths at which the requests found had leases, with these."""
        mine = self.noted.record.tokens
        found = (records[id] for id in self.alike if id in records)
        lengths = sorted({entry.tokens for one in found for entry in one.entries if entry.tokens <= mine})
        return self._lease_keys(lengths) if self._lease_keys and lengths else {}

    def evidence(self, records: Mapping[UUID, RequestRecord], ended: Sequence[Ended]) -> Evidence:
        """All that was found."""
        same = [Earlier(records[id], self._common[id]) for id in self.alike if id in records]
        same.sort(key=lambda one: (one.common, one.record.at), reverse=True)
        return Evidence(tuple(same), _most_alike(self.noted.record, self._others), tuple(ended))


class Resemblance:
    """Reads the history. Every method names the tenant, and raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def evidence(
        self, noted: Noted, pending: Sequence[Noted] = (), lease_keys: LeaseKeys | None = None
    ) -> tuple[Evidence, frozenset[bytes]]:
        """What resembles this request, of those admitted before it; and which of its nodes are known. `pending`:
        requests that are going to be written."""
        return (await self.evidence_of([(noted, lease_keys)], pending))[0]

    async def evidence_of(
        self, batch: Sequence[tuple[Noted, LeaseKeys | None]], pending: Sequence[Noted] = ()
    ) -> list[tuple[Evidence, frozenset[bytes]]]:
        """As `evidence`, of several requests, with few statements. To each, those before it in the batch are pending
        too."""
        found: dict[UUID, tuple[Evidence, frozenset[bytes]]] = {}
        async with self._database.reading() as session:
            for tenant_id, project_id in dict.fromkeys(
                (one.record.tenant_id, one.record.project_id) for one, _ in batch
            ):
                rows = EarlierRows(self._database, session, tenant_id, project_id)
                own = [(one, keys) for one, keys in batch if one.record.project_id == project_id]
                found |= await _of_project(rows, own, [one for one in pending if one.record.project_id == project_id])
        return [found[one.record.id] for one, _ in batch]

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
            rows = EarlierRows(self._database, session, record.tenant_id, record.project_id)
            return list((await rows.branches(keys)).values())


async def _of_project(
    rows: EarlierRows, batch: Sequence[tuple[Noted, LeaseKeys | None]], pending: Sequence[Noted]
) -> dict[UUID, tuple[Evidence, frozenset[bytes]]]:
    unwritten = _Unwritten()
    for noted in pending:
        unwritten.add(noted)
    kept = await rows.branches({node.key for noted, _ in batch for node in noted.nodes})
    searches = []
    for noted, lease_keys in batch:
        searches.append(_Search(noted, lease_keys, kept, unwritten))
        unwritten.add(noted)
    for search in sorted(searches, key=lambda search: search.noted.record.at, reverse=True):
        await search.look_around(rows)
    records = await rows.records({id for search in searches for id in search.alike})
    records |= unwritten.records
    leases = [search.leases(records) for search in searches]
    ended = await rows.ended_leases({key for keys in leases for key in keys})
    return {
        search.noted.record.id: (
            search.evidence(records, _ended_before(search.noted.record.at, keys, ended)),
            frozenset(search.known),
        )
        for search, keys in zip(searches, leases, strict=True)
    }


def _ended_before(at: int, keys: Mapping[bytes, int], ended: Mapping[bytes, Sequence[EndedLease]]) -> list[Ended]:
    """What ended before an instant of the leases with these keys, the latest of each prefix."""
    rows = [row for key in keys for row in ended.get(key, ()) if row.created_at < at and row.ended_at <= at]
    latest: dict[int, Ended] = {}
    for row in sorted(rows, key=lambda row: row.ended_at):
        if row.cause in _ENDS:
            length = keys[row.prefix_key]
            latest[length] = Ended(length, _ENDS[row.cause], row.ended_at, row.lease_class)
    return list(latest.values())


def branches_of(noted: Noted) -> list[Branch]:
    """The nodes of a request as the database would have them."""
    id, at = noted.record.id, noted.record.at
    return [Branch(node.key, node.parent, node.start, node.hashes, id, at, id, at) for node in noted.nodes]


def _most_alike(record: RequestRecord, others: Sequence[RequestRecord]) -> Earlier | None:
    """The request of another family that has the most pieces in common; of equals, the latest."""
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

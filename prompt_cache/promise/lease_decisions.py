"""Deciding what the cache promises to requests, in their order, against the leases that there are.

Nothing here uses the database. For each request the longest live lease among its candidates is read, and what its marks
want beyond is written:

- `[0, hit)` is a read, of the hit's class;
- `[hit, mark)` is a write for each mark beyond, of the longest class among the marks at or beyond that place. Where
  longer classes come first, as the dialects demand, that is: up to the last marker of the longer class, then up to the
  last one.

A read begins the life of the hit anew, and that of the shorter leases in it, at no charge; it does not change a class.
A mark inside what is read begins no lease: how long its tokens were paid for is not known. A mark beyond it gets a
class that lives no longer than the hit's: else the price of a few tokens would promise all that was paid for a shorter
time. A live lease that is written again keeps its class, and a write of a longer class is billed as one of its own:
whether it is paid for is known later.

What is decided at admission is confirmed when the request has its first token (`prompt_cache.promise.confirmations`).
What does not stand then is decided again: leases whose writers have no token yet are passed over, and taken over where
the request has a mark at their end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.promise.lease_terms import LeasePart
from storage.database.base import new_id

LIFE_S: Mapping[str, int] = {"5m": 300, "30m": 1800, "1h": 3600, "12h": 43_200, "24h": 86_400}
"""How long a lease of a class lives after the start of the request that wrote or last read it, in seconds."""
_SECOND = 1_000_000
BLOCK_NAME = 8
"""Bytes of a block's key by which storage tells a project's blocks apart."""

LeaseKey: TypeAlias = tuple[UUID, bytes]
"""A project, and a prefix key."""


class Lease(Struct, frozen=True):
    """A promise, live or expired. Instants are microseconds of the database's clock since the Unix epoch.

    `new_tokens` are those beyond the lease before it in its chain that has not ended, which is `base`. `told`: whether
    its `writer` has a token, so that nobody takes its place any more. `paid`: whether it is certain that the writer
    pays; `billed`: that all before it is paid for too. `blocks`: see `prompt_cache.tables`.
    """

    id: UUID
    tenant_id: UUID
    project_id: UUID
    prefix_key: bytes
    model: str
    tokens: int
    new_tokens: int
    lease_class: str
    created_at: int
    written_at: int
    expires_at: int
    read_at: int | None
    reads: int
    writer: UUID
    billed: bool
    blocks: bytes = b""
    base: UUID | None = None
    told: bool = False
    paid: bool = False

    @property
    def firm(self) -> bool:
        """Whether its writer stays: it has a token, or all is paid for. Only a failure of ours can still end it."""
        return self.told or self.billed

    @property
    def key(self) -> LeaseKey:
        """Project and prefix, by which it is found."""
        return self.project_id, self.prefix_key

    def is_live(self, now: int) -> bool:
        """Whether what it promises holds at this instant."""
        return now < self.expires_at

    def refreshed(self, now: int) -> Lease:
        """The lease after a use at this instant: it never ends earlier than it did."""
        return replace(self, expires_at=max(self.expires_at, now + LIFE_S[self.lease_class] * _SECOND))


class Mark(Struct, frozen=True):
    """The client asks for a lease of this class on the first `tokens` tokens, whose prefix key is `key`."""

    tokens: int
    key: bytes
    lease_class: str


class LeaseWish(Struct, frozen=True, kw_only=True):
    """What a request asks of the cache.

    `marks` are in the order of their positions. `lookups` are the other prefix keys under which a lease may be found.
    `readable`: the classes whose reads have a price; `writable`: those whose writes have one too, None for the same
    ones. `may_write`: whether leases may begin. `max_age`: leases that were
    written more than so many seconds ago are not read. `blocks`: 8 bytes of the key of each whole block of the prompt,
    where storage has a price.
    """

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    model: str
    marks: tuple[Mark, ...]
    lookups: tuple[bytes, ...] = ()
    read: bool = True
    may_write: bool = True
    readable: frozenset[str] = frozenset(LIFE_S)
    writable: frozenset[str] | None = None
    max_age: int | None = None
    tags: tuple[str, ...] = ()
    blocks: bytes = b""

    @property
    def keys(self) -> Iterable[LeaseKey]:
        """Every lease that the decision may depend on."""
        for mark in self.marks:
            yield self.project_id, mark.key
        for key in self.lookups:
            yield self.project_id, key


class LeaseDecision(Struct, frozen=True, kw_only=True):
    """What a request is promised. `parts` go into its hold's terms, which bill it.

    `hit` is the lease that it reads, as it is after the read. `collapsed`: it is not certain yet whether its writer
    pays, so this read may share a write that runs; once the request runs, whether it did. `stale`: there was a lease,
    which is over or older than the request wants. `written` are the leases that begin with it. `limited`: tokens of its
    marks that got no lease, since the project has as many as it may have. `retained`: the tokens that are promised from
    now on, each with the instant until which.
    """

    request_id: UUID
    parts: tuple[LeasePart, ...] = ()
    hit: Lease | None = None
    collapsed: bool = False
    stale: bool = False
    written: tuple[Lease, ...] = ()
    limited: int = 0
    retained: tuple[tuple[int, int], ...] = ()
    changes: tuple[Lease, ...] = ()
    """Leases to be written, as they are after this request."""
    refused: tuple[Lease, ...] = ()
    """Those that the limit left out."""
    left: tuple[Lease, ...] = ()
    """Those that it was to write by what was decided earlier, and does not write."""

    @property
    def read_tokens(self) -> int:
        """Tokens that are billed as read."""
        return 0 if self.hit is None else self.hit.tokens

    @property
    def expires_at(self) -> int | None:
        """When the promise on the longest part of the prompt ends; None without any."""
        return max(self.retained)[1] if self.retained else None


class LeaseDecider:
    """Decides requests in order, and collects what is to be written.

    `found` are the leases there are under the requests' keys, `live_tokens` how many tokens of live leases each project
    has, and `most_tokens` how many it may have, 0 for any number.
    """

    def __init__(
        self, now: int, found: Iterable[Lease], live_tokens: Mapping[UUID, int] = {}, most_tokens: int = 0
    ) -> None:
        self.now = now
        self.changed: dict[LeaseKey, Lease] = {}
        self.replaced: list[Lease] = []
        """Expired leases whose place another one takes."""
        self.refused: list[Lease] = []
        self.failed: dict[UUID, Lease] = {}
        """Leases that their writer does not write after all, nor anybody else."""
        self.tags: set[tuple[UUID, str, UUID]] = set()
        """Lease, label and project."""
        self.added: dict[UUID, int] = defaultdict(int)
        """How many tokens of leases began, by project."""
        self._leases = {lease.key: lease for lease in found}
        self.found_ids = {lease.id for lease in self._leases.values()}
        """The leases that the database has."""
        self._live_tokens = live_tokens
        self._most_tokens = most_tokens
        self._passed: dict[LeaseKey, Lease] = {}
        """Leases that are as if they were not there, for a request that is decided again."""

    def decide(self, wish: LeaseWish) -> LeaseDecision:
        """What this request would be promised; nothing is changed until it is `take`n."""
        hits = self._readable(wish) if wish.read else []
        hit = max(hits, key=lambda lease: lease.tokens, default=None)
        start = 0 if hit is None else hit.tokens
        marks = self._wanted(wish, hit) if wish.may_write else []
        fitting, limited = self._fitting(wish.project_id, marks, start)
        parts: list[LeasePart] = []
        changes: list[Lease] = []
        if hit is not None:
            parts.append(LeasePart(start, "read", hit.lease_class))
            changes += [self._read(lease, counts=lease is hit) for lease in hits if lease.tokens <= start]
            hit = next(lease for lease in changes if lease.tokens == start)
        parts += _writes(fitting)
        written: list[Lease] = []
        for mark in fitting:
            written.append(self._written(wish, mark, written[-1] if written else hit))
        changes += written
        return LeaseDecision(
            request_id=wish.request_id,
            parts=tuple(parts),
            hit=hit,
            collapsed=hit is not None and not hit.billed,
            stale=wish.read and hit is None and any(self._at(key) is not None for key in wish.keys),
            written=tuple(written),
            limited=limited,
            retained=tuple(sorted((lease.tokens, lease.expires_at) for lease in changes)),
            changes=tuple(changes),
            refused=tuple(
                self._new(wish, mark, None, self.now, mark.lease_class) for mark in marks if mark not in fitting
            ),
        )

    def decide_again(self, wish: LeaseWish, earlier: LeaseDecision, admitted_at: int) -> LeaseDecision:
        """What this request is promised now that it has a token and what was decided `earlier` does not stand.

        Its leases live from its own start, and nobody takes them over any more.
        """
        self.now = admitted_at
        found = {key: lease for key in wish.keys if (lease := self._leases.get(key)) is not None}
        self._passed = {key: lease for key, lease in found.items() if not lease.firm}
        decision = self.decide(wish)
        hit = decision.hit
        if hit is not None and earlier.hit is not None and hit.id == earlier.hit.id:  # it is counted already
            hit = replace(hit, reads=hit.reads - 1)
        told = {lease.id: replace(lease, told=True) for lease in decision.written if lease.writer == wish.request_id}
        own = [lease for lease in self._passed.values() if lease.writer == wish.request_id]
        self._passed = {}
        changes = tuple(
            hit if hit is not None and lease.id == hit.id else told.get(lease.id, lease) for lease in decision.changes
        )
        kept = {lease.id for lease in changes}
        return replace(
            decision,
            hit=hit,
            written=tuple(told.get(lease.id, lease) for lease in decision.written),
            changes=changes,
            left=tuple(lease for lease in own if lease.id not in kept),
        )

    def take(self, wish: LeaseWish, decision: LeaseDecision) -> None:
        """Apply a decision. Later requests are decided on top of it; they may take over what this one leaves."""
        self.failed |= {lease.id: lease for lease in decision.left}
        for lease in decision.changes:
            self.failed.pop(lease.id, None)
            before = self._leases.get(lease.key)
            if before is not None and before.id != lease.id:
                self.replaced.append(before)
            same = before is not None and before.id == lease.id
            self.added[lease.project_id] += lease.new_tokens - (before.new_tokens if before is not None and same else 0)
            self._leases[lease.key] = self.changed[lease.key] = lease
            self.tags.update((lease.id, tag, lease.project_id) for tag in wish.tags)
        self.refused += decision.refused

    def _readable(self, wish: LeaseWish) -> list[Lease]:
        found = [lease for key in wish.keys if (lease := self._at(key)) is not None]
        least = 0 if wish.max_age is None else self.now - wish.max_age * _SECOND
        return [
            lease
            for lease in found
            if lease.is_live(self.now) and lease.written_at >= least and lease.lease_class in wish.readable
        ]

    def _at(self, key: LeaseKey) -> Lease | None:
        return None if key in self._passed else self._leases.get(key)

    def _wanted(self, wish: LeaseWish, hit: Lease | None) -> list[Mark]:
        """The marks beyond the hit, of the classes that they get."""
        beyond = [mark for mark in wish.marks if hit is None or mark.tokens > hit.tokens]
        classes = ((mark, self._class(wish, mark, hit)) for mark in beyond)
        return [replace(mark, lease_class=name) for mark, name in classes if name is not None]

    def _class(self, wish: LeaseWish, mark: Mark, hit: Lease | None) -> str | None:
        """The class of a lease at this mark: none that lives longer than the hit's, and on a live lease its own, or a
        shorter one that is asked for. None where no such class has a price."""
        writable = wish.readable if wish.writable is None else wish.writable
        before, wanted = self._at((wish.project_id, mark.key)), mark.lease_class
        # A class that we do not know, a newer gateway's, is neither renewed nor replaced.
        if before is not None and before.is_live(self.now) and LIFE_S[wanted] > LIFE_S.get(before.lease_class, 0):
            if before.lease_class not in writable:
                return None
            wanted = before.lease_class
        if hit is None or LIFE_S[wanted] <= LIFE_S[hit.lease_class]:
            return wanted
        shorter = (name for name in writable if LIFE_S[name] <= LIFE_S[hit.lease_class])
        return max(shorter, key=LIFE_S.__getitem__, default=None)

    def _fitting(self, project: UUID, marks: Sequence[Mark], start: int) -> tuple[list[Mark], int]:
        """The first marks that fit into the project's limit, and how many tokens the others would have had."""
        if not marks or not self._most_tokens:
            return list(marks), 0
        room = self._most_tokens - self._live_tokens.get(project, 0) - self.added.get(project, 0)
        fitting = [mark for mark in marks if mark.tokens - start <= room or self._live(project, mark.key)]
        # a mark beyond one that does not fit would cover its tokens too
        count = next((index for index, mark in enumerate(marks) if mark not in fitting), len(marks))
        end = marks[count - 1].tokens if count else start
        return list(marks[:count]), marks[-1].tokens - end

    def _live(self, project: UUID, key: bytes) -> bool:
        lease = self._leases.get((project, key))  # one that is passed over has its tokens counted too
        return lease is not None and lease.is_live(self.now)

    def _read(self, lease: Lease, *, counts: bool) -> Lease:
        read = lease.refreshed(self.now)
        return replace(read, reads=read.reads + 1, read_at=self.now) if counts else read

    def _written(self, wish: LeaseWish, mark: Mark, base: Lease | None) -> Lease:
        """The lease after this write. One that lives already, and was not to be read, keeps its class and is never cut
        short."""
        expires_at = self.now + LIFE_S[mark.lease_class] * _SECOND
        before = self._at((wish.project_id, mark.key))
        if before is None or not before.is_live(self.now):
            return self._new(wish, mark, base, expires_at, mark.lease_class)
        return replace(before, written_at=self.now, expires_at=max(before.expires_at, expires_at))

    def _new(self, wish: LeaseWish, mark: Mark, base: Lease | None, expires_at: int, lease_class: str) -> Lease:
        taken_over = self._passed.get((wish.project_id, mark.key))
        return Lease(
            id=new_id() if taken_over is None else taken_over.id,
            tenant_id=wish.tenant_id,
            project_id=wish.project_id,
            prefix_key=mark.key,
            model=wish.model,
            tokens=mark.tokens,
            new_tokens=mark.tokens - (0 if base is None else base.tokens),
            lease_class=lease_class,
            created_at=self.now,
            written_at=self.now,
            expires_at=expires_at,
            read_at=None,
            # who takes a lease over has been counted as its reader, unless it wrote it
            reads=0 if taken_over is None else max(0, taken_over.reads - (taken_over.writer != wish.request_id)),
            writer=wish.request_id,
            billed=False,
            blocks=wish.blocks[: mark.tokens // BLOCK_TOKENS * BLOCK_NAME],
            base=None if base is None else base.id,
        )


def _writes(marks: Sequence[Mark]) -> list[LeasePart]:
    """How the tokens up to the last mark are billed: each by the longest-lived class of the marks that cover it."""
    parts: list[LeasePart] = []
    longest = ""
    for mark in reversed(marks):
        longest = max(longest or mark.lease_class, mark.lease_class, key=LIFE_S.__getitem__)
        if not parts or parts[-1].lease != longest:
            parts.append(LeasePart(mark.tokens, "write", longest))
    return parts[::-1]

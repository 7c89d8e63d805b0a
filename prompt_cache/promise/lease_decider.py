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

At admission it is not certain that a request pays for what it writes: it may never run. Until then others may decide
to read what nobody has paid for. So a decision is confirmed when its request has its first token: then its leases are
`told`. Three decisions are made again: to read a lease whose writer has failed or has no token yet, to write where
another has become the writer meanwhile, and to write what another has begun that has no token yet: that one's lease is
of the class, and goes on from the lease, that it asked for. Then leases whose writers have no token yet are passed
over, and taken over where the request has a mark at their end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from msgspec.structs import replace

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.promise.lease_decisions import (
    BLOCK_NAME,
    LIFE_S,
    SECOND,
    Confirmation,
    Lease,
    LeaseDecision,
    LeaseKey,
    LeasePart,
    LeaseWish,
    Mark,
)
from storage.database.base import new_id


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

    def decide_again(
        self, wish: LeaseWish, earlier: LeaseDecision, admitted_at: int, reach: int | None = None
    ) -> LeaseDecision:
        """What this request is promised now that it has a token, or ends without one, and what was decided `earlier`
        does not stand. `reach`: as for `Confirmation`; it writes no lease beyond that, however it is billed.

        Its leases live from its own start, and nobody takes them over any more.
        """
        self.now = admitted_at
        found = {key: lease for key in wish.keys if (lease := self._leases.get(key)) is not None}
        self._passed = {key: lease for key, lease in found.items() if not lease.firm}
        decision = self.decide(wish)
        hit = decision.hit
        if hit is not None and earlier.hit is not None and hit.id == earlier.hit.id:  # it is counted already
            hit = replace(hit, reads=hit.reads - 1)
        beyond = {lease.id for lease in decision.written if reach is not None and lease.tokens > reach}
        written = tuple(
            replace(lease, told=True) if lease.writer == wish.request_id else lease
            for lease in decision.written
            if lease.id not in beyond
        )
        told = {lease.id: lease for lease in written}
        own = [lease for lease in self._passed.values() if lease.writer == wish.request_id]
        self._passed = {}
        changes = tuple(
            hit if hit is not None and lease.id == hit.id else told.get(lease.id, lease)
            for lease in decision.changes
            if lease.id not in beyond
        )
        kept = {lease.id for lease in changes}
        return replace(
            decision,
            hit=hit,
            written=written,
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

    def confirm(self, asked: Sequence[Confirmation], purged: Mapping[UUID, UUID | None]) -> list[bool]:
        """Confirm the decisions that stand, of requests that ask at the same time, in any order; returns which do.

        `purged`: leases that were purged, with their writers that had not paid by then. Each confirmed writer may let
        decisions of readers stand that did not before; so look until none is added.
        """
        leases = {lease.id: lease for lease in self._leases.values()}
        stand = [False] * len(asked)
        progress = True
        while progress:
            progress = False
            for at, one in enumerate(asked):
                if stand[at] or not _stands(one.decision, leases, purged):
                    continue
                stand[at] = progress = True
                told, failed = _confirmed(one, leases)
                self.changed |= {lease.key: lease for lease in told}
                leases |= {lease.id: lease for lease in told}
                for lease in failed:
                    self.failed[lease.id] = leases.pop(lease.id)
                    self.changed.pop(lease.key, None)
        return stand

    def _readable(self, wish: LeaseWish) -> list[Lease]:
        found = [lease for key in wish.keys if (lease := self._at(key)) is not None]
        least = 0 if wish.max_age is None else self.now - wish.max_age * SECOND
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
        expires_at = self.now + LIFE_S[mark.lease_class] * SECOND
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


def _stands(decision: LeaseDecision, leases: Mapping[UUID, Lease], purged: Mapping[UUID, UUID | None]) -> bool:
    """Whether the decision can be told, given the leases that there are, and those that were purged with their writers
    that had not paid by then.

    One that was purged while its writer ran is paid for by that one and stays ended.
    """
    hit, request = decision.hit, decision.request_id
    if hit is not None and not hit.billed:
        found = leases.get(hit.id)
        if found is None or not found.firm or found.lease_class != hit.lease_class:
            return False
    for written in decision.written:
        found = leases.get(written.id)
        if found is None:
            if written.id not in purged or (written.writer == request and purged[written.id] != request):
                return False
        elif found.writer != request and not (
            written.writer != request and found.firm and found.lease_class == written.lease_class
        ):
            return False
    return True


def _confirmed(confirmation: Confirmation, leases: Mapping[UUID, Lease]) -> tuple[list[Lease], list[Lease]]:
    """What changes for the leases of a decision that stands: those to be updated, and those that end.

    Updated are the leases that it wrote, which are told now, and those of others that it reads or writes again, which
    live at least as long as was decided even if another writer has taken them over. Those end whose writer ended before
    it had computed their tokens.
    """
    told: list[Lease] = []
    failed: list[Lease] = []
    decision = confirmation.decision
    for used in (*decision.written, *(() if decision.hit is None else (decision.hit,))):
        lease = leases.get(used.id)
        if lease is None:
            continue
        if lease.writer != decision.request_id:
            if lease.expires_at < used.expires_at:
                told.append(replace(lease, expires_at=used.expires_at))
        elif confirmation.reach is not None and lease.tokens > confirmation.reach:
            failed.append(lease)
        else:
            told.append(replace(lease, told=True))
    return told, failed

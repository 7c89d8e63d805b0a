"""Leases so simple that they are plainly right: a dict, and each token of a prompt looked at on its own."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import msgspec

LIVES = {"5m": 300, "30m": 1800, "1h": 3600, "12h": 43_200, "24h": 86_400}
SECOND = 1_000_000


class Asked(msgspec.Struct, frozen=True):
    """A request of the model. `path` is its text, a letter for each piece; `marks`: pieces -> class; `lookups`: other
    numbers of pieces after which a lease may be found."""

    path: str
    marks: tuple[tuple[int, str], ...] = ()
    lookups: tuple[int, ...] = ()
    read: bool = True
    max_age: int | None = None
    only_if_cached: bool = False


class Promise(msgspec.Struct):
    tokens: int
    new: int
    lease_class: str
    written: int
    expires: int
    writer: UUID
    base: Promise | None = None
    paid: bool = False

    @property
    def billed(self) -> bool:
        """All of its tokens are paid for."""
        return self.paid and (self.base is None or self.base.billed)


Bill = tuple[tuple[str, int], ...]
"""Meter -> tokens, in order."""


def bill_of(meters: list[str]) -> Bill:
    """The bill for a prompt of which each token counts on a meter."""
    return tuple(sorted(Counter(meters).items()))


class LeaseModel:
    """One project's leases. `piece`: tokens of a piece; `most`: of leases, 0 for any number."""

    def __init__(self, piece: int, most: int = 0) -> None:
        self.piece = piece
        self.most = most
        self.leases: dict[str, Promise] = {}

    def live(self, path: str, now: int) -> Promise | None:
        found = self.leases.get(path)
        return found if found is not None and now < found.expires else None

    def ask(self, asked: Asked, writer: UUID, now: int) -> list[str] | None:
        """The meter of each token; None if the request is refused because nothing is cached."""
        candidates = {asked.path[:pieces] for pieces in {*dict(asked.marks), *asked.lookups}}
        oldest = now - asked.max_age * SECOND if asked.max_age is not None else 0
        hits = {
            path: lease
            for path in candidates
            if asked.read and (lease := self.live(path, now)) is not None and lease.written >= oldest
        }
        hit = max(hits, key=len, default="")
        if asked.only_if_cached and not hit:
            return None
        start = len(hit)
        meters = [f"read_{hits[hit].lease_class}"] * (start * self.piece) if hit else []
        for lease in hits.values():
            lease.expires = max(lease.expires, now + LIVES[lease.lease_class] * SECOND)
        wanted = sorted(mark for mark in asked.marks if mark[0] > start)
        for at, (pieces, lease_class) in enumerate(wanted):
            if (kept := self.live(asked.path[:pieces], now)) is not None:
                wanted[at] = pieces, min(kept.lease_class, lease_class, key=LIVES.__getitem__)
            if hit:
                wanted[at] = pieces, min(wanted[at][1], hits[hit].lease_class, key=LIVES.__getitem__)
        room = self.most - sum(lease.new for lease in self.leases.values() if now < lease.expires)
        granted: list[tuple[int, str]] = []
        for pieces, lease_class in wanted:
            fits = (pieces - start) * self.piece <= room or self.live(asked.path[:pieces], now)
            if self.most and not fits:
                break
            granted.append((pieces, lease_class))
        for piece in range(start, granted[-1][0] if granted else start):
            longest = max((c for pieces, c in granted if pieces > piece), key=LIVES.__getitem__)
            meters += [f"write_{longest}"] * self.piece
        base = self.leases[hit] if hit else None
        for pieces, lease_class in granted:
            path, expires = asked.path[:pieces], now + LIVES[lease_class] * SECOND
            if (kept := self.live(path, now)) is not None:
                kept.written, kept.expires = now, max(kept.expires, expires)
            else:
                self.end([path])
                tokens = pieces * self.piece
                new = tokens - (base.tokens if base is not None else 0)
                self.leases[path] = Promise(tokens, new, lease_class, now, expires, writer, base)
            base = self.leases[path]
        return meters + ["uncached"] * (len(asked.path) * self.piece - len(meters))

    def ended(self, writer: UUID, prompt: int) -> None:
        """A request was billed for so many tokens of its prompt."""
        for lease in [lease for lease in self.leases.values() if lease.writer == writer and not lease.paid]:
            lease.paid = lease.tokens <= prompt
            if not lease.paid:
                self.fail(lease)

    def fail(self, failed: Promise) -> None:
        """It is no more, and neither is what goes on from it."""
        self.leases = {path: lease for path, lease in self.leases.items() if lease is not failed}
        for beyond in [lease for lease in self.leases.values() if lease.base is failed]:
            self.fail(beyond)

    def reclaim(self, now: int) -> None:
        """What has expired ends."""
        self.end([path for path, lease in self.leases.items() if now >= lease.expires])

    def end(self, paths: list[str]) -> None:
        """These are no more: what goes on from one of them counts its tokens too."""
        for path in paths:
            if (gone := self.leases.pop(path, None)) is None:
                continue
            for lease in self.leases.values():  # one that ends next hands on what it was given
                if lease.base is gone:
                    lease.new, lease.base = lease.new + gone.new, gone.base

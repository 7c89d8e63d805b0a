"""Leases, what requests wish of them, and what was decided: their prompts are billed by that, whatever tiers hold (C6).

A decision is made in the transaction that takes the request's hold, and frozen there; `lease_decider` makes it. It is
confirmed when the request has its first token, before anything is told to its client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

LIFE_S: Mapping[str, int] = {"5m": 300, "30m": 1800, "1h": 3600, "12h": 43_200, "24h": 86_400}
"""How long a lease of a class lives after the start of the request that wrote or last read it, in seconds."""
SECOND = 1_000_000
BLOCK_NAME = 8
"""Bytes of a block's key by which storage tells a project's blocks apart."""

LeaseKey: TypeAlias = tuple[UUID, bytes]
"""A project, and a prefix key."""


class Lease(Struct, frozen=True):
    """A promise, live or expired. Instants are microseconds of the database's clock since the Unix epoch.

    `new_tokens` are those beyond the lease before it in its chain that has not ended, which is `base`. `told`: whether
    its `writer` has a token, so that nobody takes its place any more. `paid`: whether it is certain that the writer
    pays; `billed`: that all before it is paid for too. `unsettled_base` and `blocks`: see `prompt_cache.tables`.
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
    unsettled_base: UUID | None = None

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
        return replace(self, expires_at=max(self.expires_at, now + LIFE_S[self.lease_class] * SECOND))


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


class LeasePart(Struct, frozen=True, array_like=True):
    """The prompt's tokens up to `until`, from where the part before it ends, are a read or a write of a lease class."""

    until: int
    kind: Literal["read", "write"]
    lease: str


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


class Confirmation(Struct, frozen=True):
    """A request has its first token, or ends without one: then its prompt was computed up to `reach` tokens."""

    decision: LeaseDecision
    reach: int | None = None

    @property
    def lease_ids(self) -> Iterable[UUID]:
        """Every lease that the answer depends on."""
        if self.decision.hit is not None:
            yield self.decision.hit.id
        for lease in self.decision.written:
            yield lease.id


def is_certain(decision: LeaseDecision) -> bool:
    """Whether nothing that others do can change this decision any more: it writes nothing, and what it reads is paid
    for."""
    return not decision.written and (decision.hit is None or decision.hit.billed)


def split_prompt(parts: Sequence[LeasePart], tokens: int) -> tuple[dict[str, int], dict[str, int], int]:
    """How the first `tokens` tokens of a prompt are billed: tokens read by class, tokens written by class, and how many
    tokens the parts cover together."""
    read: dict[str, int] = {}
    write: dict[str, int] = {}
    start = 0
    for part in parts:
        end = min(part.until, tokens)
        if end > start:
            meters = read if part.kind == "read" else write
            meters[part.lease] = meters.get(part.lease, 0) + end - start
            start = end
    return read, write, start


def written_tokens(parts: Sequence[LeasePart], tokens: int) -> range:
    """Which of the first `tokens` tokens of a prompt are billed as writes."""
    read, _, covered = split_prompt(parts, tokens)
    return range(sum(read.values()), covered)

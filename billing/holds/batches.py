"""Holds that are taken together: one row of the database for many, since each row costs every request.

What is reserved in one transaction for the requests of one tenant, from the same sources, is a batch. Its row says
which of its holds are still open, and of what amount each: 24 bytes for each, so that a row stays within its page while
they end, a few at a time, and is gone with the last. The requests themselves, whole, lie beside it (TOAST) and never
change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from struct import Struct
from uuid import UUID

import msgspec

from billing.holds.records import Hold, HoldRequest, grants_in, pack_all, split, unpack_all

MOST = 64
"""Holds of a batch: with more, the row would not fit into a quarter of a page, and be stored beside it too."""

_ENTRY = Struct(">16sq")
_SIZE = _ENTRY.size


class HoldEntry(msgspec.Struct, frozen=True):
    """A hold to be taken, or to be moved to a batch of its own: of this amount, from these sources
    (`billing.holds.records.join`)."""

    request: HoldRequest
    amount_pico: int
    sources: str = ""


class NewBatch(msgspec.Struct, frozen=True):
    """A row that is to be written, called after the least of its requests' ids. `lifetime_s` is that of the hold that
    expires first."""

    id: UUID
    ids: list[UUID]
    tenant_id: UUID
    gateway: str
    sources: str
    lifetime_s: int
    first: UUID
    last: UUID
    amount_pico: int
    entries: bytes
    requests: bytes


class HoldBatch(msgspec.Struct, frozen=True):
    """A row that was read. `entries` are the ids and amounts of the holds that are open, and `amount_pico` their sum;
    `first` and `last` are the least and the greatest id that it ever had. `requests` is empty if it was not asked for.
    """

    id: UUID
    tenant_id: UUID
    gateway: str
    sources: str
    admitted_at: int
    expires_at: int
    first: UUID
    last: UUID
    open: int
    amount_pico: int
    entries: bytes
    requests: bytes = b""

    def ids(self) -> set[bytes]:
        """The ids of the open holds."""
        return open_ids(self.entries)

    def amounts(self) -> dict[bytes, int]:
        """The amounts of the open holds, by id."""
        return dict(_ENTRY.iter_unpack(self.entries))

    def asked(self) -> dict[UUID, HoldRequest]:
        """The requests of the open holds."""
        ids = self.ids()
        return {one.request_id: one for one in unpack_all(self.requests) if one.request_id.bytes in ids}

    def holds(self) -> list[Hold]:
        """The open holds."""
        amounts = self.amounts()
        budgets, grants = split(self.sources), grants_in(self.sources)
        return [
            Hold.of(one, self.admitted_at, amounts[id.bytes], batch=self.id, budgets=budgets, grants=grants)
            for id, one in self.asked().items()
        ]

    def without(self, ended: Collection[bytes]) -> HoldBatch:
        """The row after these of its open holds have ended; it expires when it did, which may be early."""
        if len(ended) == self.open:
            return msgspec.structs.replace(self, open=0, amount_pico=0, entries=b"")
        return self.amended(dict.fromkeys(ended))

    def amended(self, changes: Mapping[bytes, int | None]) -> HoldBatch:
        """The row with other amounts of some of its holds; one of None is not here any more."""
        left = {id: changes.get(id, amount) for id, amount in self.amounts().items()}
        amounts = {id: amount for id, amount in left.items() if amount is not None}
        return msgspec.structs.replace(
            self, open=len(amounts), amount_pico=sum(amounts.values()), entries=_entries(amounts.items())
        )


def open_ids(entries: bytes) -> set[bytes]:
    """The ids of the open holds of a row."""
    return {entries[at : at + 16] for at in range(0, len(entries), _SIZE)}


def group_into_batches(asked: Iterable[HoldEntry]) -> list[NewBatch]:
    """What is asked for at one instant, in batches."""
    groups: dict[tuple[UUID, str, str], list[HoldEntry]] = {}
    for one in asked:
        groups.setdefault((one.request.tenant_id, one.request.gateway, one.sources), []).append(one)
    return [
        _batch(*of, group[start : start + MOST]) for of, group in groups.items() for start in range(0, len(group), MOST)
    ]


def _batch(tenant: UUID, gateway: str, sources: str, asked: Sequence[HoldEntry]) -> NewBatch:
    requests = [one.request for one in asked]
    ids = [request.request_id for request in requests]
    numbers = [id.int for id in ids]
    amounts = [one.amount_pico for one in asked]
    first = UUID(int=min(numbers))
    return NewBatch(
        first,
        ids,
        tenant,
        gateway,
        sources,
        min([request.lifetime_s for request in requests]),
        first,
        UUID(int=max(numbers)),
        sum(amounts),
        _entries(zip([id.bytes for id in ids], amounts, strict=True)),
        pack_all(requests),
    )


def _entries(amounts: Iterable[tuple[bytes, int]]) -> bytes:
    return b"".join([_ENTRY.pack(*one) for one in amounts])

"""Holds that are taken together: one row of the database for many, since each row costs every request.

What is reserved in one transaction for the requests of one tenant, from the same sources, is a batch. Its row says
which of its holds are still open, and of what amount each: 24 bytes for each, so that a row stays within its page while
they end, a few at a time. The row is deleted with its last hold. The requests themselves lie whole beside it (TOAST)
and never change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from struct import Struct
from uuid import UUID

import msgspec

from billing.holds.records import NO_SOURCES, Hold, HoldRequest, HoldSources, pack_all, unpack_all

MAX_HOLDS = 64
"""Holds of a batch: with more, the row would not fit into a quarter of a page, and be stored beside it too."""

_ENTRY = Struct(">16sq")  # the request's id, and the amount


class HoldEntry(msgspec.Struct, frozen=True):
    """A hold to be taken, or to be moved to a batch of its own: of this amount, from these sources."""

    request: HoldRequest
    amount_pico: int
    sources: HoldSources = NO_SOURCES


class NewBatch(msgspec.Struct, frozen=True):
    """A row to be written. Its `id` is the least of its requests' ids; `lifetime_s` is that of the hold that expires
    first. The rest is as in HoldBatch."""

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
    """A row as the database has it. `gateway` is an epoch. `sources` is a HoldSources, encoded. `entries` are the ids
    and amounts of the `open` holds, and `amount_pico` their sum; `first` and `last` are the least and the greatest
    id that it ever had. `requests` is empty if it was not asked for.
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

    def open_requests(self) -> dict[UUID, HoldRequest]:
        """The requests of the open holds, by id."""
        ids = self.ids()
        requests = unpack_all(self.requests)
        return {request.request_id: request for request in requests if request.request_id.bytes in ids}

    def holds(self) -> list[Hold]:
        """The open holds."""
        amounts, sources = self.amounts(), HoldSources.decode(self.sources)
        return [
            Hold.of(request, self.admitted_at, amounts[id.bytes], sources=sources, batch=self.id)
            for id, request in self.open_requests().items()
        ]

    def without(self, ended: Collection[bytes]) -> HoldBatch:
        """The row after these of its open holds have ended; it expires when it did, which may be early."""
        if len(ended) == self.open:
            return msgspec.structs.replace(self, open=0, amount_pico=0, entries=b"")
        return self.amended(dict.fromkeys(ended))

    def amended(self, changes: Mapping[bytes, int | None]) -> HoldBatch:
        """The row with other amounts of some of its holds; None takes a hold out."""
        changed = {id: changes.get(id, amount) for id, amount in self.amounts().items()}
        amounts = {id: amount for id, amount in changed.items() if amount is not None}
        return msgspec.structs.replace(
            self, open=len(amounts), amount_pico=sum(amounts.values()), entries=_entries(amounts.items())
        )


def open_ids(entries: bytes) -> set[bytes]:
    """The ids of the open holds of a row."""
    return {entries[at : at + 16] for at in range(0, len(entries), _ENTRY.size)}


def group_into_batches(entries: Iterable[HoldEntry]) -> list[NewBatch]:
    """The batches of holds that are taken at one instant."""
    groups: dict[tuple[UUID, str, str], list[HoldEntry]] = {}
    for entry in entries:
        request, sources = entry.request, entry.sources
        key = (request.tenant_id, request.gateway_epoch, "" if sources is NO_SOURCES else sources.encode())
        groups.setdefault(key, []).append(entry)
    return [
        _new_batch(sources, group[start : start + MAX_HOLDS])
        for (_, _, sources), group in groups.items()
        for start in range(0, len(group), MAX_HOLDS)
    ]


def _new_batch(sources: str, entries: Sequence[HoldEntry]) -> NewBatch:
    """The batch of holds of one tenant and gateway epoch."""
    requests = [entry.request for entry in entries]
    ids = [request.request_id for request in requests]
    numbers = [id.int for id in ids]
    amounts = [entry.amount_pico for entry in entries]
    first = UUID(int=min(numbers))
    return NewBatch(
        id=first,
        ids=ids,
        tenant_id=requests[0].tenant_id,
        gateway=requests[0].gateway_epoch,
        sources=sources,
        lifetime_s=min([request.lifetime_s for request in requests]),
        first=first,
        last=UUID(int=max(numbers)),
        amount_pico=sum(amounts),
        entries=_entries(zip([id.bytes for id in ids], amounts, strict=True)),
        requests=pack_all(requests),
    )


def _entries(amounts: Iterable[tuple[bytes, int]]) -> bytes:
    return b"".join([_ENTRY.pack(*entry) for entry in amounts])

"""Events of lost attempts: what a replica did for a request that was then tried again. They bill nothing.

Such an event has the counts of the first replica's journal, so that journals and events agree. It belongs to the
request as an adjustment does (`corrects`): it is no request itself, holds no money and changes no usage.
"""

from __future__ import annotations

import hashlib
import time
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.tables.money import usage_event
from billing.usage import Counts, RecordedBy, Usage, UsageEvent
from storage.database.database import Database

_RANDOM_BITS = 62
"""The last bits of a UUIDv7, which are random."""


class AttemptedRequest(msgspec.Struct, frozen=True):
    """A request that was tried again; fields as in UsageEvent."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    admitted_at: int
    period: str


class LostAttempt(msgspec.Struct, frozen=True):
    """An attempt that was lost, as its replica's journal has it; fields as in UsageEvent."""

    attempt: int
    replica: str
    model_digest: str
    sequence: int
    reason: str
    counts: Counts
    source: RecordedBy


def attempt_id(request_id: UUID, attempt: int) -> UUID:
    """The id of a lost attempt's event: a UUIDv7 of the request's time, made of the request's id and the attempt."""
    digest = hashlib.sha256(request_id.bytes + attempt.to_bytes(4)).digest()
    mask = (1 << _RANDOM_BITS) - 1
    return UUID(int=request_id.int & ~mask | int.from_bytes(digest[:8]) & mask)


def lost_attempt(request: AttemptedRequest, lost: LostAttempt) -> UsageEvent:
    """The event of a lost attempt. Raises InvalidUsage, InvalidPeriod."""
    fields = msgspec.structs.asdict(request) | msgspec.structs.asdict(lost)
    del fields["request_id"]
    return UsageEvent(
        **fields,
        id=attempt_id(request.request_id, lost.attempt),
        finished_at=max(request.admitted_at, time.time_ns() // 1000),
        status="failed",
        delivery="confirmed",
        usage=Usage(),
        cost_pico=0,
        corrects=request.request_id,
    )


def lost_attempt_of(event: UsageEvent) -> UsageEvent:
    """The lost attempt that an event describes, if its request is billed by the event of another attempt."""
    request = AttemptedRequest(event.id, *(getattr(event, name) for name in AttemptedRequest.__struct_fields__[1:]))
    return lost_attempt(request, LostAttempt(**{name: getattr(event, name) for name in LostAttempt.__struct_fields__}))


async def other_attempt(database: Database, request_id: UUID, attempt: int) -> AttemptedRequest | None:
    """The request, if its event is of another attempt than this; else None. Raises DatabaseUnavailable."""
    of = usage_event.c  # all tenants: a journal knows requests by their ids alone
    names = [name for name in AttemptedRequest.__struct_fields__ if name != "request_id"]
    query = select(*(of[name] for name in names)).where(of.id == request_id, of.attempt != attempt)
    async with database.reading() as session:
        row = (await session.execute(query)).one_or_none()
    return None if row is None else AttemptedRequest(request_id, *row)

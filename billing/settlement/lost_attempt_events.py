"""What a lost attempt of a request did, when the request was tried again: an event of its own, which bills nothing.

It counts what the first replica's journal counted, so that journals and events agree, and belongs to the request as an
adjustment does: it is no request itself, holds no money and changes no usage.
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
"""How many of a UUIDv7's last bits say nothing of its time."""


class AttemptedRequest(msgspec.Struct, frozen=True):
    """Whose request was tried again, and under which terms; instants as in UsageEvent."""

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
    """An attempt that came to nothing: on which replica, under which number of its journal, and what it did."""

    attempt: int
    replica: str
    model_digest: str
    sequence: int
    reason: str
    counts: Counts
    source: RecordedBy


def attempt_id(request_id: UUID, attempt: int) -> UUID:
    """The id of a lost attempt's event: of the request's time, and the same however often it is asked for."""
    digest = hashlib.sha256(request_id.bytes + attempt.to_bytes(4)).digest()
    mask = (1 << _RANDOM_BITS) - 1
    return UUID(int=request_id.int & ~mask | int.from_bytes(digest[:8]) & mask)


def lost_attempt(of: AttemptedRequest, lost: LostAttempt) -> UsageEvent:
    """The event of a lost attempt. Raises InvalidUsage, InvalidPeriod."""
    return UsageEvent(
        id=attempt_id(of.request_id, lost.attempt),
        tenant_id=of.tenant_id,
        project_id=of.project_id,
        key_id=of.key_id,
        model=of.model,
        model_digest=lost.model_digest,
        lane=of.lane,
        price_version=of.price_version,
        admitted_at=of.admitted_at,
        finished_at=max(of.admitted_at, time.time_ns() // 1000),
        period=of.period,
        status="failed",
        reason=lost.reason,
        delivery="confirmed",
        source=lost.source,
        replica=lost.replica,
        sequence=lost.sequence,
        attempt=lost.attempt,
        counts=lost.counts,
        usage=Usage(),
        cost_pico=0,
        corrects=of.request_id,
    )


def lost_attempt_of(event: UsageEvent) -> UsageEvent:
    """What is left of a request's event, if the request is billed by the event of another attempt."""
    of = AttemptedRequest(event.id, *(getattr(event, name) for name in AttemptedRequest.__struct_fields__[1:]))
    return lost_attempt(of, LostAttempt(**{name: getattr(event, name) for name in LostAttempt.__struct_fields__}))


async def other_attempt(database: Database, request_id: UUID, attempt: int) -> AttemptedRequest | None:
    """The request, if its event is that of another attempt than this; else None. Raises DatabaseUnavailable."""
    of = usage_event.c  # all tenants: a journal knows requests by their ids alone
    names = [name for name in AttemptedRequest.__struct_fields__ if name != "request_id"]
    query = select(*(of[name] for name in names)).where(of.id == request_id, of.attempt != attempt)
    async with database.reading() as session:
        row = (await session.execute(query)).one_or_none()
    return None if row is None else AttemptedRequest(request_id, *row)

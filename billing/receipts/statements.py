"""What a receipt says of an event: its canonical JSON, the same from the event and from its row in the database.

Left out are what names our machines (replica, journal sequence, attempt) and the billing period, which an event that is
settled late changes: the head of the day's file says it. Costs are text, since they may not be exact as JSON numbers.
A form never changes: `v` says which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from billing.usage import COUNTS, METERS, UsageEvent

FORM = 1
"""The form of new statements."""


class Statement(Struct, frozen=True, kw_only=True, gc=False):
    """What happened and what it costs. `units` are billed tokens by meter, `counts` what the engine did; what is 0 is
    left out of both. Instants are microseconds since the Unix epoch, costs pico-units of the price's currency."""

    v: int = FORM
    id: UUID
    tenant: UUID
    project: UUID
    key: UUID
    model: str
    model_digest: str
    lane: str
    price_version: int
    context_from: int
    admitted_at: int
    finished_at: int
    status: str
    reason: str
    delivery: str
    source: str
    counts: dict[str, int]
    units: dict[str, int]
    cost_pico: str
    corrects: UUID | UnsetType = UNSET


_encode = msgspec.json.Encoder(order="sorted").encode
_SAME = (
    *("id", "model", "model_digest", "lane", "price_version", "context_from", "admitted_at", "finished_at"),
    *("status", "reason", "delivery", "source"),
)


def statement_of(event: UsageEvent) -> bytes:
    """The statement of an event that is about to be recorded."""
    counts = structs.asdict(event.counts)
    return _encode(
        Statement(
            id=event.id,
            tenant=event.tenant_id,
            project=event.project_id,
            key=event.key_id,
            model=event.model,
            model_digest=event.model_digest,
            lane=event.lane,
            price_version=event.price_version,
            context_from=event.context_from,
            admitted_at=event.admitted_at,
            finished_at=event.finished_at,
            status=event.status,
            reason=event.reason,
            delivery=event.delivery,
            source=event.source,
            counts={name: tokens for name, tokens in counts.items() if tokens},
            units=dict(event.usage.used()),
            cost_pico=str(event.cost_pico),
            corrects=UNSET if event.corrects is None else event.corrects,
        )
    )


def statement_of_row(row: Mapping[Any, Any]) -> bytes:
    """The statement of an event as the database has it: a row of the view `usage_event`."""
    return _encode(
        Statement(
            **{name: row[name] for name in _SAME},
            tenant=row["tenant_id"],
            project=row["project_id"],
            key=row["key_id"],
            counts={name: tokens for name in COUNTS if (tokens := row[f"count_{name}"])},
            units={meter: tokens for meter in METERS if (tokens := row[meter])},
            cost_pico=str(int(row["cost_pico"])),
            corrects=UNSET if row["corrects"] is None else row["corrects"],
        )
    )


def statement_digest(statement: bytes) -> bytes:
    """The digest of a statement, by which receipts and files name what it says."""
    return sha256(statement).digest()

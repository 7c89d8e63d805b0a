"""The hash chain of usage events: an event that is altered, removed or slipped in shows, whoever did it.

The leaf of an event is the SHA-256 of all that it says. What one transaction settles of a tenant's period is a batch:
the ids and leaves of its events, in the order of their ids; its root is the SHA-256 of these. Each batch continues the
chain of its tenant and period: head = SHA-256(head before ‖ root), from a head that names the tenant and the period.
The last head stands in `usage_chain`, and when a period closes the digest of all its heads is kept in `billing_period`,
so that cutting off the end shows too. `billing.audit_chain` computes all of it again from the events alone.

A tenant's chain needs no other tenant's events, and a leaf and its batch prove that an event is in it (RFC 6962 has a
tree in place of the batch, for logs in which they would be too long).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import RowMapping

from billing.usage import UsageEvent

FIELDS = (
    "id", "tenant_id", "project_id", "key_id", "model", "model_digest", "lane", "price_version", "admitted_at",
    "finished_at", "period", "status", "reason", "delivery", "source", "replica", "sequence", "attempt", "cost_pico",
    "context_from",
)  # fmt: skip
COUNTED = ("prompt", "computed", "read_hbm", "read_dram", "read_nvme", "output", "recomputed", "drafted", "accepted")
READ = ("automatic", "5m", "30m", "1h", "12h", "24h")
WRITTEN = ("5m", "30m", "1h", "12h", "24h")
COLUMNS = (
    *FIELDS,
    *(f"count_{name}" for name in COUNTED),
    "uncached",
    *(f"read_{name}" for name in READ),
    *(f"write_{name}" for name in WRITTEN),
    "output",
    "corrects",
)
"""What a leaf is made of, in this order for ever. What events come to say later is added at the end; if it is 0, empty
or absent there, it changes no leaf."""

LEAF = 32
ENTRY = 16 + LEAF
"""Bytes of an event in its batch: id and leaf."""

_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_plain = attrgetter(*FIELDS, *(f"counts.{name}" for name in COUNTED), "usage.uncached")
_columns = itemgetter(*COLUMNS)


class Batch(msgspec.Struct, frozen=True):
    """What one transaction settles of a tenant's period: how many events, and their entries."""

    tenant_id: UUID
    period: str
    events: int
    entries: bytes

    @property
    def root(self) -> bytes:
        """The digest of the batch."""
        return sha256(self.entries).digest()


def start(tenant_id: UUID, period: str) -> bytes:
    """The head of a chain before its first batch."""
    return sha256(b"turnpike usage " + tenant_id.bytes + period.encode()).digest()


def following(head: bytes, root: bytes) -> bytes:
    """The head after another batch."""
    return sha256(head + root).digest()


def root_of(heads: Mapping[UUID, bytes]) -> bytes:
    """The digest of a whole period: of its tenants' heads, in the order of their ids."""
    return sha256(b"".join(tenant.bytes + heads[tenant] for tenant in sorted(heads))).digest()


def leaf_of(event: UsageEvent) -> bytes:
    """The leaf of an event."""
    usage = event.usage
    values = (
        *_plain(event),
        *map(usage.read.get, READ, repeat(0)),
        *map(usage.write.get, WRITTEN, repeat(0)),
        usage.output,
        event.corrects,
    )
    return _leaf(values)


def leaf_of_row(row: RowMapping) -> bytes:
    """The leaf of an event as the database has it: a row with at least COLUMNS."""
    return _leaf(_columns(row))


def _leaf(values: tuple[Any, ...]) -> bytes:
    while not values[-1]:
        values = values[:-1]
    return sha256(_encode(values)).digest()


def batches(events: Iterable[UsageEvent]) -> list[Batch]:
    """The batches that these new events make, in the order of tenant and period."""
    groups: dict[tuple[int, str], list[bytes]] = defaultdict(list)
    for event in events:
        groups[event.tenant_id.int, event.period].append(event.id.bytes + leaf_of(event))
    return [
        Batch(UUID(int=tenant), period, len(entries), b"".join(sorted(entries)))
        for (tenant, period), entries in sorted(groups.items())
    ]


def entries_of(entries: bytes) -> list[tuple[UUID, bytes]]:
    """The ids and leaves of a batch."""
    return [(UUID(bytes=entries[at : at + 16]), entries[at + 16 : at + ENTRY]) for at in range(0, len(entries), ENTRY)]

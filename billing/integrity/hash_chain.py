"""The hash chain of usage events: an event that is altered, removed or slipped in shows, whoever did it.

The leaf of an event is the SHA-256 of all that it says. What one transaction settles of a tenant's period is a batch:
the ids and leaves of its events, in the order of their ids; its root is the SHA-256 of these. Each batch continues the
chain of its tenant and period: head = SHA-256(head before ‖ root), from a head that names the tenant and the period.
The last head stands in `usage_chain`, and when a period closes the digest of all its heads is kept in `billing_period`,
so that cutting off the end shows too. `billing.verification.chain` computes all of it again from the events alone.

A tenant's chain needs no other tenant's events, and a leaf and its batch prove that an event is in it (RFC 6962 has a
tree in place of the batch, for logs in which they would be too long).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from uuid import UUID

import msgspec
import numpy as np
from sqlalchemy import RowMapping

from billing.events.columns import Bytes, groups
from billing.events.rows import EventRows, record_of
from billing.usage import TRAITS

COLUMNS = (
    "id", "tenant_id", "project_id", "key_id", "price_version", "context_from", "admitted_at", "finished_at", "period",
    "sequence", "attempt",
    "count_prompt", "count_computed", "count_read_hbm", "count_read_dram", "count_read_nvme", "count_output",
    "count_recomputed", "count_drafted", "count_accepted",
    "uncached", "read_automatic", "read_5m", "read_30m", "read_1h", "read_12h", "read_24h",
    "write_5m", "write_30m", "write_1h", "write_12h", "write_24h", "output",
    "cost_pico", "corrects",
    "model", "model_digest", "lane", "status", "reason", "delivery", "source", "replica",
)  # fmt: skip
"""What a leaf is made of: the traits, then the rest as `billing.events.rows` has it. If events come to say more, the
batches from then on have leaves of a second form; those that are there keep this one."""

LEAF = 32
ENTRY = 16 + LEAF
"""Bytes of an event in its batch: id and leaf."""

_BEFORE_TRAITS, _AFTER_TRAITS = slice(22), slice(30, None)
"""Where a record has the number of its traits, after the number of columns and the id: it means nothing elsewhere."""

_encode = msgspec.msgpack.encode


class ChainBatch(msgspec.Struct, frozen=True):
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


def leaf_of(row: RowMapping) -> bytes:
    """The leaf of an event as the database has it: a row with at least COLUMNS."""
    record = record_of(row)
    return sha256(_encode([row[name] for name in TRAITS]) + record[_BEFORE_TRAITS] + record[_AFTER_TRAITS]).digest()


def batches(rows: EventRows) -> list[ChainBatch]:
    """The batches that these new events make, in the order of tenant and period."""
    of = rows.columns
    if not of.events:
        return []
    entries = np.empty((len(of), ENTRY), np.uint8)
    entries[:, :16] = of.ids
    entries[:, 16:] = _leaves(rows)
    whose = [(owner[0], owner[3]) for owner in of.owners]
    places = {one: place for place, one in enumerate(sorted(set(whose)))}
    order, starts = groups([np.array([places[one] for one in whose], np.int64)[of.owner]])
    return [
        ChainBatch(UUID(int=tenant), period, len(some), entries[some].tobytes())
        for (tenant, period), some in zip(places, np.split(order, starts[1:]), strict=True)
    ]


def _leaves(rows: EventRows) -> Bytes:
    """The leaves of all events (n × LEAF)."""
    of = rows.columns
    texts = [_encode(kind) for kind in of.kinds]
    widest = max(map(len, texts))
    padded = np.stack([np.frombuffer(text.rjust(widest, b"\0"), np.uint8) for text in texts])
    padding = np.array([widest - len(text) for text in texts], np.int64)
    leaves = np.empty((len(of), LEAF), np.uint8)
    for places, records in rows.records():
        kind = of.kind[places]
        told = np.concatenate((padded[kind], records[:, _BEFORE_TRAITS], records[:, _AFTER_TRAITS]), axis=1)
        ends = np.arange(1, len(told) + 1) * told.shape[1]
        starts = ends - told.shape[1] + padding[kind]
        data = told.tobytes()
        digests = [sha256(data[start:end]).digest() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        leaves[places] = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), LEAF)
    return leaves


def entries_of(entries: bytes) -> list[tuple[UUID, bytes]]:
    """The ids and leaves of a batch."""
    return [(UUID(bytes=entries[at : at + 16]), entries[at + 16 : at + ENTRY]) for at in range(0, len(entries), ENTRY)]

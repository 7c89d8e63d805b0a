"""The hash chain of usage events: an event that is altered, removed or added shows, whoever did it.

The leaf of an event is a digest of all that it says (`billing.integrity.leaf_forms`). What one transaction settles of a
tenant's period is a batch: the ids and leaves of its events, in the order of their ids; its root is the SHA-256 of
these. Each batch continues the chain of its tenant and period: next head = SHA-256(head ‖ root), from a first head that
names the tenant and the period. The last head stands in `usage_chain`, and when a period closes the digest of all its
heads is kept in `billing_period`, so that cutting off the end shows too. `billing.verification.chain` computes all of
it again from the events alone.

A tenant's chain needs no other tenant's events, and a leaf and its batch prove that an event is in it (RFC 6962 has a
tree in place of the batch, for logs in which they would be too long).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from uuid import UUID

import msgspec
import numpy as np

from billing.events.columns import Bytes, groups
from billing.events.rows import EventRows
from billing.integrity.leaf_forms import CURRENT, FORMS, LEAF_SIZE, LeafForm
from billing.usage import DIMENSIONS

ENTRY_SIZE = 16 + LEAF_SIZE
"""Bytes of an event in its batch: id and leaf."""


class ChainBatch(msgspec.Struct, frozen=True):
    """What one transaction settles of a tenant's period: how many events, their entries, and the form of their leaves
    (a key of `leaf_forms.FORMS`)."""

    tenant_id: UUID
    period: str
    events: int
    entries: bytes
    form: int

    @property
    def root(self) -> bytes:
        """The digest of the batch."""
        return sha256(self.entries).digest()


def first_head(tenant_id: UUID, period: str) -> bytes:
    """The head of a chain before its first batch."""
    return sha256(b"turnpike usage " + tenant_id.bytes + period.encode()).digest()


def next_head(head: bytes, root: bytes) -> bytes:
    """The head after another batch."""
    return sha256(head + root).digest()


def period_root(heads: Mapping[UUID, bytes]) -> bytes:
    """The digest of a whole period: of its tenants' heads, in the order of their ids."""
    return sha256(b"".join(tenant.bytes + heads[tenant] for tenant in sorted(heads))).digest()


def chain_batches(rows: EventRows, form: LeafForm = FORMS[CURRENT]) -> list[ChainBatch]:
    """The batches that these new events make, in the order of tenant and period."""
    columns = rows.columns
    if not columns.events:
        return []
    entries = np.empty((len(columns), ENTRY_SIZE), np.uint8)
    entries[:, :16] = columns.ids
    entries[:, 16:] = _leaves(rows, form)
    chains = [(tenant, period) for tenant, _, _, period in columns.owners]
    ranks = {chain: rank for rank, chain in enumerate(sorted(set(chains)))}
    order, starts = groups([np.array([ranks[chain] for chain in chains], np.int64)[columns.owner]])
    return [
        ChainBatch(UUID(int=tenant), period, len(places), entries[places].tobytes(), form.number)
        for (tenant, period), places in zip(ranks, np.split(order, starts[1:]), strict=True)
    ]


def _leaves(rows: EventRows, form: LeafForm) -> Bytes:
    """The leaves of all events (n × LEAF_SIZE)."""
    columns = rows.columns
    texts = [form.start(dict(zip(DIMENSIONS, kind, strict=True))) for kind in columns.kinds]
    widest = max(map(len, texts))
    padded = np.stack([np.frombuffer(text.rjust(widest, b"\0"), np.uint8) for text in texts])
    padding = np.array([widest - len(text) for text in texts], np.int64)
    leaves = np.empty((len(columns), LEAF_SIZE), np.uint8)
    for places, fields in rows.fields(form.names):
        kind = columns.kind[places]
        content = np.concatenate((padded[kind], *fields), axis=1)
        ends = np.arange(1, len(content) + 1) * content.shape[1]
        starts = ends - content.shape[1] + padding[kind]
        data = content.tobytes()
        digests = [sha256(data[start:end]).digest() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        leaves[places] = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), LEAF_SIZE)
    return leaves


def split_entries(entries: bytes) -> list[tuple[UUID, bytes]]:
    """The ids and leaves of a batch."""
    return [
        (UUID(bytes=entries[at : at + 16]), entries[at + 16 : at + ENTRY_SIZE])
        for at in range(0, len(entries), ENTRY_SIZE)
    ]

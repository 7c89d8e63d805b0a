"""What the leaf of an entry is made of, and how leaves make a chain: frozen, numbered forms over named columns.

A leaf is the SHA-256 of a MessagePack array: the form's domain, then each column's value, ids as 16 bytes and NULL as
nil. A chain's next head is SHA-256(head ‖ leaf), from a first head that names the tenant. A form never changes: when
entries get a column, append a form with it to FORMS, and entries from then on are of that form.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

_encode = msgspec.msgpack.encode


class LeafForm(msgspec.Struct, frozen=True):
    """The columns that a leaf says, in order."""

    number: int
    columns: tuple[str, ...]

    def leaf(self, row: Mapping[Any, Any]) -> bytes:
        """The leaf of an entry: a row with at least the form's columns, by name."""
        values = [row[name] for name in self.columns]
        plain = [value.bytes if isinstance(value, UUID) else value for value in values]
        return sha256(_encode([f"turnpike audit entry {self.number}", *plain])).digest()


FORMS: dict[int, LeafForm] = {
    form.number: form
    for form in (
        LeafForm(
            1,
            (
                *("tenant_id", "number", "at"),
                *("actor_means", "actor_id", "actor_name", "actor_through", "actor_address", "request_id"),
                *("action", "target", "target_id", "project_id", "reason", "before", "after"),
            ),
        ),
    )
}
"""The forms by their number. The last is that of new entries."""

CURRENT = FORMS[max(FORMS)]


def first_head(tenant_id: UUID) -> bytes:
    """The head of a chain before its first entry."""
    return sha256(b"turnpike audit " + tenant_id.bytes).digest()


def next_head(head: bytes, leaf: bytes) -> bytes:
    """The head after another entry."""
    return sha256(head + leaf).digest()

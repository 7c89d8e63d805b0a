"""What the leaf of an event in the hash chain is made of: frozen, numbered forms over named columns.

A leaf is the SHA-256 of three parts, in this order:

1. the values of `texts` as a MessagePack array;
2. two bytes that name the form;
3. each of `columns` as a 4-byte length and its value, both big-endian; NULL is the length −1 and no value.

The third part is how PostgreSQL's binary COPY writes columns, so events that are written that way need no second
encoding.

Each batch says in which form its leaves are (`usage_batch.form`). A form never changes: leaves that exist are verified
as they were made. When events get a column, append a form with it to FORMS: batches from then on are of that form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from struct import Struct
from typing import Any, Literal, TypeAlias

import msgspec

LEAF_SIZE = 32
"""Bytes of a leaf."""

Encoding: TypeAlias = Literal["uuid", "int4", "int8", "period"]
"""`period` is the ASCII text of a month, such as 2026-11."""

_UUID, _INT4, _INT8, _PERIOD = Struct(">i16s"), Struct(">ii"), Struct(">iq"), Struct(">i7s")
_ENCODERS: dict[Encoding, Callable[[Any], bytes]] = {
    "uuid": lambda value: _UUID.pack(16, value.bytes),
    "int4": lambda value: _INT4.pack(4, value),
    "int8": lambda value: _INT8.pack(8, value),
    "period": lambda value: _PERIOD.pack(7, value.encode()),
}
_NULL = b"\xff\xff\xff\xff"
_encode = msgspec.msgpack.encode


class LeafForm(msgspec.Struct, frozen=True):
    """The columns that a leaf says, each with its encoding, in order; `texts` are encoded together before them."""

    number: int
    columns: tuple[tuple[str, Encoding], ...]
    texts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns but for the texts."""
        return tuple(name for name, _ in self.columns)

    def start(self, texts: Mapping[str, str]) -> bytes:
        """What a leaf begins with: the texts, and two bytes that no other form has there."""
        # Form 1 has here how many columns its COPY had (the texts were one of them); no later form is above 0.
        mark = len(self.columns) + 1 if self.number == 1 else -self.number
        return _encode([texts[name] for name in self.texts]) + mark.to_bytes(2, "big", signed=True)

    def leaf(self, row: Mapping[Any, Any]) -> bytes:
        """The leaf of an event as the database has it: a row with at least the form's columns, by name."""
        fields = [_NULL if row[name] is None else _ENCODERS[encoding](row[name]) for name, encoding in self.columns]
        return sha256(self.start(row) + b"".join(fields)).digest()


FORMS: dict[int, LeafForm] = {
    form.number: form
    for form in (
        LeafForm(
            1,
            (
                *((name, "uuid") for name in ("id", "tenant_id", "project_id", "key_id")),
                *((name, "int4") for name in ("price_version", "context_from")),
                *((name, "int8") for name in ("admitted_at", "finished_at")),
                ("period", "period"),
                ("sequence", "int8"),
                *(
                    (name, "int4")
                    for name in (
                        "attempt",
                        "count_prompt", "count_computed", "count_read_hbm", "count_read_dram", "count_read_nvme",
                        "count_output", "count_recomputed", "count_drafted", "count_accepted",
                        "uncached", "read_automatic", "read_5m", "read_30m", "read_1h", "read_12h", "read_24h",
                        "write_5m", "write_30m", "write_1h", "write_12h", "write_24h", "output",
                    )
                ),
                ("cost_pico", "int8"),
                ("corrects", "uuid"),
            ),
            ("model", "model_digest", "lane", "status", "reason", "delivery", "source", "replica"),
        ),
    )
}  # fmt: skip
"""The forms by their number. The last is that of new batches."""

CURRENT = max(FORMS)

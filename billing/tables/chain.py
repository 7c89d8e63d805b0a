"""The tables of the hash chain (`billing.integrity.hash_chain`). Batches are immutable: triggers refuse to change
them."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id

usage_batch = Table(
    "usage_batch",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("link", Count, primary_key=True, autoincrement=False),
    Column("events", Count, nullable=False),
    Column("entries", LargeBinary, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Column("form", Integer, nullable=False, server_default=text("1")),
    CheckConstraint("link > 0", name="link"),
    CheckConstraint("events > 0", name="events"),
    **STRICT,
)
"""A link of a chain: the events that were settled together, and the head after them. Links are numbered from 1.
`form` is that of their leaves (`billing.integrity.leaf_forms`)."""

usage_chain = Table(
    "usage_chain",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("links", Count, nullable=False),
    Column("events", Count, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    **STRICT,
    postgresql_with={"fillfactor": 70},
)
"""Where a chain ends: how many links and events it has, the last link's root, and the head."""

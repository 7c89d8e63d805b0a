"""The tables of the hash chain (`billing.integrity.hash_chain`). Batches are immutable: triggers refuse to change
them."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, LargeBinary, Table, Text

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
    CheckConstraint("link > 0", name="link"),
    CheckConstraint("events > 0", name="events"),
    **STRICT,
)
"""A link of a chain: the events that were settled together, and the head after them. Links are numbered from 1."""

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

"""The tables of the audit log. Entries and anchors are append-only: triggers refuse UPDATE and DELETE.

Each tenant has a chain of entries, numbered from 1; what belongs to no tenant is in the platform's, whose tenant is
the nil UUID (`PLATFORM`). They refer to no other table, since they outlive what they tell of.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text

from storage.database.base import STRICT, Base, Count, Id

PLATFORM = UUID(int=0)
"""The chain of what belongs to no tenant."""

audit_entry = Table(
    "audit_entry",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("number", Count, primary_key=True, autoincrement=False),
    Column("at", Count, nullable=False),
    *(Column(name, Text, nullable=False) for name in ("actor_means", "actor_id", "actor_name", "actor_through")),
    *(Column(name, Text, nullable=False) for name in ("actor_address", "request_id", "action", "target", "target_id")),
    Column("project_id", Id),
    Column("reason", Text, nullable=False),
    *(Column(name, Text) for name in ("before", "after")),
    Column("form", Integer, nullable=False),
    *(Column(name, LargeBinary, nullable=False) for name in ("leaf", "head")),
    CheckConstraint("number > 0", name="number"),
    Index("ix_audit_entry_at", "at"),
    Index("ix_audit_entry_tenant_id_at", "tenant_id", "at"),
    Index("ix_audit_entry_target_id", "target_id"),
    **STRICT,
)
"""One change: when, by whom, to what, and the chain's head after it. `before` and `after` are JSON, and null where
there was nothing. `form` says what the leaf is made of (`audit_log.leaf_forms`)."""

audit_chain = Table(
    "audit_chain",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("entries", Count, nullable=False),
    Column("head", LargeBinary, nullable=False),
    **STRICT,
)
"""Where each chain ends: how many entries it has, and the head after the last. A trigger refuses DELETE."""

audit_anchor = Table(
    "audit_anchor",
    Base.metadata,
    Column("anchor", Count, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, primary_key=True),
    Column("entries", Count, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Index("ix_audit_anchor_tenant_id_entries", "tenant_id", "entries"),
    **STRICT,
)
"""Where a chain ended when entry `anchor` of the platform's chain was written, which has the digest of these rows."""

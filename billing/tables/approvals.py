"""The table of changes that wait for a second person."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id

pending_change = Table(
    "pending_change",
    Base.metadata,
    Column("id", Id, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("kind", "arguments", "summary", "state")),
    Column("tenant_id", Id),
    *(Column(name, Text, nullable=False) for name in ("author", "author_via", "reason")),
    Column("created_at", Count, nullable=False),
    *(Column(name, Text) for name in ("decider", "decider_via", "decision_reason", "result")),
    Column("decided_at", Count),
    Column("author_person", Text),
    Column("sha256", Text),
    Index("ix_pending_change_state_created_at", "state", "created_at"),
    Index(
        "ix_pending_change_sha256",
        "sha256",
        unique=True,
        postgresql_where=text("state = 'pending'"),
        sqlite_where=text("state = 'pending'"),
    ),
    **STRICT,
)
"""A change with its typed arguments as JSON. `state`: pending, approved or withdrawn. `result`: what it made.
`author_person`: who proposed it, by what stays. `sha256`: of what makes two changes the same."""

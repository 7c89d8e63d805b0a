"""The table of export jobs."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id

export_job = Table(
    "export_job",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("key_id", Id, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("period", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("rows", Count, nullable=False),
    Column("attempts", Count, nullable=False),
    Column("error", Text, nullable=True),
    Column("manifest", Text, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("started_at", Count, nullable=True),
    Column("finished_at", Count, nullable=True),
    Column("leased_until", Count, nullable=False),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'expired')", name="state"),
    CheckConstraint("(state IN ('done', 'expired')) = (manifest IS NOT NULL)", name="manifest"),
    Index(None, "tenant_id", "id"),
    Index(
        "ix_export_job_unfinished",
        "id",
        sqlite_where=text("state IN ('queued', 'running')"),
        postgresql_where=text("state IN ('queued', 'running')"),
    ),
    **STRICT,
)
"""A file that a tenant asked for. A running job is its worker's until `leased_until`; then another may take it up. A
file that was removed after its time is `expired`; its manifest stays, and the same job makes the same file again."""

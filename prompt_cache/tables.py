"""The tables of the prompt cache: the data keys of projects."""

from __future__ import annotations

from sqlalchemy import Column, Index, LargeBinary, Table, Text

from storage.database.base import STRICT, Base, Count, Id

cache_scope_key = Table(
    "cache_scope_key",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("generation", Count, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("wrapped_key", LargeBinary, nullable=True),
    Column("retention_s", Count, nullable=True),
    Column("limits", Text, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("changed_at", Count, nullable=False),
    Column("destroyed_at", Count, nullable=True),
    Column("reason", Text, nullable=True),
    Index(None, "changed_at"),
    **STRICT,
)
"""The random data keys of projects, wrapped by the master key. A destroyed one is null, and stays as the record of who
was forgotten when. `retention_s`: how long the project's KV may lie in DRAM and on disk, null for the setting's;
`limits`: JSON, its reserve and limit in each tier."""

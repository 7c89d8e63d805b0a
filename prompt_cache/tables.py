"""The tables of the prompt cache: data keys of projects, leases and what became of them, the hours of storage."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

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

lease = Table(
    "lease",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("prefix_key", LargeBinary, nullable=False),
    Column("model", Text, nullable=False),
    Column("tokens", Count, nullable=False),
    Column("new_tokens", Count, nullable=False),
    Column("class", Text, key="lease_class", nullable=False),
    Column("created_at", Count, nullable=False),
    Column("written_at", Count, nullable=False),
    Column("expires_at", Count, nullable=False),
    Column("read_at", Count, nullable=True),
    Column("reads", Count, nullable=False),
    Column("writer", Id, nullable=False),
    Column("billed", Integer, nullable=False),
    Column("blocks", LargeBinary, nullable=False),
    Index(None, "project_id", "prefix_key", unique=True),
    Index(None, "project_id", "id"),
    Index(None, "expires_at"),
    Index(None, "writer"),
    **STRICT,
)
"""One row for a prefix of a project that is promised without a break since `created_at`, or was until it expired.
`new_tokens` are those beyond the lease before it in its chain. `writer` is the request that wrote it, `billed` 1 once
it is certain that this one pays. `blocks` has 8 bytes of the key of each whole block, where storage has a price."""

ended_lease = Table(
    "ended_lease",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("prefix_key", LargeBinary, nullable=False),
    Column("model", Text, nullable=False),
    Column("tokens", Count, nullable=False),
    Column("class", Text, key="lease_class", nullable=False),
    Column("created_at", Count, nullable=False),
    Column("ended_at", Count, nullable=False),
    Column("cause", Text, nullable=False),
    Column("blocks", LargeBinary, nullable=False),
    Index(None, "project_id", "prefix_key"),
    Index(None, "ended_at"),
    **STRICT,
)
"""What was promised until `ended_at`, or not at all (cause `limit` or `failed`): for a day, to say why a prefix
missed."""

lease_tag = Table(
    "lease_tag",
    Base.metadata,
    Column("lease_id", Id, ForeignKey("lease.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Column("project_id", Id, nullable=False),
    Index(None, "project_id", "tag"),
    **STRICT,
)
"""The labels by which a project's leases can be purged."""

lease_storage_hour = Table(
    "lease_storage_hour",
    Base.metadata,
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("recorded_at", Count, nullable=False),
    **STRICT,
)
"""The hours (their first instants) whose storage is recorded. Only the latest is kept."""

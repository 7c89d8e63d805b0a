"""The tables of the prompt cache.

- keys: data keys of projects
- promises: leases, ended leases, their labels, stored token-seconds by hour
- history: requests, and sums of the tokens that missed
"""

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

shared_prefix = Table(
    "shared_prefix",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("reach", Text, nullable=False),
    Column("tenant_id", Id, nullable=False),
    Column("model", Text, nullable=False),
    Column("tokens", Count, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("shared_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("shared_at", Count, nullable=False),
    Column("ended_at", Count, nullable=True),
    Column("ended_by", Text, nullable=True),
    Column("end_reason", Text, nullable=True),
    **STRICT,
)
"""A beginning of prompts whose KV operators share: within a tenant, or (`reach` `public`, of the tenant with the id 0)
with everybody. `digest` stands for its `tokens` tokens. Its `id` is that of the scope's data key. Who shared it and who
ended that, and why, is kept for ever."""

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
    Column("base", Id, nullable=True),
    Column("unsettled_base", Id, nullable=True),
    Column("told", Integer, nullable=False, server_default="0"),
    Column("paid", Integer, nullable=False, server_default="0"),
    Index(None, "project_id", "prefix_key", unique=True),
    Index(None, "project_id", "id"),
    Index(None, "expires_at"),
    Index(None, "writer"),
    Index(None, "base"),
    **STRICT,
)
"""One row for a prefix of a project that is promised without a break since `created_at`, or was until it expired.
`new_tokens` are those beyond the lease before it in its chain (`base`), and those of that one once it ended. `writer`
is the request that writes it, `told` 1 once this one has a token: until then another may take its place. `paid` is 1
once it is certain that the writer pays, `billed` once that holds for all leases before it too. `unsettled_base` is the
ended lease nearest to it, between `base` and itself, whose writer may still fail to pay (`ended_lease.payer`). `blocks`
has 8 bytes of the key of each whole block, where storage has a price."""
_ON_UNSETTLED = lease.c.unsettled_base.is_not(None)
Index(None, lease.c.unsettled_base, postgresql_where=_ON_UNSETTLED, sqlite_where=_ON_UNSETTLED)

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
    Column("reads", Count, nullable=True),
    Column("new_tokens", Count, nullable=True),
    Column("payer", Id, nullable=True),
    Column("base", Id, nullable=True),
    Index(None, "project_id", "prefix_key"),
    Index(None, "ended_at"),
    **STRICT,
)
"""What was promised until `ended_at`, or not at all (cause `limit` or `failed`): for a day, to say why a prefix
missed, and which writes nobody read. `reads` and `new_tokens` are the lease's, null of those that ended before they
were kept. `payer` is the writer as long as it is not certain whether it pays: a lease may end while its request
runs. `base` is the lease before it in its chain, live or ended, if not all before it was paid for when it ended."""
_UNCERTAIN = ended_lease.c.payer.is_not(None)
Index(None, ended_lease.c.payer, postgresql_where=_UNCERTAIN, sqlite_where=_UNCERTAIN)
_DEPENDENT = ended_lease.c.base.is_not(None)
Index(None, ended_lease.c.base, postgresql_where=_DEPENDENT, sqlite_where=_DEPENDENT)

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

lease_blocks = Table(
    "lease_blocks",
    Base.metadata,
    Column("lease_id", Id, ForeignKey("lease.id", ondelete="CASCADE"), primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("keys", LargeBinary, nullable=False),
    **STRICT,
)
"""Under which scope and keys (32 bytes each) replicas of this model digest have the blocks of a lease that the lease
before it has not. A project's scope has another name after its data key was destroyed."""

lease_storage_hour = Table(
    "lease_storage_hour",
    Base.metadata,
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("recorded_at", Count, nullable=False),
    **STRICT,
)
"""The hours (their first instants) whose storage is recorded. Only the latest is kept."""

cache_request = Table(
    "cache_request",
    Base.metadata,
    Column("request_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("at", Count, nullable=False, index=True),
    Column("first_piece", LargeBinary, nullable=False),
    Column("opening", LargeBinary, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("diagnosis", LargeBinary, nullable=False),
    Index(None, "project_id", "opening", "at"),
    Index(None, "project_id", "first_piece", "at"),
    **STRICT,
)
"""What the history keeps of a request (`prompt_cache.history.records`), and why it missed."""

cache_prefix = Table(
    "cache_prefix",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("parent", LargeBinary, nullable=False),
    Column("start_token", Integer, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    Column("first_request", Id, nullable=False),
    Column("first_at", Count, nullable=False),
    Column("last_request", Id, nullable=False),
    Column("last_at", Count, nullable=False, index=True),
    Index(None, "project_id", "parent", "last_at"),
    **STRICT,
)
"""A piece of the prompts of a project's requests, as hashes of its tokens, once for all requests that begin alike."""

cache_day = Table(
    "cache_day",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("cause", Text, primary_key=True),
    Column("currency", Text, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("requests", Count, nullable=False),
    Column("tokens", Count, nullable=False),
    Column("cost_pico", Count, nullable=False),
    **STRICT,
)
"""Sums of missed tokens by cause for a project and a day (UTC, such as 2026-11-22), and what they cost beyond reading
them. The cause `read` has the tokens that were read."""

cache_history_day = Table(
    "cache_history_day",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("requests", Count, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("left_out", Count, nullable=False),
    **STRICT,
)
"""How much of a project's requests the history has kept in a day, and how many it left out."""

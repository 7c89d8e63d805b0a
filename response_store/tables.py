"""The tables of kept responses: the responses, the events of those in the background, the claims of idempotency keys,
and what projects keep."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id

stored_response = Table(
    "stored_response",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("previous_id", Id, nullable=True),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("expires_at", Count, nullable=False, index=True),
    Column("key_generation", Integer, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
    Column("worker", Text, nullable=True, index=True),
    Column("beat_at", Count, nullable=True),
    Column("cancelling", Integer, nullable=False),
    Column("taken_over", Integer, nullable=False, server_default=text("0")),
    Index(None, "project_id", "id"),
    CheckConstraint("kind IN ('chain', 'stored', 'background')", name="kind"),
    CheckConstraint(
        "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')", name="status"
    ),
    **STRICT,
)
"""A response and the items of its request, both sealed by the project's data key of this generation. A response of the
kind `chain` is kept for those that go on from it, and shown to nobody. One in the background has a `worker`, which
beats, until it ends; `cancelling` is 1 once somebody asked for its end. `taken_over`: how many workers died of which
another one took it over."""

stored_response_events = Table(
    "stored_response_events",
    Base.metadata,
    Column("response_id", Id, primary_key=True),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("last", Integer, nullable=False),
    Column("events", LargeBinary, nullable=False),
    **STRICT,
)
"""Events of a response in the background, from one number to another, sealed."""

response_policy = Table(
    "response_policy",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("retention_s", Count, nullable=True),
    Column("readable", Integer, nullable=False),
    Column("changed_at", Count, nullable=False),
    CheckConstraint("readable IN (0, 1)", name="readable"),
    **STRICT,
)
"""How long a project's responses are kept (seconds; 0: never; NULL: as set), and whether people may read them."""

idempotency_claim = Table(
    "idempotency_claim",
    Base.metadata,
    Column("key_id", Id, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False, index=True),
    Column("request_id", Id, nullable=False, index=True),
    Column("request_digest", LargeBinary, nullable=False),
    Column("worker", Text, nullable=True, index=True),
    Column("beat_at", Count, nullable=True),
    Column("expires_at", Count, nullable=False, index=True),
    Column("model", Text, nullable=False),
    Column("answer", LargeBinary, nullable=True),
    Column("bytes", Count, nullable=False),
    **STRICT,
)
"""Which request an idempotency key of an API key stands for. While it runs, its `worker` beats; then its `answer` is
kept, sealed by the project's data key, or NULL where the project or the request says that nothing is."""

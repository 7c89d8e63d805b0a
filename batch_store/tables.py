"""The tables of batches, of their lines, and of the parts of their results."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id

batch = Table(
    "batch",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("key", Text, nullable=False),
    Column("surface", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("input_file_id", Id, nullable=False, index=True),
    Column("output_file_id", Id, nullable=True),
    Column("error_file_id", Id, nullable=True),
    Column("output_lifetime_s", Count, nullable=False),
    Column("details", LargeBinary, nullable=False),
    Column("errors", LargeBinary, nullable=True),
    Column("worker", Text, nullable=True, index=True),
    Column("beat_at", Count, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("expires_at", Count, nullable=False),
    *(Column(name, Count, nullable=True) for name in ("in_progress_at", "finalizing_at", "cancelling_at", "ended_at")),
    *(
        Column(name, Count, nullable=False, server_default=text("0"))
        for name in (
            *("total", "completed", "failed", "cancelled", "expired"),
            *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
        )
    ),
    Column("next_part", Integer, nullable=False, server_default=text("0")),
    Index(None, "project_id", "id"),
    CheckConstraint("surface IN ('openai', 'anthropic')", name="surface"),
    CheckConstraint(
        "status IN ('validating', 'in_progress', 'finalizing', 'cancelling', 'completed', 'failed', 'expired', "
        "'cancelled')",
        name="status",
    ),
    **STRICT,
)
"""A batch. `key`: the public id of the API key that its lines are run for. `details` (metadata) and `errors` (why it
failed) are sealed by the project's data key. While it has not ended its `worker` beats, if it has one."""

batch_line = Table(
    "batch_line",
    Base.metadata,
    Column("batch_id", Id, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("offset", Count, nullable=False),
    Column("length", Count, nullable=False),
    Column("place", LargeBinary, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default=text("'waiting'")),
    Index(None, "batch_id", "state", "place", "number"),
    CheckConstraint("state IN ('waiting', 'taken', 'done')", name="state"),
    **STRICT,
)
"""A line of a batch that has not ended: where it lies in the input, and its `place` in the order of running, in which
lines with a common prefix are neighbours. A `taken` one may have been begun; a `done` one's result is in a part.
`attempt`: how often its request came to nothing, which is part of the id of the next."""

batch_part = Table(
    "batch_part",
    Base.metadata,
    Column("batch_id", Id, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    CheckConstraint("kind IN ('output', 'error')", name="kind"),
    **STRICT,
)
"""Some results of a batch that has not ended, as lines of JSON, sealed. The files of results are made of the parts."""

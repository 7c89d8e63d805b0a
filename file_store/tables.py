"""The tables of files, whose content lies in blobs, and of the adapters that are such files."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text, UniqueConstraint

from storage.database.base import STRICT, Base, Count, Id

stored_file = Table(
    "stored_file",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("key_generation", Integer, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", LargeBinary, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("expires_at", Count, nullable=True, index=True),
    Index(None, "project_id", "id"),
    CheckConstraint("purpose IN ('batch', 'batch_output', 'user_data', 'message_batch')", name="purpose"),
    **STRICT,
)
"""A file. Its `filename` and its blob, which has the name of its id, are sealed by the project's data key of this
generation. Files of the purpose `message_batch` are a batch's own: nobody is shown them. `expires_at`: NULL for never.
"""

adapter = Table(
    "adapter",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("model", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("facts", LargeBinary, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("created_at", Count, nullable=False),
    UniqueConstraint("project_id", "model", "name"),
    **STRICT,
)
"""A project's adapter of a served model, under a name that is its own there. Its content is the file of its id, of the
purpose `message_batch`, so that nobody is shown it; without that file it is gone. `facts` are JSON: what it changes."""

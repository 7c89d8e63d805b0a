"""The tables of files, whose content lies in blobs, and of the room that is kept for files to come."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text

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

file_reservation = Table(
    "file_reservation",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False, index=True),
    Column("bytes", Count, nullable=False),
    Column("until", Count, nullable=False, index=True),
    **STRICT,
)
"""Room for a file whose content is on its way, under the id that the file will have. It counts until the file is saved,
and at most `until` then, since a gateway may die."""

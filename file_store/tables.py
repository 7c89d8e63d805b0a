"""The tables of files, of room kept for those to come, of uploads in parts, and of the adapters that are files, with
how long replicas had them ready.

Content lies in blobs.
"""

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
    Column("mime_type", Text, nullable=True),
    Column("bytes", Count, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("expires_at", Count, nullable=True, index=True),
    Index(None, "project_id", "id"),
    CheckConstraint("purpose IN ('batch', 'batch_output', 'user_data', 'message_batch')", name="purpose"),
    **STRICT,
)
"""A file. Its `filename` and its blob, which has the name of its id, are sealed by the project's data key of this
generation. Files of the purpose `message_batch` are a batch's own: nobody is shown them. `mime_type`: as its client
said, NULL where it did not. `expires_at`: NULL for never."""

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

upload = Table(
    "upload",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", LargeBinary, nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("lifetime_s", Count, nullable=True),
    Column("status", Text, nullable=False),
    Column("file_id", Id, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("expires_at", Count, nullable=False, index=True),
    Index(None, "project_id", "id"),
    CheckConstraint("purpose IN ('batch', 'user_data')", name="purpose"),
    CheckConstraint("status IN ('pending', 'completed', 'cancelled')", name="status"),
    CheckConstraint("(status = 'completed') = (file_id IS NOT NULL)", name="file"),
    **STRICT,
)
"""A file that comes in parts. While it is `pending` and has not expired its `bytes` are reserved of the project's
quota. `lifetime_s`: of the file that is made of it; NULL for ever."""

upload_part = Table(
    "upload_part",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("upload_id", Id, nullable=False, index=True),
    Column("tenant_id", Id, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("created_at", Count, nullable=False),
    **STRICT,
)
"""A part of an upload, until that has ended. Its blob, which has the name of its id, is sealed as a file's."""

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

adapter_residency = Table(
    "adapter_residency",
    Base.metadata,
    Column("replica", Text, primary_key=True),
    Column("epoch", Count, primary_key=True, autoincrement=False),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("model", Text, nullable=False),
    Column("base", Text, nullable=False),
    Column("milliseconds", Count, nullable=False),
    Index(None, "hour"),
    CheckConstraint("milliseconds BETWEEN 0 AND 3600000", name="milliseconds"),
    **STRICT,
)
"""How long a replica, in one run of it (`epoch`), had a project's adapter ready in an hour (its first instant). A count
only grows, so that of several reports the highest counts. `model` is what requests asked for, of the served model
`base`. A row goes once its hour is recorded for billing."""

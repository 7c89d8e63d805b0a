"""The table of requests' times, which is written in batches and forgotten after a while."""

from __future__ import annotations

from sqlalchemy import Column, Index, LargeBinary, Table

from storage.database.base import STRICT, Base, Count, Id

request_waterfall = Table(
    "request_waterfall",
    Base.metadata,
    Column("id", Count, primary_key=True, autoincrement=True),
    Column("request_id", Id, nullable=False),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("at", Count, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index(None, "request_id", unique=True),
    **STRICT,
)
"""One row a request, in the order in which they were written (`id`), which is about the order of `at`: when it was
received, in microseconds since the Unix epoch. `record` is a `waterfall.record.Record`."""

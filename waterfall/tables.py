"""The tables of requests' times and of refused requests, which are written in batches and forgotten after a while."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, LargeBinary, Table, Text

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
    Index(None, "tenant_id", "id"),
    **STRICT,
)
"""One row a request, in the order in which they were written (`id`), which is about the order of `at`: when it was
received, in microseconds since the Unix epoch. `record` is a `waterfall.record.Record`."""

refused_request = Table(
    "refused_request",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("request_id", Id, primary_key=True),
    Column("project_id", Id),
    Column("at", Count, nullable=False),
    Column("status", Integer, nullable=False),
    *(Column(name, Text, nullable=False) for name in ("key", "route", "code", "message")),
    Index(None, "at"),
    **STRICT,
)
"""One row a request of a tenant that was answered with an error instead of being run. Its id is a UUIDv7, so that a
tenant's rows are ordered by time. `project_id` is null where the tenant's own key was used; `at` is when it was
received, in microseconds since the Unix epoch."""

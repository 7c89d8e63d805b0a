"""The table of how requests were served: how long they waited and how they ended, by hour."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, Table, Text

from storage.database.base import STRICT, Base, Count, Id

service_hour = Table(
    "service_hour",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("measure", Text, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("requests", Count, nullable=False),
    Index(None, "hour"),
    **STRICT,
)
"""Histograms of the requests admitted in an hour (its first instant): how many of them took as long as `bucket` of
`billing.service_levels.histograms` says, from admission to the first token (`measure` `first_token`), in a replica's
queue (`queue`), or in all (`ok`, `cancelled`, `failed`, as they ended).

Gateways count them in memory and add them up here every few seconds, beside the requests: what was counted since then
is lost with a gateway that dies. Nothing is billed by them.
"""

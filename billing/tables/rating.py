"""The tables of what is rated at the end of a period: contract terms, and storage of cached prompts by the hour.

Both are append-only: triggers refuse UPDATE and DELETE.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, Table, Text

from storage.database.base import STRICT, Base, Count, Id

contract_terms = Table(
    "contract_terms",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, nullable=False),
    Column("from_period", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Count, nullable=False),
    Index(None, "tenant_id", "from_period"),
    **STRICT,
)
"""All terms of a tenant from a period on, as JSON, until other terms begin; of two from the same, the later row."""

storage_event = Table(
    "storage_event",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("price_version", Integer, nullable=False),
    Column("token_seconds", Count, nullable=False),
    Column("cost_pico", Count, nullable=False),
    Index(None, "tenant_id", "hour", "project_id", "model", unique=True),
    CheckConstraint("token_seconds >= 0", name="token_seconds"),
    CheckConstraint("cost_pico >= 0", name="cost_pico"),
    **STRICT,
)
"""What a project had stored of one model in one hour (its first instant), and what that costs. `period` is the billing
period that it is booked in: its own, or, if that had closed, a later one."""

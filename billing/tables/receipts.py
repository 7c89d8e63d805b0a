"""The tables of receipts: the closed days of tenants' files, and which projects get receipts with every answer.

Triggers on both databases refuse to change a closed day.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text

from storage.database.base import STRICT, Base, Count, Id, Pico

receipt_day = Table(
    "receipt_day",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("period", Text, nullable=False),
    Column("link", Count, nullable=False),
    Column("pending_from", Count, nullable=False),
    Column("events", Count, nullable=False),
    Column("late", Count, nullable=False),
    Column("cost_pico", Pico, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("closed_at", Count, nullable=False),
    CheckConstraint("events >= late AND late >= 0", name="events"),
    CheckConstraint("link >= 0 AND pending_from > 0", name="links"),
    Index(None, "tenant_id", "period"),
    **STRICT,
)
"""A closed day of a tenant (`billing.receipts.day_files`): how many events its file has, how many of them belong to an
earlier day, and the root of their tree. `link`: the last link of the period's chain that it took events from;
`pending_from`: the first one with an event that no file had yet when it closed. Append-only: triggers refuse UPDATE and
DELETE."""

receipt_policy = Table(
    "receipt_policy",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("always", Integer, nullable=False),
    Column("changed_at", Count, nullable=False),
    CheckConstraint("always IN (0, 1)", name="always"),
    **STRICT,
)
"""Whether answers of a project have receipts without being asked for them. A project without a row has none."""

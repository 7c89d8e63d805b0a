"""The table of reconciliations. A run is never changed: triggers refuse it on both databases."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, Text

from storage.database.base import STRICT, Base, Count, Id, Pico

recon_run = Table(
    "recon_run",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("period", Text, nullable=False),
    Column("at", Count, nullable=False),
    *(Column(name, Count, nullable=False) for name in ("events", "lost", "doubled", "unconfirmed", "late")),
    Column("drift_pico", Pico, nullable=False),
    Column("report", Text, nullable=False),
    Index(None, "period", "at"),
    **STRICT,
)
"""What a reconciliation of a period found; `report` is a Report as JSON."""

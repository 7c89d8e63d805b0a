"""The table of seals (`billing.integrity.row_seals`)."""

from __future__ import annotations

from sqlalchemy import Column, LargeBinary, Table, Text

from storage.database.base import STRICT, Base

seal = Table(
    "seal",
    Base.metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("sha256", LargeBinary, nullable=False),
    **STRICT,
)
"""The seals of rows that never change, by table and key. Append-only: triggers refuse UPDATE and DELETE."""

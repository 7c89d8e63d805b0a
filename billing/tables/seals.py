"""The table of seals (`billing.integrity.row_seals`)."""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base

seal = Table(
    "seal",
    Base.metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("sha256", LargeBinary, nullable=False),
    Column("form", Integer, nullable=False, server_default=text("1")),
    **STRICT,
)
"""The seals of rows that never change, by table and key; `form` says what each is made of (`row_seals.FORMS`).
Append-only: triggers refuse UPDATE and DELETE."""

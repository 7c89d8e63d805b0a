"""The table of platform settings. Append-only: triggers refuse UPDATE and DELETE."""

from __future__ import annotations

from sqlalchemy import Column, Integer, Table, Text

from storage.database.base import STRICT, Base, Count

platform_setting = Table(
    "platform_setting",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    *(Column(name, Text, nullable=False) for name in ("name", "value", "actor", "via", "reason")),
    Column("at", Count, nullable=False),
    **STRICT,
)
"""What operators set for the whole platform; of several rows with one name the last applies."""

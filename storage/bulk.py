"""Conditions over many values whose text does not depend on how many: PostgreSQL prepares each statement once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Column, ColumnElement, any_, literal
from sqlalchemy.dialects import postgresql

from storage.database import Database


def one_of(
    database: Database, column: ColumnElement[Any] | Column[Any], values: Collection[Any]
) -> ColumnElement[bool]:
    """Whether the column is one of the values."""
    if database.dialect == "postgresql":
        return column == any_(literal(list(values), postgresql.ARRAY(column.type)))
    return column.in_(list(values))

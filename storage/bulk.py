"""Statements over many rows whose text does not depend on how many: the database prepares each once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Executable, Table, any_, bindparam, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database import Database


def one_of(
    database: Database, column: ColumnElement[Any] | Column[Any], values: Collection[Any]
) -> ColumnElement[bool]:
    """Whether the column is one of the values."""
    if database.dialect == "postgresql":
        return column == any_(literal(list(values), postgresql.ARRAY(column.type)))
    return column.in_(list(values))


@cache
def _insert_new(table: Table, dialect: str) -> Executable:
    (key,) = table.primary_key.columns
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing().returning(key)
    columns = list(table.columns)
    rows = select(*(func.unnest(bindparam(c.name, type_=postgresql.ARRAY(c.type))) for c in columns))
    insert = postgresql.insert(table).from_select([c.name for c in columns], rows, include_defaults=False)
    return insert.on_conflict_do_nothing().returning(key)


async def insert_new(
    database: Database, session: AsyncSession, table: Table, rows: Sequence[Mapping[str, Any]]
) -> set[Any]:
    """Insert the rows that conflict with none; return the primary keys of those inserted. Rows name every column."""
    if not rows:
        return set()
    statement = _insert_new(table, database.dialect)
    if database.dialect == "sqlite":
        return set(await session.scalars(statement, [dict(row) for row in rows]))
    arrays = {column.name: [row[column.name] for row in rows] for column in table.columns}
    return set(await session.scalars(statement, arrays))

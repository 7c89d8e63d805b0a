"""Which books a database has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from billing.books import Books
from billing.books_postgresql import PostgresBooks
from billing.books_sqlite import SqliteBooks
from storage.database import Database


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Books]:
    """The database's books, for one transaction. Raises DatabaseUnavailable."""
    if database.dialect == "postgresql":
        async with database.direct() as connection:
            yield PostgresBooks(connection, database.clock_sql)
    else:
        async with database.transaction() as session:
            yield SqliteBooks(database, session)

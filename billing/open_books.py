"""Which books a database has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

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


async def opened_in(database: Database, session: AsyncSession) -> Books:
    """The database's books, in the transaction of a session: for money that moves with what the session writes.

    The session has executed something before: with that, its transaction began on the driver's connection.
    """
    if database.dialect == "postgresql":
        connection = await (await session.connection()).get_raw_connection()
        return PostgresBooks(connection.driver_connection, database.clock_sql)
    return SqliteBooks(database, session)

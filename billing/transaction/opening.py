"""Opening a money transaction: the implementation for the database, on its own or in a session's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from billing.transaction.money_transaction import MoneyTransaction
from billing.transaction.postgresql import PostgresMoneyTransaction
from billing.transaction.sqlite import SqliteMoneyTransaction
from storage.database.database import Database


@asynccontextmanager
async def money_transaction(database: Database) -> AsyncIterator[MoneyTransaction]:
    """A money transaction of its own. Raises DatabaseUnavailable."""
    if database.dialect == "postgresql":
        async with database.direct() as connection:
            yield PostgresMoneyTransaction(connection, database.clock_sql)
    else:
        async with database.transaction() as session:
            yield SqliteMoneyTransaction(database, session)


async def money_transaction_in(database: Database, session: AsyncSession) -> MoneyTransaction:
    """A money transaction within the transaction of a session: for money that moves with what the session writes.

    The session must have executed a statement before: that began its transaction on the driver's connection.
    """
    if database.dialect == "postgresql":
        connection = await (await session.connection()).get_raw_connection()
        return PostgresMoneyTransaction(connection.driver_connection, database.clock_sql)
    return SqliteMoneyTransaction(database, session)

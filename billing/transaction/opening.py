"""Opening a money transaction: the implementation for the database, on its own or in a session's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

from sqlalchemy import select
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
            yield PostgresMoneyTransaction(connection, database.clock_sql, database.keyring)
    else:
        async with database.transaction() as session:
            yield SqliteMoneyTransaction(database, session)


@asynccontextmanager
async def recorded_money_transaction(database: Database) -> AsyncIterator[tuple[AsyncSession, MoneyTransaction]]:
    """A money transaction and the session that it is in, for changes by people: the session takes their audit entries.

    Slower than `money_transaction`, which is for requests. Raises DatabaseUnavailable.
    """
    async with database.transaction() as session:
        await session.execute(select(database.clock))
        yield session, await money_transaction_in(database, session)


async def money_transaction_in(database: Database, session: AsyncSession) -> MoneyTransaction:
    """A money transaction within the transaction of a session: for money that moves with what the session writes.

    The session must have executed a statement before: that began its transaction on the driver's connection.
    """
    if database.dialect == "postgresql":
        connection = await (await session.connection()).get_raw_connection()
        driver = _WholeNumbers(connection.driver_connection)
        return PostgresMoneyTransaction(driver, database.clock_sql, database.keyring)
    return SqliteMoneyTransaction(database, session)


class _WholeNumbers:
    """A session's connection, whose sums of money are ints as they are on direct connections
    (`storage.database.asyncpg_pool`): decimals would be rounded to 28 digits."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.execute = connection.execute
        self.copy_to_table = connection.copy_to_table

    async def fetch(self, *arguments: Any) -> list[tuple[Any, ...]]:
        return [_whole(row) for row in await self._connection.fetch(*arguments)]

    async def fetchrow(self, *arguments: Any) -> tuple[Any, ...] | None:
        row = await self._connection.fetchrow(*arguments)
        return None if row is None else _whole(row)

    async def fetchval(self, *arguments: Any) -> Any:
        value = await self._connection.fetchval(*arguments)
        return int(value) if isinstance(value, Decimal) else value


def _whole(row: Any) -> tuple[Any, ...]:
    return tuple(int(value) if isinstance(value, Decimal) else value for value in row)

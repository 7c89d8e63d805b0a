"""A database in which time is moved by hand: a sandbox. The row of its clock says how far it is ahead of the present.

All that is dated by the database's clock (`Database.clock`) stands in the sandbox's time: holds, prices, usage,
periods, documents, payments, leases. Keys, sessions, signatures and ids stay in the present.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, Table, literal_column, select

from storage.database.base import STRICT, Base, Count
from storage.database.database import Database

test_clock = Table(
    "test_clock",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ahead", Count, nullable=False),
    Column("begun_at", Count, nullable=False),
    CheckConstraint("id = 1", name="id"),
    **STRICT,
)
"""One row in a sandbox, none elsewhere. `ahead`: microseconds. Triggers refuse DELETE, and a clock that goes back."""

_AHEAD_SQL = "(SELECT ahead FROM test_clock)"


async def follow_test_clock(database: Database) -> bool:
    """Let `database` tell the time of its sandbox from now on, as it is when it is asked; False if it is none. Asked
    when a process opens it: a database that is in use never becomes one. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        if await session.scalar(select(test_clock.c.id)) is None:
            return False
    # In SQL, and read with each statement: so no process of the sandbox has another time than the others.
    database.clock = literal_column(f"({database.clock_sql} + {_AHEAD_SQL})", Count())
    return True

"""SQLite's connections, each in a thread of its own: a statement and its first rows take one trip to that thread.

aiosqlite makes a trip for the cursor, one for the statement, one for the rows and one for the end, and each wakes two
threads. A statement of ours mostly takes less time than that. What begins a transaction goes with its first statement,
and a transaction that did not begin, or has ended, takes no trip to end it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import aiosqlite

_FIRST_ROWS = 256
"""So many rows come with the statement. The rest is read as it is asked for, so that large results may be streamed."""
_PORTION = 1024
Result = TypeVar("Result")


def connect(database: str, **options: Any) -> aiosqlite.Connection:
    """A connection that is open once it was awaited (SQLAlchemy's `async_creator_fn`)."""
    connection = _Connection(lambda: sqlite3.connect(database, **options), iter_chunk_size=_PORTION)
    connection._thread.daemon = True  # as SQLAlchemy has it for connections that it makes
    return connection


class _Connection(aiosqlite.Connection):
    _beginning = ""
    """What begins the transaction, until there is a first statement in it."""
    _unsure = False
    """Whether the last statement failed or was not waited for: there may be a transaction now, or soon."""

    def begin(self, statement: str) -> None:
        """Begin a transaction in this way, when something is done in it."""
        self._beginning = statement

    async def commit(self) -> None:
        """Commit what was begun."""
        if self._is_open():
            self._unsure = True
            await super().commit()
            self._unsure = False

    async def rollback(self) -> None:
        """Roll back what was begun."""
        if self._is_open():
            await super().rollback()

    def _is_open(self) -> bool:
        is_open = self._unsure or self.in_transaction
        self._beginning, self._unsure = "", False
        return is_open

    def cursor(self) -> Any:
        """A cursor, which takes no trip."""
        return _Cursor(self)

    async def trip(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do this in the connection's thread."""
        done: Result = await self._execute(work, *arguments)  # type: ignore[no-untyped-call]
        return done

    async def run(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do this in the connection's thread and in the transaction, which it begins if it is the first."""
        begin, self._beginning = self._beginning, ""
        self._unsure = True
        try:
            await self.trip(self._run, begin, work)
        except sqlite3.Error:
            if begin and not self.in_transaction:
                self._beginning = begin
            raise
        self._unsure = False

    def _run(self, begin: str, work: Callable[[sqlite3.Connection], None]) -> None:
        if begin:
            self._conn.execute(begin)
        work(self._conn)


class _Cursor:
    """What SQLAlchemy needs of a cursor. The attributes are those of the last statement."""

    def __init__(self, connection: _Connection) -> None:
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1
        self._connection = connection
        self._rows: list[Any] = []
        self._rest: sqlite3.Cursor | None = None
        """Open while there may be more rows."""

    async def __aenter__(self) -> _Cursor:
        return self

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement, and read its first rows."""
        await self.close()
        await self._connection.run(partial(self._execute, statement, parameters))

    async def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement, which gives no rows, for each of these parameters."""
        await self.close()
        await self._connection.run(partial(self._execute_many, statement, parameters))

    async def fetchone(self) -> Any:
        """The next row; None if there is none."""
        return next(iter(await self.fetchmany(1)), None)

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next rows, so many at most."""
        size = size or self.arraysize
        if len(self._rows) < size and self._rest is not None:
            self._rows += await self._connection.trip(self._read, max(size, _PORTION))
        rows, self._rows = self._rows[:size], self._rows[size:]
        return rows

    async def fetchall(self) -> list[Any]:
        """All rows that are left."""
        if self._rest is not None:
            self._rows += await self._connection.trip(self._read, None)
        rows, self._rows = self._rows, []
        return rows

    async def __aiter__(self) -> AsyncIterator[Any]:
        while rows := await self.fetchmany(_PORTION):
            for row in rows:
                yield row

    async def close(self) -> None:
        """Give up the rows that are left."""
        self._rows = []
        if (rest := self._rest) is not None:
            self._rest = None
            await self._connection.trip(rest.close)

    # ------------------------------------------------ in the connection's thread

    def _execute(self, statement: str, parameters: Sequence[Any], connection: sqlite3.Connection) -> None:
        self._rest = cursor = connection.execute(statement, parameters)
        self.description = cursor.description
        self._rows = self._read(_FIRST_ROWS)
        self.lastrowid = cursor.lastrowid

    def _execute_many(
        self, statement: str, parameters: Sequence[Sequence[Any]], connection: sqlite3.Connection
    ) -> None:
        cursor = connection.executemany(statement, parameters)
        self.description, self.rowcount, self.lastrowid = None, cursor.rowcount, cursor.lastrowid

    def _read(self, most: int | None) -> list[Any]:
        """More rows; the cursor is closed behind the last."""
        assert self._rest is not None
        rows = list(islice(self._rest, most))
        self.rowcount = self._rest.rowcount
        if most is None or len(rows) < most:
            self._rest.close()
            self._rest = None
        return rows

"""A PostgreSQL or SQLite database behind one interface: transaction, reading, now, ping, close.

On SQLite all writes go through one connection (`BEGIN IMMEDIATE`, so a transaction is never upgraded); reads go through
others and do not block writes (WAL). On PostgreSQL both share a pool. `reading` sees one snapshot on both. Do not open
a transaction inside another: on SQLite it would wait for itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast
from uuid import UUID
from zlib import crc32

import asyncpg  # type: ignore[import-untyped]
import sqlalchemy.exc
from sqlalchemy import URL, ColumnElement, Select, Table, event, func, literal_column, make_url, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from storage.database.asyncpg_pool import AsyncpgPool, Connection, is_unavailable
from storage.database.base import Count
from storage.database.keyring import Keyring
from storage.database.sqlite_connection import connect
from storage.reported_error import ReportedError

Dialect = Literal["sqlite", "postgresql"]

SETTING = "TURNPIKE_DATABASE_URL"

STATEMENT_S = 60.0
"""How long a statement may take that a request waits for, or a job that must not be late."""
JOB_STATEMENT_S = 3_600.0
"""How long one of an export, of a worker's clearing up or of a command may take: it grows with a period's usage."""
LONG_STATEMENT_S = 86_400.0
"""How long one of a migration or an audit may take: it grows with all that was ever recorded."""

_CLOCK: dict[Dialect, ColumnElement[int]] = {
    "postgresql": literal_column("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", Count()),
    "sqlite": literal_column(
        "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)",
        Count(),
    ),
}
SQLITE_WAIT_S = 30
"""How long a transaction waits while another process writes to the file."""
_SQLITE_PRAGMAS = (
    f"busy_timeout = {SQLITE_WAIT_S * 1000}",
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
)
_SQLITE_DAMAGED = ("file is not a database", "malformed")
_SQLITE_UNAVAILABLE = ("locked", "busy", "unable to open", "disk I/O error", "full", "interrupted")
_POSTGRESQL_UNAVAILABLE = ("08", "28", "3D", "53", "57P", "58", "40")
"""Classes of SQLSTATE: no connection, not authorized, no such database, no resources, shutting down, I/O error, and
transactions that may be retried."""
_POSTGRESQL_CONFLICT = "40"
_POSTGRESQL_CANCELED = "57014"
"""The SQLSTATE of a statement that took longer than it may, or that an operator canceled."""
_SILENT_S = 5.0
"""A server that does not answer is given up so long after it should have ended the statement itself."""
_POSTGRESQL_UNSTORABLE = "22021"
"""The SQLSTATE of a text with a character that the server's encoding has not: of UTF-8, U+0000 alone."""
_CANCELED = "a statement took longer than it may, or was canceled"
_UNSTORABLE = "a text has the character U+0000, which the database cannot hold"


Given = ParamSpec("Given")
Made = TypeVar("Made")
LastStep = Callable[[], Awaitable[None]]
_OWNER, _LAST_STEPS, _AFTER_COMMIT = "database", "last steps", "after commit"
"""What the `info` of a session of ours holds."""


class InvalidDatabaseUrl(ReportedError, ValueError):
    """The database URL is malformed. The message names the setting and never the URL, which may hold a password."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{SETTING}: {problem}; expected sqlite:///path or postgresql://user@host/database")


class DatabaseUnavailable(ReportedError):
    """The database cannot be reached, or cannot run this transaction now. A later retry may succeed."""

    temporary = True


class TransactionConflict(DatabaseUnavailable):
    """PostgreSQL ended this transaction for the sake of another that was in its way: a deadlock, for example."""


class StatementTimeout(DatabaseUnavailable):
    """A statement took longer than it may, and was ended. The database is not away: the same takes as long again."""


class DatabaseDamaged(DatabaseUnavailable):
    """The file is no SQLite database, or is damaged. No retry helps."""

    temporary = False


class UnstorableText(ReportedError, ValueError):
    """A statement has a text with U+0000, which PostgreSQL neither stores nor compares. SQLite does both, so that there
    what is looked up is merely not found."""


present_work: ContextVar[Any] = ContextVar("present_work", default=None)
"""What a circuit breaker (`storage.database.circuit_breaker`) counts here; None: nobody does."""


def _asking() -> AbstractAsyncContextManager[Any]:
    """Let the circuit breaker of this work count a session, or refuse it. Raises DatabaseUnavailable."""
    work = present_work.get()
    return nullcontext() if work is None else work.asking()


def retried_after_conflict(work: Callable[Given, Awaitable[Made]]) -> Callable[Given, Coroutine[Any, Any, Made]]:
    """Run a transaction once more when PostgreSQL ended it for the sake of another. `work` must leave nothing behind in
    memory before its transaction is written. Raises what `work` raises, TransactionConflict too."""

    @wraps(work)
    async def run(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        try:
            return await work(*args, **kwargs)
        except TransactionConflict:
            return await work(*args, **kwargs)

    return run


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise InvalidDatabaseUrl("not a URL") from error
    if url.drivername not in ("sqlite", "postgresql"):
        raise InvalidDatabaseUrl(
            "do not name a driver" if "+" in url.drivername else f"unknown database {url.drivername!r}"
        )
    if not url.database or url.database == ":memory:":
        raise InvalidDatabaseUrl("no path" if url.drivername == "sqlite" else "no database name")
    if url.drivername == "sqlite" and (url.host or url.query):
        raise InvalidDatabaseUrl("a path with an authority or a query")
    if url.drivername == "sqlite" and not Path(url.database).absolute().parent.is_dir():
        raise InvalidDatabaseUrl("the folder of the file does not exist")
    return url


def _sqlite_engine(url: URL, *, reading: bool) -> AsyncEngine:
    pool = {"pool_size": 4, "max_overflow": 4} if reading else {"pool_size": 1, "max_overflow": 0}
    engine = create_async_engine(
        url.set(drivername="sqlite+aiosqlite"),
        hide_parameters=True,
        connect_args={"async_creator_fn": connect},
        **pool,
    )
    begin = "BEGIN" if reading else "BEGIN IMMEDIATE"

    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver shall not begin transactions of its own
        cursor = connection.cursor()
        for pragma in (*_SQLITE_PRAGMAS, *(("query_only = ON",) if reading else ())):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine.sync_engine, "connect", configure)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.connection.driver_connection.begin(begin))
    return engine


def _postgresql_options(statement_s: float) -> dict[str, Any]:
    settings = {"jit": "off", "statement_timeout": str(round(statement_s * 1000))}
    return {"timeout": 5, "command_timeout": statement_s + _SILENT_S, "server_settings": settings}


def _postgresql_engine(url: URL, pool_size: int, statement_s: float) -> AsyncEngine:
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=10,
        pool_pre_ping=True,
        connect_args=_postgresql_options(statement_s),
    )


def _direct(engine: AsyncEngine, pool_size: int, statement_s: float) -> AsyncpgPool:
    _, options = engine.dialect.create_connect_args(engine.url)
    return AsyncpgPool({**options, **_postgresql_options(statement_s)}, pool_size)


def _state(error: Exception) -> str | None:
    """PostgreSQL's SQLSTATE of an error, whether it came through SQLAlchemy or not."""
    of = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    return cast("str | None", getattr(of, "sqlstate", None))


def _is_unavailable(error: Exception) -> bool:
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        state = _state(error)
        if state is not None:
            return state.startswith(_POSTGRESQL_UNAVAILABLE)
        if error.connection_invalidated or isinstance(error, sqlalchemy.exc.InterfaceError):
            return True
        return any(word in str(error.orig) for word in _SQLITE_UNAVAILABLE)
    if isinstance(error, asyncpg.PostgresError):
        return (_state(error) or "").startswith(_POSTGRESQL_UNAVAILABLE)
    return is_unavailable(error) or isinstance(error, (OSError, TimeoutError, sqlalchemy.exc.TimeoutError))


def _is_damaged(error: Exception) -> bool:
    return isinstance(error, sqlalchemy.exc.DatabaseError) and any(text in str(error.orig) for text in _SQLITE_DAMAGED)


def _cause(error: Exception) -> str:
    """The class of the driver's own error. Its text may hold data that must not be logged."""
    cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None else error
    return type(cause.__cause__ or cause).__name__


class Database:
    """A database opened by its URL. `engine`: SQLAlchemy's engine for writing, which migrations use too."""

    def __init__(
        self, dialect: Dialect, engine: AsyncEngine, reader: AsyncEngine, direct: AsyncpgPool | None = None
    ) -> None:
        self.dialect: Dialect = dialect
        self.engine = engine
        self.clock: ColumnElement[int] = _CLOCK[dialect]
        """The database's clock as a column: microseconds since the Unix epoch."""
        self.keyring = Keyring()
        """Keys that are kept apart from it: whoever opens it and has them sets it."""
        self._reader = reader
        self._direct = direct
        self._clock_text: tuple[ColumnElement[int] | None, str] = (None, "")

    @classmethod
    async def open(cls, url: str, pool_size: int = 5, statement_s: float = STATEMENT_S) -> Database:
        """Open without connecting yet. PostgreSQL gets `statement_s` seconds for a statement. Raises
        InvalidDatabaseUrl."""
        parsed = _parse(url)
        if parsed.drivername == "sqlite":
            return cls("sqlite", _sqlite_engine(parsed, reading=False), _sqlite_engine(parsed, reading=True))
        engine = _postgresql_engine(parsed, pool_size, statement_s)
        snapshot = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        return cls("postgresql", engine, snapshot, _direct(engine, pool_size, statement_s))

    @asynccontextmanager
    async def transaction(self, *, write: bool = True) -> AsyncIterator[AsyncSession]:
        """A session that commits at the end, or rolls back if `write` is false (a dry run); any exception rolls back.

        Raises DatabaseUnavailable, UnstorableText.
        """
        async with _asking(), self._session(self.engine) as session:
            yield session
            if not write:
                session.info[_LAST_STEPS].clear()
                session.info[_AFTER_COMMIT].clear()
                await session.rollback()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A read-only session that sees one snapshot. Raises DatabaseUnavailable, UnstorableText."""
        async with _asking(), self._session(self._reader) as session:
            yield session

    @asynccontextmanager
    async def _session(self, engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
        try:
            info = {_OWNER: self, _LAST_STEPS: [], _AFTER_COMMIT: []}
            async with AsyncSession(engine, expire_on_commit=False, info=info) as session:
                async with session.begin():
                    yield session
                    for step in session.info[_LAST_STEPS]:
                        await step()
                for remember in session.info[_AFTER_COMMIT]:
                    remember()
        except Exception as error:
            if (_state(error) or "").startswith(_POSTGRESQL_CONFLICT):
                raise TransactionConflict(f"{SETTING}: another transaction was in the way: {_cause(error)}") from error
            if _state(error) == _POSTGRESQL_CANCELED:
                raise StatementTimeout(_CANCELED) from error
            if _is_damaged(error):
                raise DatabaseDamaged(
                    f"{SETTING}: {self.engine.url.database} is no SQLite database, or damaged"
                ) from error
            if _is_unavailable(error):
                raise DatabaseUnavailable(f"{SETTING}: the database is not available: {_cause(error)}") from error
            if _state(error) == _POSTGRESQL_UNSTORABLE:
                raise UnstorableText(_UNSTORABLE) from error
            raise

    @staticmethod
    def of(session: AsyncSession) -> Database:
        """The database whose session this is."""
        database: Database = session.info[_OWNER]
        return database

    @staticmethod
    def before_commit(session: AsyncSession, step: LastStep) -> None:
        """Await `step` in the session's transaction when all else in it is done; not if it rolls back.

        So the locks that the steps take are its last, and held for the shortest time.
        """
        session.info[_LAST_STEPS].append(step)

    @staticmethod
    def after_commit(session: AsyncSession, step: Callable[[], None]) -> None:
        """Call `step` once the session's transaction is written, such as to remember what it changed; not if it rolls
        back."""
        session.info[_AFTER_COMMIT].append(step)

    @asynccontextmanager
    async def direct(self, *, transaction: bool = True) -> AsyncIterator[Connection]:
        """Like `transaction`, with a connection of PostgreSQL's driver (`storage.database.asyncpg_pool`).

        Without `transaction`, each statement is a transaction. Raises DatabaseUnavailable, UnstorableText.
        """
        if self._direct is None:
            raise RuntimeError("SQLite has no direct connections")
        async with _asking():
            try:
                async with self._direct.transaction() if transaction else self._direct.connection() as connection:
                    yield connection
            except Exception as error:
                if _state(error) == _POSTGRESQL_CANCELED:
                    raise StatementTimeout(_CANCELED) from error
                if _is_unavailable(error):
                    raise DatabaseUnavailable(type(error).__name__) from error
                if _state(error) == _POSTGRESQL_UNSTORABLE:
                    raise UnstorableText(_UNSTORABLE) from error
                raise

    async def now(self) -> int:
        """The database's clock, in microseconds since the Unix epoch."""
        async with self.reading() as session:
            return (await session.execute(select(self.clock))).scalar_one()

    async def now_in(self, session: AsyncSession) -> int:
        """The database's clock, asked in this transaction: it takes no second connection."""
        return (await session.execute(select(self.clock))).scalar_one()

    @property
    def folders(self) -> list[Path]:
        """The folder of an embedded database's files; none for a database server's."""
        path = self.engine.url.database
        return [Path(path).absolute().parent] if self.dialect == "sqlite" and path else []

    async def ping(self) -> None:
        """Raise DatabaseUnavailable unless the database answers. With a silent one this may take a minute."""
        await self.now()

    async def close(self) -> None:
        """Close every connection."""
        if self._direct is not None:
            await self._direct.close()
        await self.engine.dispose()
        if self.dialect == "sqlite":
            await self._reader.dispose()

    # ------------------------------------------------------------ what the two dialects say differently

    @property
    def clock_sql(self) -> str:
        """The clock as SQL text, for direct connections."""
        clock, text = self._clock_text
        if clock is not self.clock:
            text = str(self.clock.compile(dialect=self.engine.dialect, compile_kwargs={"literal_binds": True}))
            self._clock_text = (self.clock, text)
        return text

    def insert(self, table: Any) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that understands `on_conflict_do_nothing` and `on_conflict_do_update`."""
        return postgresql.insert(table) if self.dialect == "postgresql" else sqlite.insert(table)

    def locked(self, query: Select[Any], of: Table | None = None, *, skip: bool = False) -> Select[Any]:
        """The query with its rows locked in its order. `of`: lock this table's rows only. `skip`: skip locked rows.

        On SQLite the transaction holds the only write lock already.
        """
        return query.with_for_update(of=of, skip_locked=skip) if self.dialect == "postgresql" else query

    async def lock_rows_of(self, session: AsyncSession, table: Table, owner: UUID) -> None:
        """Let transactions that count an owner's rows of a table before they add one come one after the other. Rows
        that are not there yet cannot be locked."""
        if self.dialect == "postgresql":
            keys = crc32(table.name.encode()) - 2**31, crc32(owner.bytes) - 2**31
            await session.execute(select(func.pg_advisory_xact_lock(*keys)))

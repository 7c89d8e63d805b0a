"""A pool of asyncpg connections for the few statements on PostgreSQL that every request waits for.

Compared with `Database.transaction` they save a round trip that checks the connection, and the building of statements.
A sum of money (`numeric`) is an int in both directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg  # type: ignore[import-untyped]

Connection: TypeAlias = Any
"""An asyncpg connection; the driver has no types."""

_CLOSE_S = 5
_BY_KEY = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Every statement finds few rows by their keys. Plans are made once and kept, and a plan made while a table was empty
would be a sequential scan."""


async def _set_up(connection: Connection) -> None:
    await connection.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=int, format="text")


async def _leave_as_it_is(_connection: Connection) -> None:
    """No state outlives a transaction, so a released connection needs no reset."""


class AsyncpgPool:
    """A small pool of connections, opened at the first use."""

    def __init__(self, options: dict[str, Any], size: int) -> None:
        settings = {**options.get("server_settings", {}), **_BY_KEY}
        self._options = {**options, "server_settings": settings}
        self._size = size
        self._pool: Any = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a transaction (READ COMMITTED). Raises what asyncpg raises."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection on which each statement is a transaction. Raises what asyncpg raises."""
        pool = self._pool or await self._open()
        connection = await pool.acquire(timeout=10)
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """Close every connection; those in use get `_CLOSE_S` seconds."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    async def _open(self) -> Any:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    min_size=0, max_size=self._size, init=_set_up, reset=_leave_as_it_is, **self._options
                )
        return self._pool


def is_unavailable(error: Exception) -> bool:
    """Whether the driver could not reach the server, for errors without an SQLSTATE."""
    return isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError))

"""The database of a world: SQLite, which every process reaches by connections of its own that may fail as a server's.

A statement takes a time that the seed picks. Transactions that write take turns, as `BEGIN IMMEDIATE` has it; a process
that dies loses what it had not committed. A commit may be refused for the sake of another transaction, and its
acknowledgement may be lost: then nobody knows whether it is written.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import literal_column

import storage.database.database as database_module
from simulation.loop import SimulatedLoop
from simulation.nodes import Killed, present_node
from storage.database.base import Count
from storage.database.database import Database
from storage.database.sqlite_connection import _Connection

_CLOCK = "simulated_clock"
_LOST = "disk I/O error"
"""What SQLite says where a server's connection would be lost."""


class DatabaseServer:
    """What all connections share: who may write, and how they fail. Shares of commits: `conflicts` are refused,
    `unacknowledged` are done and not told, `broken` are lost before they are done. `away`: nobody is answered."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, clock_us: Callable[[], int]) -> None:
        self.loop = loop
        self.chance = chance
        self.clock_us = clock_us
        self.conflicts = self.unacknowledged = self.broken = 0.0
        self.away = False
        self.slow = 1.0
        self.faults = 0
        """How many commits failed for whoever asked."""
        self.writer: SimulatedConnection | None = None
        self._queue: list[tuple[SimulatedConnection, asyncio.Future[None]]] = []

    async def open(self, path: str) -> Database:
        """The database as a process sees it."""
        database = await Database.open(f"sqlite:///{path}")
        database.clock = literal_column(f"{_CLOCK}()", Count())
        return database

    def install(self) -> None:
        """Let databases that are opened from now on be reached by these connections."""
        database_module.connect = self._connect

    def _connect(self, database: str, **options: Any) -> SimulatedConnection:
        options["timeout"], options["check_same_thread"] = 0.0, False

        def connector() -> sqlite3.Connection:
            connection = sqlite3.connect(database, **options)
            connection.create_function(_CLOCK, 0, self.clock_us)
            return connection

        return SimulatedConnection(self, connector)

    async def take_turn(self, connection: SimulatedConnection) -> None:
        """Wait until no other connection writes."""
        if self.writer is connection:
            return
        if self.writer is None:
            self.writer = connection
            return
        future: asyncio.Future[None] = self.loop.create_future()
        self._queue.append((connection, future))
        try:
            await future
        except BaseException:
            if self.writer is connection:
                self.end_turn(connection)
            else:
                self._queue = [entry for entry in self._queue if entry[1] is not future]
            raise

    def end_turn(self, connection: SimulatedConnection) -> None:
        """Let another connection write, which the seed picks."""
        if self.writer is not connection:
            return
        self.writer = None
        self._queue = [entry for entry in self._queue if entry[0].may_act and not entry[1].done()]
        if self._queue:
            self.writer, future = self._queue.pop(self.chance.randrange(len(self._queue)))
            future.set_result(None)


class _Inline:
    """What SQLAlchemy queues for a connection's thread past its methods: options, which take no time."""

    @staticmethod
    def put_nowait(entry: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        """Do it."""
        future, work = entry
        result = work()
        if future is not None:
            future.set_result(result)


class SimulatedConnection(_Connection):
    """A connection whose statements run in the loop, at the time that the seed picks."""

    def __init__(self, server: DatabaseServer, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=1024)
        self._server = server
        self._tx = _Inline()  # type: ignore[assignment]
        self._node = present_node()
        if self._node is not None:
            self._node.on_death.append(self._process_gone)

    @property
    def may_act(self) -> bool:
        """Whether its process lives."""
        return self._node is None or self._node.alive

    def __await__(self) -> Any:
        return self._open().__await__()

    def __del__(self) -> None:
        """Nothing: a world that is over needs no cleaning."""

    async def _open(self) -> SimulatedConnection:
        self._connection = await self._server.loop.in_turn(self, self._connector)
        return self

    async def _execute(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._connection is None:
            raise ValueError("Connection closed")
        while self._server.away:
            await asyncio.sleep(0.1)
        return await self._server.loop.in_turn(
            self, self._if_alive, partial(work, *arguments, **named), slow=self._server.slow
        )

    def _if_alive(self, work: Callable[[], Any]) -> Any:
        if not self.may_act:
            raise Killed
        return work()

    async def run(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """As the connection does, in its turn to write."""
        if self._beginning == "BEGIN IMMEDIATE":
            await self._server.take_turn(self)
        try:
            await super().run(work)
        finally:
            if self._connection is not None and not self._connection.in_transaction:
                self._server.end_turn(self)

    async def commit(self) -> None:
        """Commit, or fail as a server does."""
        server, writes = self._server, self._server.writer is self
        fault = server.chance.random() if writes else 1.0
        if fault < server.conflicts:
            server.faults += 1
            error = sqlite3.OperationalError("another transaction was in the way")
            error.sqlstate = "40001"  # type: ignore[attr-defined]
            raise error
        if fault < server.conflicts + server.broken:
            server.faults += 1
            raise sqlite3.OperationalError(_LOST)
        await super().commit()
        server.end_turn(self)
        if fault > 1.0 - server.unacknowledged and writes:
            server.faults += 1
            raise sqlite3.OperationalError(_LOST)

    async def rollback(self) -> None:
        """Roll back, and let others write."""
        await super().rollback()
        self._server.end_turn(self)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._server.end_turn(self)
            self._connection.close()
            self._connection = None

    def stop(self) -> None:
        """Close the connection at once, as SQLAlchemy terminates one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._server.end_turn(self)

    def _process_gone(self) -> None:
        """The server rolls back what a lost client had not committed."""
        self.stop()

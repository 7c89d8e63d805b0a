"""A client of a replica's Unix socket, as a gateway's worker is one, for benchmarks: one connection and its requests.

It decodes what the replica sends, acknowledges each `Done`, and does nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Self

from protocol.frames import VERSION, ToGateway, ToReplica, encode, link_proof, read_from_replica
from protocol.replicas import Dial, Hello, Scope
from protocol.requests import Ack, Done, Generate

NAME = "bench"
DIAL_S = 300.0
"""How long a replica may take to come up."""
ASK_S = 600.0
MOST_WAITING = 65_536
"""Requests that may be under way on a connection."""
_RETRY_S = 0.05
_CLOSE_S = 5.0
"""How long a link that is closed waits for a replica that does not read."""


class ReplicaLink:
    """One gateway's connection. Every request ends: by its `Done`, or by an error when the replica ends first."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        self.hello = hello
        self._reader = reader
        self._writer = writer
        self._ends: dict[str, asyncio.Future[Done]] = {}
        self._gone: BaseException | None = None
        self._listening = asyncio.create_task(self._listen())
        self._listening.add_done_callback(self._ended)

    @classmethod
    async def dial(
        cls,
        path: Path,
        link_key: bytes,
        *scopes: Scope,
        seconds: float = DIAL_S,
        alive: Callable[[], bool] = lambda: True,
    ) -> Self:
        """Connect, waiting for the replica to come up while it is `alive`, and introduce scopes.

        Raises ConnectionError if it is not, or hangs up; TimeoutError after so many seconds.
        """
        async with asyncio.timeout(seconds):
            while True:
                try:
                    reader, writer = await asyncio.open_unix_connection(str(path))
                    break
                except OSError as error:
                    if not alive():
                        raise ConnectionResetError("the replica ended before it listened") from error
                    await asyncio.sleep(_RETRY_S)
            hello = await read_from_replica(reader)
        if not isinstance(hello, Hello):
            writer.close()
            raise ConnectionResetError("the replica did not begin with Hello")
        link = cls(reader, writer, hello)
        link.send(Dial(VERSION, NAME, link_proof(link_key, hello.challenge, NAME)), *scopes)
        return link

    def send(self, *messages: ToReplica) -> None:
        """Queue messages."""
        for message in messages:
            self._writer.write(encode(message))

    async def flushed(self) -> None:
        """Wait until little is queued. A replica that has gone is told by the requests' ends."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def begin(self, request: Generate) -> asyncio.Future[Done]:
        """Queue a request; the future is its end. Raises ValueError if its id is under way, or too many are."""
        if request.id in self._ends or len(self._ends) >= MOST_WAITING:
            raise ValueError(f"{request.id} is under way, or {MOST_WAITING} others are")
        end: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        if self._gone is not None:
            end.set_exception(self._gone)
            return end
        self._ends[request.id] = end
        self.send(request)
        return end

    async def ask(self, request: Generate, seconds: float = ASK_S) -> Done:
        """Run a request to its end. Raises ConnectionResetError when the replica ends first, TimeoutError."""
        async with asyncio.timeout(seconds):
            return await self.begin(request)

    def heard(self, message: ToGateway) -> None:
        """Called with each message, before a request's end is told. For subclasses."""

    async def close(self) -> None:
        """Hang up. Requests under way fail."""
        self._listening.cancel()
        await asyncio.wait({self._listening})
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()

    async def _listen(self) -> None:
        """Hear the replica until it hangs up."""
        while (message := await read_from_replica(self._reader)) is not None:
            self.heard(message)
            if isinstance(message, Done):
                if message.sequence:
                    self.send(Ack(message.id, message.sequence))
                end = self._ends.pop(message.id, None)
                if end is not None and not end.done():
                    end.set_result(message)

    def _ended(self, listening: asyncio.Task[None]) -> None:
        """All that waits fails, as does what comes later."""
        failure = None if listening.cancelled() else listening.exception()
        self._gone = failure or ConnectionResetError("the replica is gone")
        for end in self._ends.values():
            if not end.done():
                end.set_exception(self._gone)
        self._ends.clear()

"""A webhook receiver for tests: an HTTP server that keeps what it gets, and resolvers that lie."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec


class Received(msgspec.Struct):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers each request with `answer(number)`: raw bytes of a response; None hangs for ever."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.answer: Callable[[int], bytes | None] = lambda _: b"HTTP/1.1 204 No Content\r\n\r\n"
        self.port = 0
        self.names: list[str | None] = []
        self.handlers: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.handlers.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.received.append(Received(lines[0].split(" ")[1], headers, body))
            answer = self.answer(len(self.received))
            if answer is None:
                await asyncio.Event().wait()
            else:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
                await writer.wait_closed()


@asynccontextmanager
async def receiver(context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a free port of 127.0.0.1."""
    found = Receiver()
    if context is not None:
        context.sni_callback = lambda _socket, name, _context: found.names.append(name)
    server = await asyncio.start_server(found.handle, "127.0.0.1", 0, ssl=context)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for task in found.handlers:
            task.cancel()
        if found.handlers:
            await asyncio.wait(found.handlers)


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """A raw response."""
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Names:
    """A resolver that gives its answers in turn, the last for ever, and remembers how often it was asked."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]

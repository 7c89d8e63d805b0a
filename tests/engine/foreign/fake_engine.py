"""A scripted HTTP server in place of vLLM's or SGLang's: it keeps what was asked, and sends the events of a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Body: TypeAlias = dict[str, Any]
Script: TypeAlias = Callable[[Body], Sequence[Body | float | bytes]]
"""What a stream sends for a body: events, pauses in seconds, raw bytes."""


@dataclass
class FakeEngine:
    """`answers`: path -> JSON, or what makes it of the body. `streams`: path -> script."""

    answers: dict[str, Any]
    streams: dict[str, Script]
    asked: list[tuple[str, Body]] = field(default_factory=list)
    closed: int = 0
    """Streams that the other side closed before their end."""
    url: str = ""

    async def __aenter__(self) -> FakeEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split(" ", 2)[1]
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                self.asked.append((path, body))
                if path in self.streams:
                    await self._stream(self.streams[path](body), reader, writer)
                    break
                answer = self.answers.get(path, {})
                text = json.dumps(answer(body) if callable(answer) else answer).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
        writer.close()

    async def _stream(
        self, script: Sequence[Body | float | bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        gone = asyncio.create_task(reader.read(1))
        for piece in script:
            if isinstance(piece, float):
                await asyncio.wait({gone}, timeout=piece)
            else:
                writer.write(piece if isinstance(piece, bytes) else b"data: %b\n\n" % json.dumps(piece).encode())
                await writer.drain()
            if gone.done():
                self.closed += 1
                return
        writer.write(b"data: [DONE]\n\n")
        gone.cancel()

    def bodies(self, path: str) -> list[Body]:
        """What was posted there."""
        return [body for asked, body in self.asked if asked == path]

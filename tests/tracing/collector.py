"""A stand-in for an OpenTelemetry collector: HTTP, and the official classes of its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """`answers`: the statuses with which it answers the next requests; 200 after them. `bodies`: what came, as it
    was."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.answers: list[int] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.taken: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def spans(self) -> list[Any]:
        """All spans that it has taken, as protobuf's classes read them."""
        return [
            span for one in self.taken for part in one.resource_spans for of in part.scope_spans for span in of.spans
        ]

    def roots(self) -> list[Any]:
        """The requests' own spans."""
        return [span for span in self.spans if span.kind == 2]

    async def until(self, requests: int) -> None:
        """Wait until it has so many requests' spans."""
        async with asyncio.timeout(20):
            while len(self.roots()) < requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers["content-length"]))
                await self.gate.wait()
                status = self.answers.pop(0) if self.answers else 200
                self.bodies.append(body)
                self.headers.append(headers)
                self.paths.append(head[0].split()[1])
                if status == 200:
                    self.taken.append(ExportTraceServiceRequest.FromString(body))
                writer.write(f"HTTP/1.1 {status} said\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    """A collector on a free port."""
    collector = Collector()
    server = await asyncio.start_server(collector.handle, "127.0.0.1", 0)
    collector.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield collector
    finally:
        collector.gate.set()
        server.close()


def attributes(one: Any) -> dict[str, Any]:
    """The attributes of a span, event or resource, as plain values."""
    return {item.key: _plain(item.value) for item in one.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(one) for one in value.array_value.values]
    return getattr(value, kind)

"""Server-sent events: an answer that is sent as it comes, and a watch on the client who reads it.

The response is a plain ASGI application, not a generator: nothing here runs in a scope that somebody cancels, and
whatever happens, the owner of the request is told that the reader has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from litestar.types import Receive, Scope, Send

from gateway.generation.delivery import ChoiceDelta, DeliveryChunk, DeliveryReader, Failed, Finished, Item, ReaderGone

KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class EventWriter(Protocol):
    """A dialect's events as bytes."""

    def piece(self, parts: Sequence[ChoiceDelta]) -> bytes:
        """Events for more of some choices; before the first, whatever opens the stream."""
        ...

    def finished(self, end: Finished) -> bytes:
        """Events for a good end."""
        ...

    def failed(self, end: Failed) -> bytes:
        """The event for a bad end."""
        ...


class ClientWatch:
    """Calls `on_gone` once when the client disconnects. The request's body has been read before."""

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_gone()

    def stop(self) -> None:
        """Stop watching; waits for nothing, so it may be called while being cancelled."""
        # The task has us: if we kept it, the whole request would stay in memory until garbage is searched for.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


class EventStream:
    """The response. `first` was read from the delivery already.

    A `send` that takes `patience` seconds ends it. `gone` is told when nobody reads any more, and does nothing after
    the end.
    """

    def __init__(
        self,
        delivery: DeliveryReader,
        first: Item | None,
        writer: EventWriter,
        *,
        watch: ClientWatch,
        gone: Callable[[str], None],
        keep_alive: float,
        patience: float,
        headers: Mapping[str, str] = {},
    ) -> None:
        self._delivery = delivery
        self._first = first
        self._writer = writer
        self._watch = watch
        self._gone = gone
        self._keep_alive = keep_alive
        self._patience = patience
        self._headers = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything that comes, until an end."""
        try:
            await self._send_all(send)
        except TimeoutError:
            self._gone("slow reader")
        except OSError:
            self._gone("client")
        finally:
            self._gone("client")
            self._watch.stop()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        item = self._first
        while True:
            if isinstance(item, ReaderGone):
                return
            if isinstance(item, Finished | Failed):
                end = self._writer.finished(item) if isinstance(item, Finished) else self._writer.failed(item)
                await self._send(send, end, more=False)
                return
            if item is None:
                await self._send(send, KEEP_ALIVE)
            elif isinstance(item, DeliveryChunk):
                if item.parts:
                    await self._send(send, self._writer.piece(item.parts))
                self._delivery.confirm(item.tokens)
            item = await self._delivery.next(self._keep_alive)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._patience):
            await send({"type": "http.response.body", "body": body, "more_body": more})

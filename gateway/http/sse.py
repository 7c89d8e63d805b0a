"""Server-sent events: a response that is sent while it is generated, and a watch on the client that reads it.

The response is a plain ASGI application and not a generator, so that no cancelled scope ends it half-way: however it
ends, the request is told that the client has gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from litestar.types import Receive, Scope, Send

from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.generation.delivery import (
    ChoiceDelta,
    DeliveryReader,
    Failed,
    Finished,
    Item,
    ReaderGone,
    Started,
)

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
DISCONNECTS = "turnpike.disconnects"
"""The extension of an ASGI scope with the request's `Disconnects`. Where a server lacks it, a task listens."""


class EventWriter(Protocol):
    """A dialect's events, as bytes. `withholds`: whether the client is told of what came last, if at all, later."""

    withholds: bool

    def started(self, start: Started) -> bytes:
        """The events of a request that was scheduled and has no text yet; may be empty."""
        ...

    def keep_alive(self) -> bytes:
        """What is sent when nothing came for a while."""
        ...

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The events for more text of some choices; before the first, what opens the stream."""
        ...

    def finished(self, end: Finished) -> bytes:
        """The last events of a stream that ended well."""
        ...

    def failed(self, end: Failed) -> bytes:
        """The last event of a stream that failed."""
        ...


class Disconnects:
    """Whether a request's client has disconnected, and who is told of it. It refers neither to the request nor to the
    connection: both are freed without a collection of garbage."""

    def __init__(self) -> None:
        self._gone = False
        self._told: tuple[Callable[[], None], contextvars.Context] | None = None

    def tell(self, on_gone: Callable[[], None] | None) -> None:
        """Call this once, in this context, when the client has disconnected; None: nothing any more."""
        self._told = None if on_gone is None else (on_gone, contextvars.copy_context())
        if self._gone:
            self.happened()

    def happened(self) -> None:
        """The client has disconnected: say so when others had their turn."""
        self._gone = True
        if self._told is not None:
            asyncio.get_running_loop().call_soon(self._say, context=self._told[1])

    def _say(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told[0]()


class ClientWatch:
    """Calls `on_gone` once when the client disconnects. Start it after the body was read."""

    def __init__(self, scope: Scope, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None
        self._disconnects: Disconnects | None = (scope.get("extensions") or {}).get(DISCONNECTS)  # type: ignore[assignment]
        if self._disconnects is not None:
            self._disconnects.tell(on_gone)
        else:
            self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_gone()

    def stop(self) -> None:
        """Stop watching. It never waits, so it may be called during cancellation."""
        # Dropping the task, or the callback, breaks the reference cycle that would keep the request in memory until
        # garbage collection.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        if self._disconnects is not None:
            self._disconnects.tell(None)


class EventStream:
    """The streamed response. `first` are the delivery's first items, which were read before.

    `keep_alive`: seconds without an event after which a comment is sent. `client_timeout`: seconds that one `send` may
    take. `in_thread` runs what would block the event loop.
    `on_gone` is called with the reason when nobody reads any more; after the end it must do nothing.
    """

    def __init__(
        self,
        delivery: DeliveryReader,
        first: Sequence[Item | None],
        writer: EventWriter,
        *,
        watch: ClientWatch,
        on_gone: Callable[[str], None],
        keep_alive: float,
        client_timeout: float,
        in_thread: Callable[[Callable[[], bytes]], Awaitable[bytes]],
        headers: Mapping[str, str] = {},
    ) -> None:
        self._delivery = delivery
        self._first = first
        self._writer = writer
        self._watch = watch
        self._on_gone = on_gone
        self._keep_alive = keep_alive
        self._client_timeout = client_timeout
        self._in_thread = in_thread
        self._sent_at = time.monotonic()
        self._headers = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all items of the delivery."""
        try:
            await self._send_all(send)
        except TimeoutError:
            self._on_gone("slow reader")
        except OSError:
            self._on_gone("client")
        finally:
            self._on_gone("client")
            self._watch.stop()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        for item in self._first:
            if await self._send_item(send, item):
                return
        while not await self._send_item(send, await self._delivery.next(self._keep_alive)):
            pass

    async def _send_item(self, send: Send, item: Item | None) -> bool:
        """Send one item; True if it is the last."""
        writer = self._writer
        if isinstance(item, ReaderGone):
            return True
        if isinstance(item, Finished | Failed):
            end = writer.finished(item) if isinstance(item, Finished) else writer.failed(item)
            await self._send(send, end, more=False)
            return True
        if item is None:
            await self._send(send, writer.keep_alive())
        elif isinstance(item, Started):
            if events := writer.started(item):
                await self._send(send, events)
        else:
            await self._send_deltas(send, item.deltas)
            if time.monotonic() >= self._sent_at + self._keep_alive:
                await self._send(send, writer.keep_alive())  # what came is not shown, and that for long
            self._delivery.confirm(item.tokens, 0 if writer.withholds else item.tokens)
        return False

    async def _send_deltas(self, send: Send, deltas: Sequence[ChoiceDelta]) -> None:
        """Send what there is to show of them: of many bytes one after the other, so that they are not all in memory."""
        large = sum([delta.size for delta in deltas]) > LARGE_BYTES
        for part in [(delta,) for delta in deltas] if large else [deltas] if deltas else []:
            work = partial(self._writer.events, part)
            if events := await self._in_thread(work) if large else work():
                await self._send(send, events)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._client_timeout):
            await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sent_at = time.monotonic()

"""One request and its answer on a connection: uvicorn's, which says in time what it needs of the connection."""

from __future__ import annotations

from typing import Any, Protocol

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Connection(Protocol):
    """What the request came on."""

    def want_body(self) -> None:
        """The application asks for the body."""

    def begin_answer(self, cycle: RequestCycle) -> None:
        """The answer begins."""


class RequestCycle(RequestResponseCycle):
    """One request and its answer. Tells the protocol when the body is wanted, and when the answer begins."""

    protocol: Connection

    async def receive(self) -> ASGIReceiveEvent:
        """More of the body, or the news that the client has gone."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.protocol.want_body()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def send(self, message: ASGISendEvent) -> Any:
        """Part of the answer."""
        if not self.response_started:
            self.protocol.begin_answer(self)
        return super().send(message)

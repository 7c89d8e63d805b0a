"""What can be wrong before there is a request: broken HTTP, a head without end, a head that never comes."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.dialects import errors
from gateway.request_scope import RequestScope

log = structlog.get_logger("gateway.http")

HEAD_BYTES = 64 * 1024
"""The longest request line and headers together; what arrives with one read may go beyond."""
HEAD_S = 30.0


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, which alone would collect headers for ever, and answers broken HTTP in plain text.

    Nobody has said who they are by then, so whatever is collected is a stranger's.
    """

    _head: int | None = None
    """How much of a head has been read that has not ended; None between heads."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A connection: its first head must come in time."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; end a head that is too long."""
        super().data_received(data)
        if self._head is not None and not self.transport.is_closing():
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self._refuse(431, f"The request's headers are longer than {HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head = 0
        self._arm()

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._head = None
        self._disarm()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Broken HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        name = RequestScope().name
        body = errors.encode(errors.plain(status, message, name))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {name}\r\nconnection: close\r\n\r\n"
        )
        log.info("refused before it was a request", request_id=name, status=status, cause=message)
        self._disarm()
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The request's headers did not come within {HEAD_S:g} s.")

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(HEAD_S, self._too_late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

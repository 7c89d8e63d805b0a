"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds on everything that costs us something.

Whoever sends has not said who they are, or only that they have a key; so nothing is parsed before it is needed:

- The head of the next request is parsed once the answer before it is complete.
- The body is parsed while the application asks for it. An answer that is given before the body has come whole says
  `connection: close`; nothing of the rest is parsed, and the connection ends soon (`gateway.http.lingering_transport`).
- A head has limits in bytes, fields and seconds; a chunked body in chunks, and in bytes that are not the body's.
- A client that does not read its answer is cut off.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools
import structlog
from litestar.types import ASGIApp
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.dialects.openai import errors
from gateway.http.connections import Connections
from gateway.http.lingering_transport import LingeringTransport
from gateway.request_context import RequestContext


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


log = structlog.get_logger("gateway.http")

HEAD_BYTES = 64 * 1024
"""The longest request line and headers together."""
HEAD_FIELDS = 128
HEAD_S = 30.0
WRITE_S = 60.0
"""How long a client may leave an answer unread that does not fit into our buffers."""
CHUNKS = 4096
"""A chunked body may have so many chunks; more, if they have `CHUNK_BYTES` in the mean."""
CHUNK_BYTES = 64
CHUNK_OVERHEAD_BYTES = 64 * 1024
"""So many bytes, beside what a chunked body says and as many again, may go into sizes, extensions and trailers."""
_PIECE = 16 * 1024
"""What is parsed at a time: a stranger's bytes may cost much more than they are long."""
_UNPARSED_BYTES = 64 * 1024
"""When more than this has come that is not to be parsed yet, nothing more is read."""
_REST_BYTES = 4096
"""A rest of a body that has come already, and is no longer than this, is read so that the connection can stay."""
_END_OF_HEAD = b"\r\n\r\n"


class _Refused(Exception):
    """Ends the parsing of a request that is answered by the protocol itself."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. `app` is what its requests are for, the server's application if absent."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        app: ASGIApp | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        if app is not None:
            self.app = cast(Any, app)
        self._admitted = connections
        self._unparsed = bytearray()
        self._again: asyncio.Handle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str] | None = None
        self._in_head = True
        self._head_bytes = 0
        self._head_tail = b""
        self._deaf = False
        """Whatever else comes is not parsed: it is no request, or one that came too early."""
        self._length = 0
        self._begin_body(chunked=False)

    # ------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A connection: its first head must come in time."""
        self._line = LingeringTransport(transport, self.loop, self._everything_read, self._admitted.lingering)
        super().connection_made(cast(asyncio.Transport, self._line))
        if not self._admitted.admit(self, self.client[0] if self.client else ""):
            self._refuse(503, "Too many connections are open; try again shortly.", "retry-after: 1\r\n")
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._line.lost()
        self._admitted.remove(self)
        self._disarm()
        self._unparsed.clear()
        if self._again is not None:
            self._again.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)
        self.cycle = cast(Any, None)  # it has us: together they would stay until garbage is searched for

    def end_idle(self) -> None:
        """End the connection, on which no request is under way."""
        self._disarm()
        self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_S, self._line.abort)

    def resume_writing(self) -> None:
        """The client has read most of what was written."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ------------------------------------------------ what comes in

    def data_received(self, data: bytes) -> None:
        """Keep what came, and parse what is due."""
        if self.transport.is_closing():
            self._line.discard(len(data))
            return
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._parse()

    def want_body(self) -> None:
        """The application asks for the body."""
        self._wanted = True
        self._parse()

    def begin_answer(self, cycle: RequestCycle) -> None:
        """The answer begins. If the body has not come whole by now, it is the last one on this connection."""
        if cycle.more_body and len(self._unparsed) <= _REST_BYTES:
            self._wanted = True
            self._parse()
        if cycle.more_body:
            cycle.keep_alive = False

    def _parse(self) -> None:
        """Parse what is due; of a chunked body one piece at a time, so that others have their turn."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        while self._unparsed and self._is_due():
            if not self._parse_piece():
                return
            if self._chunked and not self._in_head and self._unparsed:
                self._again = self.loop.call_soon(self._parse)
                break
        if len(self._unparsed) > _UNPARSED_BYTES:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _is_due(self) -> bool:
        cycle = self.cycle
        if self._deaf or self.transport.is_closing():
            return False
        if self._in_head:
            return cycle is None or cycle.response_complete
        return self._wanted and len(cycle.body) <= HIGH_WATER_LIMIT

    def _parse_piece(self) -> bool:
        """Parse the next piece, which is never of two requests. False if that was refused."""
        piece = bytes(self._unparsed[:_PIECE])
        in_head = self._in_head
        if in_head:
            end = (self._head_tail + piece).find(_END_OF_HEAD)
            if end >= 0:
                piece = piece[: end + len(_END_OF_HEAD) - len(self._head_tail)]
            self._head_tail = (self._head_tail + piece)[1 - len(_END_OF_HEAD) :]
            self._head_bytes += len(piece)
            if self._head_timer is None:
                self._arm()
        else:
            if not self._chunked:
                piece = piece[: max(1, self._length - self._content_bytes)]
            self._body_bytes += len(piece)
        del self._unparsed[: len(piece)]
        try:
            self.parser.feed_data(piece)
            self._check_sizes()
        except httptools.HttpParserUpgrade:  # we speak nothing else: this is answered, and then the connection ends
            self._listen_no_more()
        except (httptools.HttpParserError, _Refused):
            if self._deaf:
                return True
            self._refuse(*(self._refusal or (400, "The request is not valid HTTP.")))
            return False
        if not in_head and self.cycle.body:
            self.cycle.message_event.set()
        return True

    def _check_sizes(self) -> None:
        if self._in_head:
            if self._head_bytes > HEAD_BYTES:
                self._refuse_head_bytes()
        elif self._chunked and self._body_bytes > 2 * self._content_bytes + CHUNK_OVERHEAD_BYTES:
            self._stop_parsing(400, "The body's chunks say less than what is around them.")

    # ------------------------------------------------ what the parser finds

    def on_message_begin(self) -> None:
        """A head begins. One that came with the end of a chunked body cannot wait for the answer before it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._listen_no_more()
            raise _Refused
        super().on_message_begin()
        self._fields = self._hosts = self._length = 0
        self._codings: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head. Those after the body are nobody's: whoever looked at the request did not see them."""
        if not self._in_head:
            return
        self._fields += 1
        if self._fields > HEAD_FIELDS:
            self._stop_parsing(431, f"The request has more than {HEAD_FIELDS} headers.")
        super().on_header(name, value)
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._codings.append(value.strip().lower())

    def on_headers_complete(self) -> None:
        """A head has ended: hand the request to the application."""
        if self._head_bytes > HEAD_BYTES:
            self._refuse_head_bytes()
        version = self.parser.get_http_version()
        self._check_head(version)
        target = self._target()
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = version
        path = target.path.decode("ascii")
        self.scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        self.scope["raw_path"] = target.path
        self.scope["query_string"] = target.query or b""
        self.cycle = cycle = RequestCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        cycle.protocol = self
        self._in_head = False
        self._begin_body(chunked=bool(self._codings))
        self._disarm()
        self._admitted.begin_request(self)
        self._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        """Part of the body: all of it that one chunk has, where there are chunks."""
        self._content_bytes += len(body)
        if self._chunked:
            self._chunks += 1
            if self._chunks > CHUNKS and self._content_bytes < self._chunks * CHUNK_BYTES:
                self._stop_parsing(400, f"The body has too many small chunks: over {CHUNKS}, of under {CHUNK_BYTES} B.")
        self.cycle.body += body

    def on_message_complete(self) -> None:
        """The request has come whole."""
        self._in_head = True
        self._head_bytes = 0
        self._head_tail = b""
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """The request was answered: the next one may be parsed, if there is one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._admitted.end_request(self)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self._unparsed and self._again is None:
            self._again = self.loop.call_soon(self._parse_next)

    def _parse_next(self) -> None:
        self._unset_keepalive_if_required()
        self._parse()

    def _listen_no_more(self) -> None:
        """Parse nothing more; the answer to what was parsed is the last one on this connection."""
        self._deaf = True
        self.cycle.keep_alive = False

    def _begin_body(self, *, chunked: bool) -> None:
        self._chunked = chunked
        self._wanted = False
        self._body_bytes = self._content_bytes = self._chunks = 0

    def _check_head(self, version: str) -> None:
        """What the parser lets pass and HTTP/1.1 does not (RFC 9112, sections 3.2 and 6.1)."""
        if version not in ("1.0", "1.1"):
            self._stop_parsing(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
        if self._hosts > 1 or (version == "1.1" and not self._hosts):
            self._stop_parsing(400, "A request of HTTP/1.1 has one Host header.")
        if self._codings and (version == "1.0" or len(self._codings) > 1):
            self._stop_parsing(400, "The request's Transfer-Encoding is ambiguous.")
        if self._codings and self._codings != [b"chunked"]:
            self._stop_parsing(501, "Only the transfer coding 'chunked' is understood here.")

    def _target(self) -> Any:
        try:
            target = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            target = None
        if target is None or not target.path or not target.path.isascii():
            self._stop_parsing(400, "The request's target is not a path.")
        return target

    # ------------------------------------------------ answers without an application

    def send_400_response(self, msg: str) -> None:
        """Broken HTTP."""
        self._refuse(400, msg)

    def _stop_parsing(self, status: int, message: str) -> None:
        """End the parsing, from inside the parser too. Always raises."""
        self._refusal = (status, message)
        raise _Refused

    def _refuse_head_bytes(self) -> None:
        self._stop_parsing(431, f"The request's headers are longer than {HEAD_BYTES} bytes.")

    def _refuse(self, status: int, message: str, header: str = "") -> None:
        """Answer and close. An application that waits for the body is told that the client has gone."""
        self._disarm()
        cycle = self.cycle
        answered = cycle is not None and not cycle.response_complete and cycle.response_started
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if not answered:
            name = RequestContext().name
            body = errors.encode(errors.plain(status, message, name))
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{header}"
                f"content-length: {len(body)}\r\nx-request-id: {name}\r\nconnection: close\r\n\r\n"
            )
            log.info("refused before it was a request", request_id=name, status=status, cause=message)
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _everything_read(self) -> bool:
        """Whether the client has nothing under way to us, as far as we know."""
        between = self._in_head and not self._head_bytes
        return between and not self._unparsed and not self._deaf and self._refusal is None

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The request's headers did not come within {HEAD_S:g} s.")

    def _arm(self) -> None:
        self._disarm()
        self._head_timer = self.loop.call_later(HEAD_S, self._too_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

"""HTTP/1.1 on one connection: uvicorn's protocol, with limits on everything that a client can make expensive.

The client is not authenticated yet, so nothing is parsed before it is needed:

- The head of the next request is parsed after the response before it is complete.
- The body is parsed while the application reads it. A response that begins before the whole body has arrived says
  `connection: close`; the rest of the body is not parsed, and the connection ends soon (`lingering_transport`).
- A head has limits in bytes, fields and seconds; a chunked body has limits in chunks and in bytes of framing.
- A client that does not read its response is disconnected.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

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
from gateway.http.sse import DISCONNECTS, Disconnects
from gateway.request_context import RequestContext, request_context


class RequestCycle(RequestResponseCycle):
    """One request and its response. Tells the connection when the application reads the body and when it responds."""

    protocol: HttpProtocol
    disconnects: Disconnects

    async def receive(self) -> ASGIReceiveEvent:
        """More of the body, or that the client has disconnected."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.protocol.want_body()
            with self.protocol.waiting_for_client(stranger=request_context(cast(Any, self.scope)).principal is None):
                await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def send(self, message: ASGISendEvent) -> Any:
        """Send a part of the response."""
        if not self.response_started:
            self.protocol.begin_response(self)
        return super().send(message)


log = structlog.get_logger("gateway.http")

_DOT_SEGMENTS = frozenset({".", ".."})
_UNGUARDED_PREFIX = "v1"
"""Paths below it may begin with percent-encoded or empty segments. Other paths must begin as they are routed, since a
load balancer may keep clients from them by how they begin (`_begins_as_routed`)."""
HEAD_BYTES = 64 * 1024
"""The request line and headers together may have so many bytes."""
HEAD_FIELDS = 128
HEAD_S = 30.0
WRITE_S = 60.0
"""Seconds for which a client may leave a response unread that does not fit into the buffers."""
CHUNKS = 4096
"""A chunked body may have more chunks than this only if their mean size is `CHUNK_BYTES` or more."""
CHUNK_BYTES = 64
CHUNK_OVERHEAD_BYTES = 64 * 1024
"""Sizes, extensions and trailers of a chunked body may have so many bytes more than its content."""
_PIECE = 16 * 1024
"""Bytes that are parsed at a time: parsing may take long for few bytes, and others must have their turn."""
_UNPARSED_BYTES = 64 * 1024
"""With more unparsed bytes than this, reading from the client pauses."""
_REST_BYTES = 4096
"""The rest of an unread body is parsed, so that the connection can stay, if it has arrived and is no longer."""
_END_OF_HEAD = b"\r\n\r\n"


_FULL = "The server has too many open connections; try again shortly.", "retry-after: 1\r\n"


class _Refused(Exception):
    """Ends the parsing of a request that the protocol refuses by itself."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. `app`: the application for its requests, by default the server's."""

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
        self._connections = connections
        self._unparsed = bytearray()
        self._scheduled_parse: asyncio.Handle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str] | None = None
        self._in_head = True
        self._head_bytes = 0
        self._head_tail = b""
        self._ignores_input = False
        """Whether further bytes are not parsed: they are no request, or came too early."""
        self._length = 0
        self._begin_body(chunked=False)

    # ------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has connected: limit the connections, and the time until its first head."""
        self._lingering = LingeringTransport(transport, self.loop, self._everything_read, self._connections.lingering)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        if not self._connections.admit(self, self.client[0] if self.client else ""):
            self._refuse(503, *_FULL)
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._lingering.lost()
        self._connections.remove(self)
        self._stop_head_timer()
        self._unparsed.clear()
        if self._scheduled_parse is not None:
            self._scheduled_parse.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)
        if self.cycle is not None and self.cycle.disconnected:
            cast(RequestCycle, self.cycle).disconnects.happened()
        self.cycle = cast(Any, None)  # breaks a reference cycle, which would stay until garbage collection

    def end_idle(self) -> None:
        """Close the connection, which has no request, or one of a stranger whose body does not come."""
        self._stop_head_timer()
        waiting = self.cycle is not None and not self.cycle.response_complete
        if waiting and not self.transport.is_closing():
            self._refuse(503, *_FULL)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client reads slower than the application writes."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_S, self._lingering.abort)

    def resume_writing(self) -> None:
        """The client has read most of what was written."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ------------------------------------------------ input

    def data_received(self, data: bytes) -> None:
        """Keep the bytes, and parse what is due."""
        if self.transport.is_closing():
            self._lingering.discard(len(data))
            return
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._parse()

    def want_body(self) -> None:
        """The application reads the body: parse it."""
        self._body_wanted = True
        self._parse()

    @contextmanager
    def waiting_for_client(self, *, stranger: bool) -> Iterator[None]:
        """While the application waits for more of the body. A stranger's connection can be replaced meanwhile."""
        if stranger:
            self._connections.end_request(self)
        try:
            yield
        finally:
            if stranger and not self.transport.is_closing():
                self._connections.begin_request(self)

    def begin_response(self, cycle: RequestCycle) -> None:
        """The response begins. If the body has not arrived by now, this is the last response on the connection."""
        if cycle.more_body and len(self._unparsed) <= _REST_BYTES:
            self._body_wanted = True
            self._parse()
        if cycle.more_body:
            cycle.keep_alive = False

    def _parse(self) -> None:
        """Parse what is due. Between pieces of a chunked body the event loop runs, so that others have their turn."""
        if self._scheduled_parse is not None:
            self._scheduled_parse.cancel()
            self._scheduled_parse = None
        while self._unparsed and self._is_due():
            if not self._parse_piece():
                return
            if self._chunked and not self._in_head and self._unparsed:
                self._scheduled_parse = self.loop.call_soon(self._parse)
                break
        if len(self._unparsed) > _UNPARSED_BYTES:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _is_due(self) -> bool:
        cycle = self.cycle
        if self._ignores_input or self.transport.is_closing():
            return False
        if self._in_head:
            return cycle is None or cycle.response_complete
        return self._body_wanted and len(cycle.body) <= HIGH_WATER_LIMIT

    def _parse_piece(self) -> bool:
        """Parse the next piece, which never spans two requests. False if it was refused."""
        piece = bytes(self._unparsed[:_PIECE])
        in_head = self._in_head
        if in_head:
            end = (self._head_tail + piece).find(_END_OF_HEAD)
            if end >= 0:
                piece = piece[: end + len(_END_OF_HEAD) - len(self._head_tail)]
            self._head_tail = (self._head_tail + piece)[1 - len(_END_OF_HEAD) :]
            self._head_bytes += len(piece)
            if self._head_timer is None:
                self._start_head_timer()
        else:
            if not self._chunked:
                piece = piece[: max(1, self._length - self._content_bytes)]
            self._body_bytes += len(piece)
        del self._unparsed[: len(piece)]
        try:
            self.parser.feed_data(piece)
            self._check_sizes()
        except httptools.HttpParserUpgrade:  # no upgrade is supported: answer, then close the connection
            self._ignore_further_input()
        except (httptools.HttpParserError, _Refused):
            if self._ignores_input:
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
            self._stop_parsing(400, "The framing of the chunked body is larger than its content.")

    # ------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        """A head begins. If it arrived with the end of a chunked body, it is ignored: it cannot wait for its turn."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._ignore_further_input()
            raise _Refused
        super().on_message_begin()
        self._fields = self._hosts = self._length = 0
        self._codings: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head. Trailers are ignored: whoever checked the request did not see them."""
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
        """A head is complete: start the application."""
        if self._head_bytes > HEAD_BYTES:
            self._refuse_head_bytes()
        version = self.parser.get_http_version()
        self._check_head(version)
        target = self._target()
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = version
        raw = target.path.decode("ascii")
        self.scope["path"] = path = urllib.parse.unquote(raw) if "%" in raw else raw
        if "/." in path and not _DOT_SEGMENTS.isdisjoint(path.split("/")):
            # What is in front may have resolved them, and would then have let through another path than is served.
            self._stop_parsing(400, "The path has a segment '.' or '..'.")
        if ("//" in path or "%" in raw) and not _begins_as_routed(raw, path):
            # What is in front may keep others from routes by how these begin, from those of administrators, say.
            self._stop_parsing(404, "There is no such path. It begins with an empty or percent-encoded segment.")
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
            keep_alive=version != "1.0" and self.parser.should_keep_alive() and not self._connections.draining,
            on_response=self.on_response_complete,
        )
        cycle.protocol = self
        cycle.disconnects = Disconnects()
        self.scope["extensions"] = {DISCONNECTS: cast(Any, cycle.disconnects)}
        self._in_head = False
        self._begin_body(chunked=bool(self._codings))
        self._stop_head_timer()
        self._connections.begin_request(self)
        self._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        """A part of the body; in a chunked body, a whole chunk."""
        self._content_bytes += len(body)
        if self._chunked:
            self._chunks += 1
            if self._chunks > CHUNKS and self._content_bytes < self._chunks * CHUNK_BYTES:
                self._stop_parsing(
                    400, f"The body has over {CHUNKS} chunks of under {CHUNK_BYTES} bytes; send larger chunks."
                )
        self.cycle.body += body

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        self._in_head = True
        self._head_bytes = 0
        self._head_tail = b""
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """The response is complete: the next request may be parsed."""
        self.server_state.total_requests += 1
        self._connections.end_request(self)  # one that lingers keeps no place either
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self._unparsed and self._scheduled_parse is None:
            self._scheduled_parse = self.loop.call_soon(self._parse_next)

    def _parse_next(self) -> None:
        self._unset_keepalive_if_required()
        self._parse()

    def _ignore_further_input(self) -> None:
        """Parse nothing more: the response to what was parsed is the last one on this connection."""
        self._ignores_input = True
        self.cycle.keep_alive = False

    def _begin_body(self, *, chunked: bool) -> None:
        self._chunked = chunked
        self._body_wanted = False
        self._body_bytes = self._content_bytes = self._chunks = 0

    def _check_head(self, version: str) -> None:
        """Refuse what the parser accepts and HTTP/1.1 does not (RFC 9112, sections 3.2 and 6.1)."""
        if version not in ("1.0", "1.1"):
            self._stop_parsing(505, "Only HTTP/1.1 and HTTP/1.0 are supported.")
        if self._hosts > 1 or (version == "1.1" and not self._hosts):
            self._stop_parsing(400, "A request must have exactly one Host header.")
        if self._codings and (version == "1.0" or len(self._codings) > 1):
            self._stop_parsing(400, "The request's Transfer-Encoding is ambiguous.")
        if self._codings and self._codings != [b"chunked"]:
            self._stop_parsing(501, "The only supported Transfer-Encoding is 'chunked'.")

    def _target(self) -> Any:
        try:
            target = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            target = None
        if target is None or not target.path or not target.path.isascii():
            self._stop_parsing(400, "The request target is not a path.")
        return target

    # ------------------------------------------------ responses without an application

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP (called by uvicorn)."""
        self._refuse(400, msg)

    def _stop_parsing(self, status: int, message: str) -> None:
        """Refuse the request and end its parsing, also from a callback of the parser. Always raises."""
        self._refusal = (status, message)
        raise _Refused

    def _refuse_head_bytes(self) -> None:
        self._stop_parsing(431, f"The request line and headers have more than {HEAD_BYTES} bytes.")

    def _refuse(self, status: int, message: str, header: str = "") -> None:
        """Respond with an error and close. An application that reads the body sees the client disconnect.

        The error has OpenAI's form for every client: most of these requests have no path or headers yet that would name
        another dialect.
        """
        self._stop_head_timer()
        cycle = self.cycle
        responding = cycle is not None and not cycle.response_complete and cycle.response_started
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            cast(RequestCycle, cycle).disconnects.happened()
        if not responding:
            name = RequestContext().name
            body = errors.encode(errors.plain(status, message, name))
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{header}"
                f"content-length: {len(body)}\r\nx-request-id: {name}\r\nconnection: close\r\n\r\n"
            )
            log.info("refused before the application", request_id=name, status=status, cause=message)
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._connections.end_request(self)

    def _everything_read(self) -> bool:
        """Whether all that the client sent was read, as far as is known."""
        between = self._in_head and not self._head_bytes
        return between and not self._unparsed and not self._ignores_input and self._refusal is None

    def _head_timed_out(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The request's headers did not arrive within {HEAD_S:g} s.")

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_S, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _begins_as_routed(raw: str, path: str) -> bool:
    """Whether the first two segments of a path stand in the request as the router sees them, which skips empty ones."""
    served = [segment for segment in path.split("/") if segment][:2]
    return served[:1] in ([], [_UNGUARDED_PREFIX]) or raw.startswith("/" + "/".join(served))

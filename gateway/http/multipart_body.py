"""Reads forms with a file (multipart/form-data, RFC 7578) as they arrive: the file's bytes go on, and are not held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from litestar import Request
from litestar.exceptions import InternalServerException
from msgspec import Struct
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from gateway.errors import BodyTooSlow, ClientLeft, InvalidField, InvalidRequest, UnsupportedEncoding
from storage.database.circuit_breaker import beside_the_database

_MOST_PARTS = 16
_MOST_TEXT = 4096
"""Bytes of a field that is no file."""
_MEDIA_TYPE = "multipart/form-data"
Take = Callable[[bytes], Awaitable[None]]


class Form(Struct, frozen=True):
    """The texts of a form, by name, and the name that its file has; None without a file. `media_type`: of the file, if
    the form says one."""

    texts: dict[str, str]
    filename: str | None
    media_type: str | None = None


async def read_form(
    request: Request[Any, Any, Any], silent_s: float, take: Take, field: str = "file", *, most_text: int = _MOST_TEXT
) -> Form:
    """The form of a request. `take` takes the bytes of the field with the file as they come; other fields have at most
    `most_text` bytes. Raises InvalidRequest, BodyTooSlow if nothing comes for `silent_s` seconds, ClientLeft, and what
    `take` raises."""
    if request.headers.get("content-encoding", "identity") not in ("", "identity"):
        raise UnsupportedEncoding("Content-Encoding is not supported here; send the body uncompressed.")
    media_type, options = parse_options_header(request.headers.get("content-type", ""))
    if media_type != _MEDIA_TYPE or not options.get("boundary"):
        raise InvalidRequest(f"Send the file as a form ({_MEDIA_TYPE} with a boundary).", code="invalid_form")
    reader = _FormReader(take, field, most_text)
    try:
        with PushMultipartParser(options["boundary"], max_segment_count=_MOST_PARTS) as parser:
            async for piece in _pieces(request, silent_s):
                for event in parser.parse(piece):
                    await reader.read(event)
    except (MultipartError, UnicodeError) as error:
        raise InvalidRequest(f"The form cannot be read: {error}.", code="invalid_form") from error
    return Form(reader.texts, reader.filename, reader.media_type)


class _FormReader:
    def __init__(self, take: Take, file_field: str, most_text: int) -> None:
        self.texts: dict[str, str] = {}
        self.filename: str | None = None
        self.media_type: str | None = None
        self._take = take
        self._file_field = file_field
        self._most_text = most_text
        self._field = ""
        self._is_file = False
        self._text = bytearray()

    async def read(self, event: Any) -> None:
        """Take the next event of the parser. Raises InvalidField."""
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif event is None:
            self._end()
        elif self._is_file:
            await self._take(bytes(event))
        else:
            self._text += event
            if len(self._text) > self._most_text:
                raise InvalidField(self._field, f"it has more than {self._most_text} bytes")

    def _begin(self, part: MultipartSegment) -> None:
        self._field, self._text = part.name[:_MOST_TEXT], bytearray()
        self._is_file = self._field == self._file_field
        if self._field in self.texts or (self._is_file and self.filename is not None):
            raise InvalidField(self._field, "the form has it twice")
        if self._is_file:
            self.filename, self.media_type = part.filename or "", part.content_type

    def _end(self) -> None:
        if not self._is_file:
            self.texts[self._field] = self._text.decode()


async def _pieces(request: Request[Any, Any, Any], silent_s: float) -> AsyncIterator[bytes]:
    stream = request.stream()
    try:
        while True:
            with beside_the_database():
                async with asyncio.timeout(silent_s):
                    piece = await anext(stream, None)
            if piece is None:
                return
            if piece:
                yield piece
    except TimeoutError as error:
        raise BodyTooSlow(f"Nothing of the request body arrived within {silent_s:g} s.") from error
    except InternalServerException as error:  # Litestar's error for a closed connection
        raise ClientLeft("The client disconnected before its request had arrived.") from error

"""Sends a file that somebody else made: as an attachment of no type that a browser would show."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from litestar.types import Receive, Scope, Send

_PLAIN = re.compile(r"[^A-Za-z0-9._-]")


def attachment(filename: str) -> str:
    """The value of Content-Disposition for a file of this name, whatever the name has in it (RFC 6266)."""
    plain = _PLAIN.sub("_", filename)[:200] or "file"
    return (
        f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename[:200].encode(errors='replace'), safe='')}"
    )


class Download:
    """An answer that is a file of `size` bytes, whose `pieces` are read as they are sent. A client that reads nothing
    for `client_timeout` seconds is disconnected."""

    def __init__(self, pieces: AsyncIterator[bytes], size: int, filename: str, media_type: str, client_timeout: float):
        self._pieces = pieces
        self._client_timeout = client_timeout
        self._headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(size).encode()),
            (b"content-disposition", attachment(filename).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Its first piece comes before its status: an unreadable file is answered with an error."""
        piece = await anext(self._pieces, b"")
        try:
            await self._send(send, {"type": "http.response.start", "status": 200, "headers": self._headers})
            while piece:
                await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})
                piece = await anext(self._pieces, b"")
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except (OSError, TimeoutError):
            return  # the connection breaks

    async def _send(self, send: Send, message: object) -> None:
        async with asyncio.timeout(self._client_timeout):
            await send(message)  # type: ignore[arg-type]

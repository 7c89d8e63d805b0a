"""The content of a file in its blob: pieces of one size, each sealed for its place, so that any part is read alone.

A piece that is cut off, altered, or taken from another place or file does not open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

from file_store.blobs import Blobs, BlobWriter
from response_store.sealing import ContentSeal

PIECE = 256 * 1024
"""Bytes of content in a piece; the last one has fewer."""
_SEALED = PIECE + ContentSeal.OVERHEAD


class ContentWriter:
    """A file that is being written. `size`: its bytes so far."""

    def __init__(self, id_: UUID, seal: ContentSeal, blob: BlobWriter) -> None:
        self.size = 0
        self._id = id_
        self._seal = seal
        self._blob = blob
        self._rest = bytearray()
        self._pieces = 0

    async def append(self, content: bytes) -> None:
        """Write more of it. Raises OSError."""
        self.size += len(content)
        self._rest += content
        while len(self._rest) >= PIECE:
            piece = bytes(self._rest[:PIECE])
            del self._rest[:PIECE]
            await self._write(piece)

    async def commit(self) -> None:
        """Make it durable. Raises OSError."""
        if self._rest:
            await self._write(bytes(self._rest))
        await self._blob.commit()

    async def discard(self) -> None:
        """Remove what was written, unless it was committed."""
        await self._blob.discard()

    async def _write(self, piece: bytes) -> None:
        associated = _place(self._id, self._pieces)
        self._pieces += 1
        sealed = await asyncio.to_thread(lambda: self._seal.seal(piece, associated, packed=False))
        await self._blob.append(sealed)


class ContentReader:
    """The content of a file of `size` bytes. The piece that was read last is kept: who reads on is not slowed down."""

    def __init__(self, id_: UUID, size: int, seal: ContentSeal, blobs: Blobs) -> None:
        self.size = size
        self._id = id_
        self._seal = seal
        self._blobs = blobs
        self._last: tuple[int, bytes] | None = None

    async def read(self, offset: int, size: int) -> bytes:
        """So many bytes from there on, fewer at the end. Raises Unreadable, BlobMissing, OSError."""
        end = min(offset + size, self.size)
        parts = []
        while offset < end:
            number, begin = divmod(offset, PIECE)
            piece = await self._piece(number)
            parts.append(piece[begin : begin + end - offset])
            offset = (number + 1) * PIECE
        return b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """All of it, in parts. Raises Unreadable, BlobMissing, OSError."""
        for offset in range(0, self.size, PIECE):
            yield await self.read(offset, PIECE)

    async def _piece(self, number: int) -> bytes:
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        length = min(PIECE, self.size - number * PIECE) + ContentSeal.OVERHEAD
        sealed = await self._blobs.read(self._id.hex, number * _SEALED, length)
        piece = await asyncio.to_thread(self._seal.open, sealed, _place(self._id, number))
        self._last = number, piece
        return piece


def _place(id_: UUID, number: int) -> bytes:
    return id_.bytes + b"file" + number.to_bytes(8, "big")

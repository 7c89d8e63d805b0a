"""Where the bytes of files lie: named blobs, written once and read in parts. A folder today.

A blob's name is the hexadecimal id of its file, never anything that a client said.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

_NAME = re.compile(r"[0-9a-f]{32}")
_UNFINISHED = ".part"


class BlobMissing(Exception):
    """There is no blob of this name, or it is shorter than was asked for."""


class BlobWriter(Protocol):
    """A blob that is being written. It is there for readers once it was committed, and then it is durable."""

    async def append(self, content: bytes) -> None:
        """Write more of it. Raises OSError."""
        ...

    async def commit(self) -> None:
        """Make it durable. Raises OSError."""
        ...

    async def discard(self) -> None:
        """Remove what was written of it, unless it was committed."""
        ...


class Blobs(Protocol):
    """A place of blobs. An interface, since a folder is one such place and an object store another."""

    async def create(self, name: str) -> BlobWriter:
        """Begin a blob. Raises OSError."""
        ...

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """So many bytes of a blob from there on. Raises BlobMissing, OSError."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a blob, if there is one. Raises OSError."""
        ...

    async def names_before(self, age_s: float) -> list[str]:
        """The names of all blobs that were written longer ago than that, finished or not. Raises OSError."""
        ...


class FolderBlobs:
    """Blobs as files of a folder, which gateways and workers share; 256 folders below it keep each of them small."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def create(self, name: str) -> BlobWriter:
        """Begin a blob. Raises OSError."""
        path = self._path(name)
        return _FileWriter(path, await asyncio.to_thread(_open_unfinished, path))

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """So many bytes of a blob from there on. Raises BlobMissing, OSError."""
        content = await asyncio.to_thread(_read, self._path(name), offset, size)
        if len(content) < size:
            raise BlobMissing(name)
        return content

    async def remove(self, name: str) -> None:
        """Remove a blob, if there is one, and what was left of writing it. Raises OSError."""
        path = self._path(name)
        for each in (path, path.with_suffix(_UNFINISHED)):
            await asyncio.to_thread(each.unlink, missing_ok=True)

    async def names_before(self, age_s: float) -> list[str]:
        """The names of all blobs that were written longer ago than that, finished or not. Raises OSError."""
        return await asyncio.to_thread(lambda: list(self._old_names(time.time() - age_s)))

    def _old_names(self, before: float) -> Iterator[str]:
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                if _NAME.fullmatch(path.stem) and path.stat().st_mtime < before:
                    yield path.stem

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError("a blob's name is 32 hexadecimal digits")
        return self.folder / name[-2:] / name


class _FileWriter:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._over = False

    async def append(self, content: bytes) -> None:
        await asyncio.to_thread(self._file.write, content)

    async def commit(self) -> None:
        await asyncio.to_thread(self._commit)

    async def discard(self) -> None:
        if not self._over:
            self._over = True
            await asyncio.to_thread(self._discard)

    def _commit(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._path.with_suffix(_UNFINISHED).replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name is durable with its folder
        finally:
            os.close(folder)
        self._over = True

    def _discard(self) -> None:
        self._file.close()
        self._path.with_suffix(_UNFINISHED).unlink(missing_ok=True)


def _open_unfinished(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_suffix(_UNFINISHED), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    return os.fdopen(descriptor, "wb")


def _read(path: Path, offset: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError as error:
        raise BlobMissing(path.name) from error

"""The files of a store: where a record lies, how it is published, read and found again. Knows bytes, and no keys.

FOLDER/lock                                one store, one process
FOLDER/IDENTITY/identity.json              what the identity's digest stands for
FOLDER/IDENTITY/new/N                      a record that is being written
FOLDER/IDENTITY/2 hex digits/28 hex digits a record, under the keyed hash of what it holds
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import TypeAlias

from prompt_cache.tiers.record_format import NAME_BYTES
from prompt_cache.tiers.store_state import write_durably

Bytes: TypeAlias = bytes | bytearray | memoryview
FOLDERS = 256
"""Folders of records, by the first byte of their names."""
_NEW, _IDENTITY = "new", "identity.json"
_IDENTITY_NAME = re.compile("[0-9a-f]{32}")
_WAIT_WRITE_WAIT = 7
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_MOST_BOUNDS = 10_000


class NotAFile(OSError):
    """What lies in a file's place is a link, a folder, a pipe, a socket or a device."""


class RecordFiles:
    """The records of one identity. Methods raise OSError, and may be called from any thread."""

    def __init__(self, folder: Path, identity: str) -> None:
        """`identity`: the name of its folder."""
        self.folder = folder
        self.records = folder / identity
        self._numbers = count()
        self._unsynced: set[Path] = set()
        self._lock = threading.Lock()

    def prepare(self, description: bytes) -> int:
        """Make the folders, in the place of links too, and delete what was never published; returns how many files that
        were."""
        new = self.records / _NEW
        _make_folder(self.records)
        with os.scandir(self.records) as entries:
            present = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        for name in (_NEW, *(f"{number:02x}" for number in range(FOLDERS))):
            if name not in present:
                _make_folder(self.records / name)
        write_durably(self.records / _IDENTITY, description)
        unpublished = list(new.iterdir())
        for path in unpublished:
            with contextlib.suppress(IsADirectoryError):
                path.unlink()
        return len(unpublished)

    def path(self, name: bytes) -> Path:
        """Where the record of this name lies."""
        text = name.hex()
        return self.records / text[:2] / text[2:]

    @contextlib.contextmanager
    def _inside(self, folder: str) -> Iterator[int]:
        """A descriptor of one of this identity's folders, which is no link, nor is the identity's. Raises NotAFile."""
        with _folder(str(self.records)) as records, _folder(folder, records) as opened:
            yield opened

    # ------------------------------------------------------------ reading

    @contextlib.contextmanager
    def opened(self, name: bytes) -> Iterator[tuple[int, int]]:
        """The descriptor and the length of a record's file. Raises NotAFile."""
        text = name.hex()
        with self._inside(text[:2]) as folder, _opened(text[2:], folder) as opened:
            yield opened

    def read(self, file: int, into: memoryview, offset: int) -> int:
        """Fill memory from this place of a file; returns how many bytes came, fewer only where the file ends."""
        read = 0
        while read < len(into):
            got = os.preadv(file, [into[read:]], offset + read)
            if not got:
                break
            read += got
        return read

    # ------------------------------------------------------------ writing

    def write(self, parts: Iterable[Bytes]) -> Path:
        """Write a new file to the disk; returns its path, under which nobody looks for it. Leaves none if it fails."""
        path = self.records / _NEW / f"{next(self._numbers):x}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._inside(_NEW) as folder:
            file = os.open(path.name, flags, 0o600, dir_fd=folder)
        try:
            for part in parts:
                self.append(file, memoryview(part))
            self.sync(file)
            # Host memory has the block: the system need not keep it a second time, at the cost of what others read.
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            self._discard(path)
            raise
        finally:
            os.close(file)
        return path

    def _discard(self, new: Path) -> None:
        with contextlib.suppress(OSError), self._inside(_NEW) as folder:
            os.unlink(new.name, dir_fd=folder)

    def append(self, file: int, part: memoryview) -> None:
        """Write all of this part, and wait until the disk has its bytes, so that few are ever on their way there."""
        while part:
            part = part[os.write(file, part) :]
        _write_back(file)

    def sync(self, file: int) -> None:
        """Wait until the disk has the file."""
        os.fdatasync(file)

    def publish(self, new: Path, name: bytes) -> None:
        """Give a written file its name. The name is on the disk after the next `sync_folders`. Raises NotAFile, and
        deletes what was written, where a folder has the name."""
        path = self.path(name)
        try:
            with self._inside(_NEW) as source, self._inside(path.parent.name) as target:
                os.rename(new.name, path.name, src_dir_fd=source, dst_dir_fd=target)
        except (IsADirectoryError, NotAFile) as error:
            self._discard(new)
            raise NotAFile(*error.args) from error
        with self._lock:
            self._unsynced.add(path.parent)

    def sync_folders(self) -> None:
        """Wait until the disk has the names of all records that were published."""
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            with contextlib.suppress(NotAFile), self._inside(folder.name) as descriptor:
                os.fsync(descriptor)

    def delete(self, name: bytes) -> bool:
        """Delete a record; whether there was one. A folder in its place goes if it is empty."""
        text = name.hex()
        try:
            with self._inside(text[:2]) as folder:
                try:
                    os.unlink(text[2:], dir_fd=folder)
                except IsADirectoryError:
                    with contextlib.suppress(OSError):
                        os.rmdir(text[2:], dir_fd=folder)
                    return False
        except (FileNotFoundError, NotAFile):
            return False
        return True

    # ------------------------------------------------------------ lists

    def names(self) -> Iterator[bytes | Path]:
        """The names of all records, folder by folder, and the paths of files that are no records."""
        for number in range(FOLDERS):
            yield from self.names_in(number)

    def names_in(self, number: int) -> Iterator[bytes | Path]:
        """The same of one of the `FOLDERS` folders."""
        folder = self.records / f"{number:02x}"
        if os.path.lexists(folder) and not _is_folder(folder):
            yield folder
            return
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                yield _name(f"{number:02x}{entry.name}") or Path(entry.path)

    def unpublished(self) -> list[Path]:
        """What was being written when its process died, or is now."""
        new = self.records / _NEW
        with contextlib.suppress(OSError):
            return [new] if new.is_symlink() else list(new.iterdir())
        return []

    def description(self) -> bytes:
        """What is written of the identity. Raises OSError."""
        with _opened(str(self.records / _IDENTITY)) as (file, length):
            return os.pread(file, length, 0)

    def others(self) -> list[Path]:
        """The folders of other identities, those first that were not used for the longest time. What no store has
        described is left alone: nobody knows whose it is."""
        return [path for path in identities(self.folder) if path != self.records and (path / _IDENTITY).is_file()]


@contextlib.contextmanager
def _folder(path: str, within: int | None = None) -> Iterator[int]:
    """The descriptor of a folder, in an open one; a link in its place is not followed. Raises NotAFile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=within)
    except NotADirectoryError as error:
        raise NotAFile(*error.args) from error
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _opened(path: str, within: int | None = None) -> Iterator[tuple[int, int]]:
    """The descriptor and the length of a file, in an open folder; nothing that lies in its place is followed or waited
    for. Raises NotAFile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotAFile(*error.args) from error
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFile(errno.EINVAL, "not a regular file")
        yield file, status.st_size
    finally:
        os.close(file)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _make_folder(path: Path) -> None:
    """Make a folder, in the place of a link or a file."""
    if not _is_folder(path):
        path.unlink(missing_ok=True)
        path.mkdir(mode=0o700)


def _write_back(file: int) -> None:
    """Let the kernel write what it holds of a file to the disk, and wait for it: without the file system's journal, for
    which others wait, and without a promise. Does nothing where there is no such call."""
    if _sync_file_range is not None:
        _sync_file_range(file, 0, 0, _WAIT_WRITE_WAIT)


def identities(folder: Path) -> list[Path]:
    """The folders of all identities, no links, those first that were not used for the longest time. Raises OSError.

    Others may keep something of their own in the folder: what has not the name of an identity is none.
    """
    named = (path for path in folder.iterdir() if _IDENTITY_NAME.fullmatch(path.name))
    return sorted((path for path in named if _is_folder(path)), key=_last_opened)


def _name(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if len(text) == 2 * NAME_BYTES and text == text.lower() else None
    except ValueError:
        return None


def _last_opened(identity: Path) -> float:
    """When a store last opened this identity: it writes the description each time."""
    try:
        return (identity / _IDENTITY).lstat().st_mtime
    except OSError:
        return 0.0


def files_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files below a folder with their lengths, the oldest first in each of its folders; no links are followed."""
    inner: list[Path] = []
    files: list[tuple[float, Path, int]] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(Path(entry.path))
            else:
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, Path(entry.path), status.st_size))
    for path in sorted(inner):
        yield from files_below(path)
    for _, path, size in sorted(files):
        yield path, size


class FolderScan:
    """All files of an identity's folder, some at a time. `done` when there are no more.

    `failed`: told why one of the folders cannot be listed. Its records are not found, those of the others are.
    """

    def __init__(self, files: RecordFiles, failed: Callable[[OSError], None]) -> None:
        self._files = self._names(files, failed)
        self._lock = threading.Lock()
        self._bounds: dict[str, float] = {}
        """scope -> when what is still found of it has to expire"""
        self.done = False

    def names(self, most: int) -> list[bytes | Path]:
        """Up to `most` more names, and paths of what is no record."""
        with self._lock:
            found = list(islice(self._files, most))
            self.done = self.done or len(found) < most
            return found

    def shorten(self, scope: str, until: float) -> None:
        """What is still found of this scope has to expire by then, in seconds since the Unix epoch."""
        self._bounds[scope] = until
        if len(self._bounds) > _MOST_BOUNDS:
            del self._bounds[next(iter(self._bounds))]

    def outlives(self, scope: str, expires: float) -> bool:
        """Whether a record of this scope lives longer than it may."""
        return expires > self._bounds.get(scope, inf)

    @staticmethod
    def _names(files: RecordFiles, failed: Callable[[OSError], None]) -> Iterator[bytes | Path]:
        for number in range(FOLDERS):
            try:
                yield from files.names_in(number)
            except OSError as error:
                failed(error)


def reclaim(files: RecordFiles, most: int) -> tuple[int, int]:
    """Delete up to `most` files of other identities, the longest unused and the oldest first; returns how many records
    they were, and their bytes. Raises OSError."""
    deleted = freed = 0
    for identity in files.others():
        for path, size in islice(files_below(identity), most - deleted):
            path.unlink(missing_ok=True)
            deleted += 1
            freed += size
        if deleted >= most:
            break
        _remove_folders(identity)
    return deleted, freed


def _remove_folders(folder: Path) -> None:
    """Remove a tree of empty folders."""
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            _remove_folders(path)
    with contextlib.suppress(OSError):
        folder.rmdir()

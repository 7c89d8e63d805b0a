"""Files that take the place of others at once or not at all, and are on the disk when they do.

A new file is made beside the old one, under the name plus `.new`. All functions raise OSError.
"""

from __future__ import annotations

import os
from pathlib import Path

_COPY_BYTES = 1 << 20


def write_all(file: int, data: bytes) -> None:
    """Append all of the data, however much the system takes at a time."""
    while data:
        data = data[os.write(file, data) :]


def copy_bytes(source: int, target: int, start: int, end: int) -> int:
    """Append the bytes [start, end) of a file to another; returns where the source ended if that was before `end`."""
    while data := os.pread(source, min(_COPY_BYTES, end - start), start):
        write_all(target, data)
        start += len(data)
    return start


def is_same_file(path: Path, file: int) -> bool:
    """Whether the path leads to this open file."""
    try:
        named, opened = path.stat(), os.fstat(file)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def replace_file(path: Path, data: bytes) -> int:
    """Replace a file by one with this content, durably; returns the new one, open for appending."""
    file = make_beside(path, data)
    try:
        put_in_place(path)
        sync_folder(path.parent)
    except OSError:
        os.close(file)
        raise
    return file


def make_beside(path: Path, data: bytes) -> int:
    """Make the file that is to take the place of `path`, with this content, on the disk; returns it, open to append."""
    file = os.open(_new(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        write_all(file, data)
        os.fsync(file)
    except OSError:
        os.close(file)
        drop_beside(path)
        raise
    return file


def put_in_place(path: Path) -> None:
    """Give the file of `make_beside` its name; durable after `sync_folder`."""
    _new(path).replace(path)


def drop_beside(path: Path) -> None:
    """Remove the file of `make_beside`, which is not needed."""
    _new(path).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new(path: Path) -> Path:
    return path.with_name(path.name + ".new")

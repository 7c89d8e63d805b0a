"""Files that belong to a process as long as it lives: it holds their lock; who can lock one knows that it is gone."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def create(path: Path, content: bytes) -> int:
    """A new locked file whose name and content are durable; its descriptor, open for appending. Raises OSError.

    It gets its name when it is locked, so that nobody can take it in between.
    """
    hidden = path.with_suffix(".new")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_all(descriptor, content)
        os.fsync(descriptor)
        hidden.rename(path)
        _sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        for leftover in (hidden, path):
            leftover.unlink(missing_ok=True)
        raise
    return descriptor


def take(path: Path) -> int | None:
    """A file whose owner is gone, locked by us; None if its owner lives or somebody has just dealt with it. Raises
    OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found, named = os.fstat(descriptor), path.stat()
        if (found.st_dev, found.st_ino) != (named.st_dev, named.st_ino):
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however often the system takes only a part. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

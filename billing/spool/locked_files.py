"""Files that belong to a living process: it holds their lock (flock). A file that can be locked has lost its owner."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def create(path: Path, content: bytes) -> int:
    """Create a locked file, with name and content durable; returns its descriptor, open for appending. Raises OSError.

    It is locked before it gets its name, so that nobody can take it in between.
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
    """Lock a file whose owner is gone; returns its descriptor. None if the owner lives or the file was just replaced.

    Raises OSError.
    """
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
    """Write all of `data`, over as many system calls as it takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
